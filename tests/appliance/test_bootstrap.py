from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance import index as fake
from tests.appliance.index import Index
from tokenspeed.appliance import bootstrap
from tokenspeed.appliance.bootstrap import Missing
from tokenspeed.appliance.packages import Wheel
from tokenspeed.errors import ExitCode


def torch_wheel(folder: Path, version: str) -> None:
    """A find-links folder with an empty torch of that version."""
    file = folder / fake.filename("torch", version)
    file.write_bytes(fake.wheel({}, name="torch", version=version))


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake.point_pip_at("http://127.0.0.1:9/simple/", monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_versions_are_read_from_what_pip_prints() -> None:
    listing = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0, 2.9.0+cpu\n"
    assert bootstrap.marked_versions(listing, "cpu") == ["2.13.0+cpu", "2.9.0+cpu"]
    assert bootstrap.marked_versions("ERROR: No matching distribution found", "cpu") == []
    listing = "Available versions: 2.15.0+rocm7.1, 2.13.0+cpu, 2.13.0+rocm6.4.2, 2.9.0+cu128\n"
    assert bootstrap.marked_versions(listing, "rocm") == ["2.15.0+rocm7.1", "2.13.0+rocm6.4.2"]


def test_the_newest_offered_cpu_build_is_taken_even_below_a_newer_default(links: Path) -> None:
    for version in ("2.12.0+cpu", "2.13.0+cpu", "2.15.0"):
        torch_wheel(links, version)
    assert bootstrap.marked_build("torch>=2.9", "cpu") == "2.13.0+cpu"


def test_a_cpu_build_that_is_too_old_is_not_taken(links: Path) -> None:
    for version in ("2.8.0+cpu", "2.15.0"):
        torch_wheel(links, version)
    assert bootstrap.marked_build("torch>=2.9", "cpu") is None


def test_the_user_s_constraints_bind(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.12.0+cpu", "2.13.0+cpu"):
        torch_wheel(links, version)
    constraints = links / "constraints.txt"
    constraints.write_text("torch<2.13\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    assert bootstrap.marked_build("torch>=2.9", "cpu") == "2.12.0+cpu"


def test_a_rocm_build_is_taken_where_one_is_offered(links: Path) -> None:
    for version in ("2.13.0+cpu", "2.15.0"):
        torch_wheel(links, version)
    assert bootstrap.marked_build("torch>=2.9", "rocm") is None
    torch_wheel(links, "2.13.0+rocm6.4")
    assert bootstrap.marked_build("torch>=2.9", "rocm") == "2.13.0+rocm6.4"


def test_no_torch_at_all_is_no_cpu_build(links: Path) -> None:
    assert bootstrap.marked_build("torch>=2.9", "cpu") is None


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with fake.serve(Index(b"x" * 3_000_000, name="torch", version="2.15.0")) as served:
        fake.point_pip_at(served.url, monkeypatch)
        yield served


def test_the_size_of_the_default_is_known_without_downloading_it(index: Index) -> None:
    (wheel,) = bootstrap.packages.find("torch>=2.9")
    text = bootstrap.size_of([wheel])
    assert text == "2.15.0 with the 0 packages that it needs, is 3 MB to download"
    missing = Wheel("x", "1", index.url.replace("simple", "gone"), None)
    assert "at least 3 MB" in bootstrap.size_of([wheel, missing])


def test_requirements_come_from_pyproject() -> None:
    assert bootstrap.torch_requirement().startswith("torch>=")
    assert any(text.startswith("pytest>=") for text in bootstrap.requirements("test"))


def test_everything_missing_is_named_with_one_apt_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.report([]) == ExitCode.OK
    code = bootstrap.report([Missing("a compiler", "g++"), Missing("headers", "python3-dev")])
    assert code == ExitCode.UNAVAILABLE
    assert "apt-get install -y g++ python3-dev" in capsys.readouterr().err


def test_a_compiler_without_cxx20_or_none_at_all_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "c++"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Missing("a compiler for C++20 (g++ 12 or later)", "g++") in bootstrap.missing(
        "no-such-compiler", tests=False
    )
    old.write_text("#!/bin/sh\ngrep -q gtest && exit 1\nexit 0\n")
    packages = [item.package for item in bootstrap.missing("c++", tests=True)]
    assert "g++" not in packages


def test_it_runs_from_a_bare_checkout_with_the_standard_library_alone(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _BARE, str(repo)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert "install torch" in done.stdout


_BARE = """
import sys
repo = sys.argv[1]
sys.path[:0] = [repo, repo + "/kernels"]
from tokenspeed.appliance import bootstrap
bootstrap.main(["--help"])
"""
