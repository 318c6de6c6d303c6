"""Documents are run: every command that README shows is executed here as it stands there.

Only the port is exchanged, so that a server on 8000 does not disturb the test.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import named_port
from tokenspeed.recipe.load import load_recipe

# Verbs that plan; the others need a running instance and are run in the order of the text.
PLANNING = {
    "check", "plan", "schema", "lock", "diff", "kernels", "explain", "export", "doctor", "version",
}  # fmt: skip
# What a line is meant to show, where that is a failure.
EXPECTED = {"max_runing": 65}


def blocks(repo: Path, language: str) -> list[str]:
    text = (repo / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(repo: Path) -> list[str]:
    """One line each, continuations joined."""
    joined = (block.replace("\\\n", " ") for block in blocks(repo, "sh"))
    return [line.strip() for block in joined for line in block.splitlines() if line.strip()]


def verb(command: str) -> str:
    words = shlex.split(command)
    return words[1] if words[0] == "tokenspeed" else words[0]


@dataclass(frozen=True)
class Shell:
    """A newcomer's shell with the environment activated, beside a copy of the recipes."""

    folder: Path
    home: Path
    port: int

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        bin_dir = Path(sys.executable).parent
        environment = dict(os.environ) | {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(self.home),
            "NO_PROXY": "127.0.0.1",
        }
        command = command.replace(":8000", f":{self.port}")
        if verb(command) == "up":
            command += f" --set serve.port={self.port}"
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip


@pytest.fixture
def shell(repo: Path, tmp_path: Path) -> Iterator[Shell]:
    port = named_port()
    shutil.copytree(repo / "recipes", tmp_path / "checkout/recipes")
    # Short, for the sake of Unix sockets.
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as home:
        shell = Shell(tmp_path / "checkout", Path(home), port)
        yield shell
        shell.run("tokenspeed down smollm2-135m-cpu --now")


def test_planning_commands(repo: Path, shell: Shell) -> None:
    lines = [line for line in commands(repo) if verb(line) in PLANNING]
    assert len(lines) >= 4
    for line in lines:
        done = shell.run(line)
        expected = next((code for word, code in EXPECTED.items() if word in line), 0)
        assert done.returncode == expected, (line, done.stdout, done.stderr)


def test_an_instance_from_up_to_down(repo: Path, shell: Shell, smollm2_dir: Path) -> None:
    """In the order of the text, but the server is started first: README asks it before it tells
    how to start one in the background."""
    assert smollm2_dir.is_dir()
    lines = [line for line in commands(repo) if verb(line) not in PLANNING | {"make"}]
    starts = [line for line in lines if verb(line) == "up"]
    asks = [line for line in lines if verb(line) == "curl"]
    others = [line for line in lines if line not in starts + asks]
    assert len(starts) == 1 and asks and verb(others[-1]) == "down"
    for line in starts + asks:
        done = shell.run(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert '"finish_reason"' in done.stdout
    for snippet in blocks(repo, "python"):
        done = shell.run(f"python - <<'EOF'\n{snippet}\nEOF")
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
    for line in others:
        done = shell.run(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert shell.run("tokenspeed status smollm2-135m-cpu").returncode == 3


def test_make_targets_exist(repo: Path) -> None:
    text = "".join((repo / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))
    targets = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", text, re.MULTILINE))
    assert {"up", "test", "check", "bench"} <= targets
    for target in targets:
        done = subprocess.run(
            ["make", "-n", target], cwd=repo, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (target, done.stderr)


def test_recipes_in_the_text_load(repo: Path, tmp_path: Path) -> None:
    shown = blocks(repo, "yaml")
    assert shown
    (tmp_path / "my-model").mkdir()
    for number, text in enumerate(shown):
        path = tmp_path / f"recipe{number}.yaml"
        path.write_text(text)
        assert load_recipe(path).recipe.name
