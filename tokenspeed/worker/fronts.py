"""The worker's listening socket and the fronts that are connected to it: frames in, frames out.

Nothing here waits but `wait`. A front that hangs up, or that does not read what is sent to it, is
gone, and its connection is closed: nobody's memory grows for it.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable

from tokenspeed.wire import READ_BYTES, FrameError, FrameReader, framed

# What may wait for one front before it counts as gone.
MAX_UNSENT_BYTES = 64 << 20
_BACKLOG = 64


class Connection:
    """One front's. `front` is its id, "" until it has said it. `deaf`: it has hung up, though
    frames may be left that it sent before."""

    __slots__ = ("deaf", "front", "reader", "socket", "unsent")

    def __init__(self, connected: socket.socket) -> None:
        self.front = ""
        self.deaf = False
        self.socket = connected
        self.reader = FrameReader()
        self.unsent = bytearray()


class Fronts:
    """All connections of one endpoint."""

    def __init__(self, path: str, on_gone: Callable[[str, str], None]) -> None:
        """Listens at `path`; raises OSError when it cannot. `on_gone` gets a front's id and why
        it is no longer one, within any call of the other methods."""
        self._on_gone = on_gone
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(path)
            self._listener.listen(_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._by_front: dict[str, Connection] = {}
        # None: the connection has ended, after the frames before it.
        self._received: deque[tuple[Connection, bytes | None]] = deque()
        self.bad_streams = 0

    @property
    def ids(self) -> tuple[str, ...]:
        """The fronts that are connected and have said who they are."""
        return tuple(self._by_front)

    def wait(self, seconds: float) -> None:
        """Until something comes, or so long."""
        if not self._received:
            self._attend(seconds)

    def receive(self) -> tuple[Connection, bytes] | None:
        """The next frame that is there, None for none."""
        if not self._received:
            self._attend(0)
        while self._received:
            connection, frame = self._received.popleft()
            if frame is None:
                self._close(connection, "is gone")
            elif connection.socket.fileno() >= 0:
                return connection, frame
        return None

    def name(self, connection: Connection, front: str) -> bool:
        """Says whose connection it is; False when it is another one's already. A front that
        connects again takes over from its former self."""
        if connection.front != front:
            if connection.front:
                return False
            former = self._by_front.get(front)
            if former is not None:
                self._close(former, "connected again")
            connection.front = front
            self._by_front[front] = connection
        return True

    def send(self, front: str, payload: bytes) -> None:
        """Sends or queues a frame; nothing happens when the front is gone."""
        connection = self._by_front.get(front)
        if connection is None or connection.deaf:
            return
        data = framed(payload)
        if connection.unsent:
            connection.unsent += data
            if len(connection.unsent) > MAX_UNSENT_BYTES:
                self._close(connection, "does not read")
            return
        sent = self._write(connection, data)
        if sent < len(data) and not connection.deaf:
            connection.unsent += data[sent:]
            self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def close(self, seconds: float) -> None:
        """Sends what is queued, for so long at most."""
        deadline = time.monotonic() + seconds
        while any(one.unsent for one in self._connections.values()):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._attend(left)
        for connection in self._connections.values():
            connection.socket.close()
        self._listener.close()
        self._poll.close()

    def _attend(self, seconds: float) -> None:
        for descriptor, events in self._poll.poll(seconds):
            connection = self._connections.get(descriptor)
            if connection is None:
                self._accept()
                continue
            if events & select.EPOLLOUT:
                self._flush(connection)
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._read(connection)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        connected.setblocking(False)
        self._connections[connected.fileno()] = Connection(connected)
        self._poll.register(connected, select.EPOLLIN)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(READ_BYTES)
            frames = connection.reader.feed(data)
        except BlockingIOError:
            return
        except ConnectionError:
            data, frames = b"", []
        except FrameError:
            self.bad_streams += 1
            data, frames = b"", []
        self._received += [(connection, frame) for frame in frames]
        if not data:
            self._poll.unregister(connection.socket)  # or its end would be reported for ever
            self._mute(connection)
            self._received.append((connection, None))

    def _flush(self, connection: Connection) -> None:
        sent = self._write(connection, connection.unsent)
        del connection.unsent[:sent]
        if not connection.unsent:
            self._poll.modify(connection.socket, select.EPOLLIN)

    def _write(self, connection: Connection, data: bytes | bytearray) -> int:
        """Bytes that the kernel took."""
        try:
            return connection.socket.send(data)
        except BlockingIOError:
            return 0
        except ConnectionError:
            self._mute(connection)  # reading meets its end, after what it sent before
            return 0

    @staticmethod
    def _mute(connection: Connection) -> None:
        connection.deaf = True
        connection.unsent.clear()

    def _close(self, connection: Connection, why: str) -> None:
        descriptor = connection.socket.fileno()
        if descriptor < 0:
            return
        del self._connections[descriptor]
        connection.socket.close()  # which takes it out of the poll, too
        self._mute(connection)
        if connection.front:
            del self._by_front[connection.front]
            self._on_gone(connection.front, why)
