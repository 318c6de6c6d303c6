"""Tells the service manager how the instance is: sd_notify(3), datagrams to a Unix socket.

Without a manager every call does nothing. No call ever blocks or fails: a manager that does not
read loses messages, and the one that asked for signs of life draws its own conclusion.
"""

from __future__ import annotations

import array
import contextlib
import logging
import socket
import time

log = logging.getLogger(__name__)


class Notifier:
    """`address` is a path, `@name` for an abstract socket, or "" for nobody."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self._status = ""

    @property
    def wanted(self) -> bool:
        """Whether anybody is told."""
        return self._socket is not None

    def ready(self) -> None:
        """Requests are answered from here on; also ends a reload."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent when it changes."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def extend(self, seconds: float) -> None:
        """The present start, stop or reload may take so long from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def alive(self) -> None:
        """A sign of life, for the watchdog."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def keep(self, name: str, listener: socket.socket) -> None:
        """Has the manager hold the socket: the next start of this service gets it passed, and who
        connects meanwhile waits in its queue."""
        self._send("FDSTORE=1", f"FDNAME={name}", pass_on=(listener.fileno(),))

    def forget(self, name: str) -> None:
        """Has the manager close what it keeps under that name."""
        self._send("FDSTOREREMOVE=1", f"FDNAME={name}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str, pass_on: tuple[int, ...] = ()) -> None:
        if self._socket is None:
            return
        data = "\n".join(line.replace("\n", " ") for line in lines).encode()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", pass_on).tobytes())
        with contextlib.suppress(OSError):
            self._socket.sendmsg([data], [rights] if pass_on else [], 0, self._address)
