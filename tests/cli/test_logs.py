from __future__ import annotations

from pathlib import Path

from tests.appliance.live import Home
from tokenspeed.appliance.detach import tail
from tokenspeed.errors import ExitCode


def test_a_log_that_does_not_exist_is_explained() -> None:
    with Home() as home:
        done = home.run("logs", "demo")
    assert done.returncode == ExitCode.UNAVAILABLE
    assert "there is no log of demo" in done.stderr
    assert "up --detach" in done.stderr


def test_the_tail_is_the_last_lines_whatever_their_length(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)) + "é" * 10)
    assert tail(path, 2) == "line 999\n" + "é" * 10
    path.write_text("")
    assert tail(path, 5) == ""
    path.write_bytes(b"\xff\xfe broken\n")
    assert "broken" in tail(path, 5)
