"""A small service manager: what systemd does for a Type=notify service with a socket unit.

It holds the listening socket, passes it to each start, reads the notifications, keeps the
descriptors it is given, and starts the service again when told to.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import threading
from pathlib import Path

from tests.appliance.live import TOKENSPEED, Front, Home, until

_PASS_ON = 'exec 3<&"$0"; export LISTEN_PID=$$; exec "$@"'


class Manager:
    """`listener` None: nothing is passed but what the service itself had kept."""

    def __init__(self, home: Home, listener: socket.socket | None) -> None:
        self.home = home
        self.listener = listener
        self.kept: dict[str, int] = {}
        self.messages: list[dict[str, str]] = []
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = home.path / "notify"
        self._notify.bind(str(self._path))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, recipe: Path, *options: str, watchdog: float | None = None) -> Front:
        """One start of the service; the messages begin anew."""
        self.messages = []
        environment = {"NOTIFY_SOCKET": str(self._path)}
        if watchdog is not None:
            environment["WATCHDOG_USEC"] = str(round(watchdog * 1e6))
        command = [*TOKENSPEED, "up", str(recipe)]
        passed: dict[str, int] = {}
        if self.listener is not None:
            passed = {"tokenspeed@.socket": self.listener.fileno()}
        elif self.kept:
            passed = self.kept
        if not passed:
            return self.home.up(recipe, *options, environment=environment)
        ((name, number),) = passed.items()
        environment |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": name}
        command = ["bash", "-c", _PASS_ON, str(number), *command]
        return self.home.up(
            recipe, *options, environment=environment, command=command, pass_fds=(number,)
        )

    def wait_for(self, name: str, value: str, front: Front) -> None:
        def told() -> bool:
            assert front.process.poll() is None, f"it ended:\n{front.output}"
            return any(message.get(name) == value for message in self.messages)

        until(told, f"{name}={value}")

    def said(self, name: str) -> list[str]:
        return [message[name] for message in self.messages if name in message]

    def stop(self, front: Front) -> int:
        return front.stop(signal.SIGTERM)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._notify.shutdown(socket.SHUT_RDWR)
        self._reader.join(5)
        self._notify.close()
        for number in self.kept.values():
            os.close(number)

    def _read(self) -> None:
        room = socket.CMSG_LEN(array.array("i").itemsize)
        while True:
            try:
                data, rights, _, _ = self._notify.recvmsg(4096, room)
            except OSError:
                return
            if not data:
                return
            message = dict(line.split("=", 1) for line in data.decode().splitlines())
            numbers = array.array("i")
            for _, _, payload in rights:
                numbers.frombytes(payload)
            if message.get("FDSTORE") == "1":
                self.kept[message["FDNAME"]] = numbers[0]
            self.messages.append(message)
