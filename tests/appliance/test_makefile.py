"""`make` as a newcomer uses it. The environment is the one of this test run; only its place is
given, as if `make` had made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.appliance.live import Home, tiny_model


@pytest.fixture
def environment() -> dict[str, str]:
    # Under `make test` this run is itself a child of make.
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


def make(
    repo: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=repo, env=environment, capture_output=True, text=True, check=False
    )


def test_make_alone_explains(repo: Path, environment: dict[str, str]) -> None:
    done = make(repo, environment)
    assert done.returncode == 0
    words = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    assert words >= {"up", "test", "check", "lint", "bench", "gpu-test", "gpu-bench", "clean"}
    assert "RECIPE=recipes/smollm2-135m-cpu.yaml" in done.stdout


def a_venv(folder: Path, tokenspeed: str) -> Path:
    """A folder that `make` takes for a finished .venv, with this command `tokenspeed`."""
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "tokenspeed"
    script.write_text(f"#!/bin/sh\n{tokenspeed}\n")
    script.chmod(0o755)
    for stamp in (".made", ".torch", ".ready"):
        (folder / stamp).touch()
    return folder


@pytest.mark.parametrize("path", ["/a b/r.yaml", "it's.yaml", 'say "x".yaml', "a;b&c|d.yaml"])
def test_a_recipe_reaches_up_as_one_word(
    repo: Path, environment: dict[str, str], tmp_path: Path, path: str
) -> None:
    venv = a_venv(tmp_path / "venv", 'printf "<%s>" "$@"')
    done = make(repo, environment, "up", f"VENV={venv}", f"RECIPE={path}")
    assert done.stdout == f"<up><{path}>", done.stderr
    assert f"RECIPE={path} " in make(repo, environment, f"RECIPE={path}").stdout


def test_a_machine_without_python_is_told_what_to_install(
    repo: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    done = make(repo, environment, "up", "PYTHON=", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert "apt-get install -y python3 python3-venv python3-dev g++" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_ctrl_c_through_make_drains_and_leaves_nothing(
    repo: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    venv = a_venv(tmp_path / "venv", f'exec {sys.executable} -P -m tokenspeed "$@"')
    with Home() as home:
        recipe = home.recipe("demo", tiny_model(home.path / "model"))
        home.environment = environment | {
            name: home.environment[name]
            for name in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "OMP_NUM_THREADS")
        }
        command = ["make", "up", f"VENV={venv}", f"RECIPE={recipe}"]
        front = home.up(recipe, command=command, cwd=repo).wait_ready()
        with front.streams(2, max_tokens=300) as streams:
            os.killpg(front.process.pid, signal.SIGINT)
        assert [stream.finish_reasons for stream in streams] == [["length"]] * 2
        assert front.wait() in (-signal.SIGINT, 2)  # make passes on that it was interrupted
        assert "draining" in front.output
        home.check_no_leaks(front)
