from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed.journal import JournalHandler, MessageFormatter, entry, leads_to_journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as it:
        it.bind(str(tmp_path / "journal"))
        it.settimeout(10)
        yield it


def record(message: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("tokenspeed.x", level, "x.py", 7, message, (), None)
    made.fields = fields
    return made


def test_fields_travel_beside_the_message(journal: socket.socket, tmp_path: Path) -> None:
    handler = JournalHandler(tmp_path / "journal")
    handler.setFormatter(MessageFormatter())
    handler.emit(record("it is 100 %", logging.ERROR, request_id="r-1", status=500))
    lines = journal.recv(65536).decode().splitlines()
    assert lines[:3] == ["MESSAGE=it is 100 %", "PRIORITY=3", "SYSLOG_IDENTIFIER=tokenspeed"]
    assert lines[-2:] == ["TS_REQUEST_ID=r-1", "TS_STATUS=500"]
    handler.put("a worker's line\n\nand one more")
    assert journal.recv(65536).startswith(b"MESSAGE=a worker's line\n")
    assert journal.recv(65536).startswith(b"MESSAGE=and one more\n")
    handler.close()


def test_a_text_of_several_lines_is_one_field() -> None:
    text = "one\ntwo"
    assert entry(record(text), text).startswith(b"MESSAGE\n" + struct.pack("<Q", 7) + b"one\ntwo\n")


def test_a_journal_that_does_not_read_blocks_nobody(journal: socket.socket, tmp_path: Path) -> None:
    handler = JournalHandler(tmp_path / "journal")
    handler.setFormatter(MessageFormatter())
    for number in range(10_000):
        handler.emit(record(f"line {number}"))
    assert handler.lost_lines > 0
    journal.close()  # lets the stuck writer go
    handler.close()


def test_a_stream_is_known_by_its_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file:
        found = os.fstat(file.fileno())
        assert leads_to_journal(f"{found.st_dev}:{found.st_ino}", file.fileno())
        assert not leads_to_journal("", file.fileno())
    assert not leads_to_journal("1:2", 999)
