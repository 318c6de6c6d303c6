"""The socket to one worker, driven by the event loop's readiness callbacks."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from tokenspeed.wire import READ_BYTES, FrameError, FrameReader, framed

log = logging.getLogger(__name__)

# How often it is looked whether the worker listens already.
RETRY_SECONDS = 0.02
# Reads before other callbacks of the loop get their turn.
READS_PER_TURN = 16


class Link:
    """A connection that makes itself. Must be made, used and closed on the event loop.

    A worker that is gone shows as silence here: who started it knows first, and closes the link.
    One that lives and hung up, since this front did not read, is connected again.
    """

    def __init__(
        self, path: str, on_frames: Callable[[list[bytes]], None], on_again: Callable[[], None]
    ) -> None:
        """`on_frames` gets the frames that are there, at least one; the path need not exist yet.
        `on_again`: the worker hung up and takes frames again, of what was before it knows nothing.
        Raises OSError when there can be no socket at the path."""
        self._path = path
        self._on_frames = on_frames
        self._on_again = on_again
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._lost = False
        self._connect()

    def send(self, payload: bytes) -> None:
        """Sends or queues a frame. Never waits."""
        data = framed(payload)
        if self._socket is None or self._unsent:
            # No limit: what is under way is bounded by admission.
            self._unsent += data
            return
        sent = self._write(self._socket, data)
        if sent < len(data) and self._socket is not None:
            self._unsent += data[sent:]
            self._loop.add_writer(self._socket, self._on_writable)

    def close(self) -> None:
        """Lets go of the socket. Frames that the kernel has not taken are lost."""
        self._unsent.clear()
        if self._retry is not None:
            self._retry.cancel()
        if self._socket is not None:
            self._drop(self._socket)

    def _connect(self) -> None:
        self._retry = None
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            made.connect(self._path)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            made.close()
            self._later()
            return
        except OSError:
            made.close()
            raise
        self._socket = made
        self._loop.add_reader(made, self._on_readable)
        if self._lost:
            self._lost = False
            self._unsent.clear()  # what was asked meanwhile has ended, too
            self._on_again()
        if self._unsent:
            self._loop.add_writer(made, self._on_writable)

    def _later(self) -> None:
        self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        try:
            self._connect()
        except OSError as error:
            # Such as too many open files, of which requests that end give some back.
            log.debug("no connection to the worker yet: %s", error)
            self._later()

    def _on_readable(self) -> None:
        connected = self._socket
        assert connected is not None
        frames: list[bytes] = []
        ended = False
        for _ in range(READS_PER_TURN):
            try:
                data = connected.recv(READ_BYTES)
                frames += self._reader.feed(data)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            except FrameError as error:
                log.warning("the worker sends something else than frames: %s", error)
                data = b""
            ended = not data
            if len(data) < READ_BYTES:
                break
        if frames:
            self._on_frames(frames)
        # Whoever took the frames may have closed this link, or met its end while sending.
        if ended and self._socket is connected:
            self._hung_up(connected)

    def _on_writable(self) -> None:
        assert self._socket is not None
        sent = self._write(self._socket, self._unsent)
        del self._unsent[:sent]
        if not self._unsent and self._socket is not None:
            self._loop.remove_writer(self._socket)

    def _write(self, to: socket.socket, data: bytes | bytearray) -> int:
        """Bytes that the kernel took."""
        try:
            return to.send(data)
        except BlockingIOError:
            return 0
        except ConnectionError:
            self._hung_up(to)
            return 0

    def _hung_up(self, was: socket.socket) -> None:
        self._drop(was)
        self._lost = True
        self._reader = FrameReader()
        self._unsent.clear()
        self._later()

    def _drop(self, was: socket.socket) -> None:
        self._loop.remove_reader(was)
        self._loop.remove_writer(was)
        was.close()
        self._socket = None
