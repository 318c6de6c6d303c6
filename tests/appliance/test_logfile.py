from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenspeed.appliance.logfile import adopt, log_file, new_draft, tail
from tokenspeed.errors import ExitCode, TryAgainError


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_a_draft_leaves_the_log_alone_until_it_is_adopted() -> None:
    first, draft = new_draft("demo")
    assert adopt(draft, "demo") == log_file("demo")
    os.write(first, b"first\n")  # goes on in the file under its new name
    second, other = new_draft("demo")
    os.write(second, b"second\n")
    assert log_file("demo").read_bytes() == b"first\n"

    adopt(other, "demo")
    assert log_file("demo").read_bytes() == b"second\n"
    assert log_file("demo").with_name("demo.log.1").read_bytes() == b"first\n"
    assert len(list(log_file("demo").parent.iterdir())) == 2
    os.close(first)
    os.close(second)


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(data_home: Path) -> None:
    (data_home / "tokenspeed").write_text("in the way")
    with pytest.raises(TryAgainError) as caught:
        new_draft("demo")
    (problem,) = caught.value.problems
    assert problem.code == "TS-S205"
    assert str(data_home / "tokenspeed" / "logs") in problem.message
    assert "XDG_DATA_HOME" in problem.hint
    assert caught.value.exit_code is ExitCode.TRY_AGAIN


@pytest.mark.parametrize("length", [1, 300, 1000, 70_000])
@pytest.mark.parametrize("ended", [True, False])
def test_the_tail_is_whole_lines_of_any_length(data_home: Path, length: int, ended: bool) -> None:
    path = data_home / "x"
    lines = [f"{number} " + "é" * length for number in range(30)]
    path.write_text("\n".join(lines) + "\n" * ended)
    for count in (1, 2, 29, 30, 31, 1000):
        text, end = tail(path, count)
        assert text.splitlines() == lines[-count:]
        assert end == path.stat().st_size
    assert tail(path, 0)[0] == ""


def test_the_tail_of_what_is_no_text(data_home: Path) -> None:
    path = data_home / "x"
    path.write_text("")
    assert tail(path, 5) == ("", 0)
    path.write_bytes(b"\xff\xfe broken\n\n")
    assert tail(path, 2) == ("\ufffd\ufffd broken\n", 11)
