from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from tests.appliance.live import Home
from tokenspeed.appliance.instance import RECORD_VERSION, Record
from tokenspeed.appliance.process import start_ticks
from tokenspeed.cli import main
from tokenspeed.errors import ExitCode


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `demo`, the only instance that runs, writes its log: this process."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "tokenspeed" / "demo"
    folder.mkdir(parents=True)
    record = Record(
        version=RECORD_VERSION,
        name="demo",
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()) or 0,
        url="http://127.0.0.1:9",
        recipe="/r.yaml",
        started=time.time(),
        drain_seconds=1.0,
        log=str(tmp_path / "demo.log"),
        greeting="ready",
    )
    (folder / "instance.json").write_bytes(msgspec.json.encode(record))
    (tmp_path / "demo.log").write_text("first\nsecond\nthird\n")
    return tmp_path / "demo.log"


def test_a_log_that_does_not_exist_is_explained() -> None:
    with Home() as home:
        done = home.run("logs", "demo")
    assert done.returncode == ExitCode.UNAVAILABLE
    assert "there is no log of demo" in done.stderr
    assert "up --detach" in done.stderr


def test_without_a_name_it_is_the_only_instance(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "-n", "2"]) == 0
    assert capsys.readouterr().out == "second\nthird\n"
    (log.parent / "tokenspeed" / "demo" / "instance.json").unlink()
    assert main(["logs"]) == ExitCode.UNAVAILABLE
    assert "no instance is running" in capsys.readouterr().err


@pytest.mark.parametrize("lines", ["-1", "all", "1.5"])
def test_a_number_of_lines_that_is_none(
    log: Path, lines: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "demo", f"--lines={lines}"]) == ExitCode.USAGE
    assert f"{lines} is not a whole number from 0 on" in capsys.readouterr().err


def test_no_lines_are_none(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "demo", "-n", "0"]) == 0
    assert capsys.readouterr().out == ""


def test_a_blank_line_is_a_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("first\n\n")
    assert main(["logs", "demo", "-n", "1"]) == 0
    assert capsys.readouterr().out == "\n"
    log.write_text("")
    assert main(["logs", "demo"]) == 0
    assert capsys.readouterr().out == ""


def test_a_path_is_no_name(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = log.with_suffix("")
    assert main(["logs", str(elsewhere)]) == ExitCode.UNAVAILABLE
    assert f"there is no log of {elsewhere}" in capsys.readouterr().err
