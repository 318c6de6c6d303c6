"""Files that somebody named, whatever they are."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokenspeed.files import read_bounded, read_regular, write_whole


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


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """Files cannot grow beyond `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path, link = tmp_path / "a.lock", tmp_path / "link"
    write_whole(path, b"first")
    path.chmod(0o640)
    link.symlink_to("a.lock")
    with little_room(100):
        for name in (path, link, tmp_path / "new"):
            with pytest.raises(OSError, match="File too large"):
                write_whole(name, b"x" * 101)
    assert path.read_bytes() == b"first"
    assert sorted(tmp_path.iterdir()) == [path, link]
    write_whole(link, b"second")
    assert path.read_bytes() == b"second" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_what_is_no_regular_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"all of it")
    assert os.read(reader, 99) == b"all of it"
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]
    with pytest.raises(OSError, match="No space left"):
        write_whole(Path("/dev/full"), b"x")
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"x")


def test_names_that_leave_no_room_for_a_draft_are_written_directly(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_whole(path, b"x")
    assert path.read_bytes() == b"x"
