"""The socket to one worker, driven by the event loop's readiness callbacks.

Costs a tenth of `zmq.asyncio` per frame, which counts: a lone stream wakes the front once a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

# Frames handled before other callbacks of the loop get their turn.
FRAMES_PER_TURN = 256

# As plain integers: the flags of an enumeration take longer to combine than a frame to receive.
_EVENTS, _READABLE, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


class Link:
    """A connected DEALER. Must be made, used and closed on the event loop."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        identity: bytes,
        endpoint: str,
        linger_ms: int,
        on_frame: Callable[[bytes], None],
    ) -> None:
        """`on_frame` gets each frame; the endpoint need not exist yet."""
        self._on_frame = on_frame
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity)
        self._socket.setsockopt(zmq.LINGER, linger_ms)
        # No limit: what is under way is bounded by admission, and a full queue would block us.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint)
        descriptor = self._socket.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        self._descriptor = descriptor
        self._loop.add_reader(self._descriptor, self._on_readable)

    def send(self, frame: bytes) -> None:
        """Queues the frame. Never waits."""
        self._socket.send(frame, zmq.NOBLOCK)
        # The descriptor only reports changes, and sending may have swallowed one.
        self._loop.call_soon(self._on_readable)

    def close(self) -> None:
        """Lets go of the socket; queued frames have `linger_ms` to leave."""
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close()

    def _on_readable(self) -> None:
        for _ in range(FRAMES_PER_TURN):
            # Asking first is cheaper than the exception that says "nothing there".
            if self._socket.closed or not int(self._socket.getsockopt(_EVENTS)) & _READABLE:
                return
            # Messages of this protocol have one frame each: asking whether more follow would
            # cost as much as receiving.
            self._on_frame(self._socket.recv(_NOBLOCK))
        self._loop.call_soon(self._on_readable)
