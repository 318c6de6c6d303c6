"""A bare front: a socket that speaks the wire protocol and waits."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from pathlib import Path

from tokenspeed import wire

DEADLINE = 60.0


def connected(path: Path | str) -> socket.socket:
    """A connection to the worker at `path`, as soon as it listens."""
    deadline = time.monotonic() + DEADLINE
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            made.close()
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.01)
        else:
            return made


class BareFront:
    """Says what it is told to, and hears one message after the other."""

    def __init__(self, name: str, path: Path | str) -> None:
        self.name = name
        self.socket = connected(path)
        self._reader = wire.FrameReader()
        self._frames: deque[bytes] = deque()

    def say(self, body: wire.FrontMessage) -> None:
        self.say_raw(wire.encode_to_worker(body, self.name))

    def say_raw(self, payload: bytes) -> None:
        self.socket.sendall(wire.framed(payload))

    def hears(self) -> bool:
        """Whether something is there already."""
        return bool(self._frames) or bool(select.select([self.socket], [], [], 0)[0])

    def hear(self) -> wire.WorkerMessage:
        while not self._frames:
            assert select.select([self.socket], [], [], DEADLINE)[0], "the worker is silent"
            data = self.socket.recv(wire.READ_BYTES)
            assert data, "the worker hung up"
            self._frames += self._reader.feed(data)
        envelope = wire.decode_from_worker(self._frames.popleft())
        assert envelope.front_id == self.name
        return envelope.body

    def close(self) -> None:
        self.socket.close()
