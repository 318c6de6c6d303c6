"""Log records for the system's journal, with their fields: its own protocol, one datagram each.

A service's standard error leads to the journal anyway, but as bare lines. Where it does, records
are sent beside it, so that `journalctl TS_STATUS=500` and `journalctl -p err` find them.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
from pathlib import Path

from tokenspeed.log import Fields, QueueHandler, fields_of

SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "tokenspeed"
_NAME = re.compile(r"[^A-Z0-9_]")
# syslog's severities.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def leads_to_journal(stream: str, descriptor: int) -> bool:
    """Whether the descriptor is the stream `device:inode` that systemd connected to the journal."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(QueueHandler):
    """Like its parent it never blocks who logs; lines without a record are messages alone."""

    def __init__(self, path: Path = SOCKET) -> None:
        """Raises OSError when there is no journal."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.connect(str(path))
        super().__init__(self._socket.fileno())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.put_data(entry(record, self.format(record)))
        except Exception:  # a bad format argument must not end a request
            self.put(f"log message could not be rendered: {record.msg!r}")

    def put(self, line: str) -> None:
        for part in line.splitlines():
            if part.strip():
                self.put_data(_encoded({"MESSAGE": part, "SYSLOG_IDENTIFIER": IDENTIFIER}))

    def close(self) -> None:
        super().close()
        self._socket.close()


class MessageFormatter(logging.Formatter):
    """The message and a traceback: time, level and fields travel beside it."""


def entry(record: logging.LogRecord, message: str) -> bytes:
    """One datagram. Fields of the record become TS_<NAME>."""
    fields: Fields = {
        "MESSAGE": message,
        "PRIORITY": next((p for level, p in _PRIORITIES if record.levelno >= level), _DEBUG),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "LOGGER": record.name,
        "CODE_FILE": record.pathname,
        "CODE_LINE": record.lineno,
    }
    own = {f"TS_{_NAME.sub('_', key.upper())}": value for key, value in fields_of(record).items()}
    return _encoded(fields | own)


def _encoded(fields: Fields) -> bytes:
    parts = []
    for name, value in fields.items():
        data = str(value).encode(errors="backslashreplace")
        if b"\n" in data:  # with its length, since a line's end would end it
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)
