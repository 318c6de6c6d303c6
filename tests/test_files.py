"""Files that somebody named, whatever they are."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tokenspeed.files import read_bounded, read_regular


def test_what_is_short_enough_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == read_bounded(path, 5) == b"12345"
    for read in (read_regular, read_bounded):
        with pytest.raises(OSError, match="File too large") as caught:
            read(path, 4)
        assert caught.value.errno == errno.EFBIG


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for it in (path, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"regular file|directory"):
            read_regular(it)
