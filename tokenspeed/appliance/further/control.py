"""What the first front and a further one say to each other, over a pair of sockets.

    first    Take, Connect | Disconnect, Pause, SetLogLevel    whatever holds, once at the start and
                                                               then as it changes
             Open                                              the public is let in
             Ask, Granted                                      Ask is answered by a Report
             Drain                                             the end
    further  Report                                            twice a second, and when asked
             Use, Done                                         one request of a key with limits

Messages are framed like those between fronts and workers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from tokenspeed.server.company import Report as Said
from tokenspeed.wire import FrameError, FrameReader, framed

log = logging.getLogger(__name__)

# ---- to a further front


class Take(msgspec.Struct, frozen=True, tag="take"):
    """The plan to serve from now on, as JSON, and the key of the appliance's own requests."""

    plan: bytes
    made: str


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """A worker answers at this endpoint, or will."""

    endpoint: str


class Disconnect(msgspec.Struct, frozen=True, tag="disconnect"):
    why: str


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    paused: bool


class SetLogLevel(msgspec.Struct, frozen=True, tag="log_level"):
    level: str


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Take connections from the listener."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Finish open requests within `seconds` and exit 0. `held`: the listener's queue outlives this
    front, so take nobody more from it."""

    seconds: float
    held: bool


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    query: int


class Granted(msgspec.Struct, frozen=True, tag="granted"):
    """Answers a Use. `refusal` is "" where it may go on, else what to tell the client, which may
    come again after `seconds`."""

    query: int
    refusal: str = ""
    seconds: int = 0


# ---- to the first front


class Report(msgspec.Struct, frozen=True, tag="report"):
    """`query` is that of the Ask, 0 without one. `is_up`: a request would be taken now, or would be
    if the instance took any. `said` is None until the application is there."""

    query: int
    is_up: bool
    open_requests: int
    said: Said | None = None


class Use(msgspec.Struct, frozen=True, tag="use"):
    """A request of the key with this hash begins, if it may. Answered by Granted."""

    query: int
    digest: bytes
    rate: int | None
    concurrent: int | None


class Done(msgspec.Struct, frozen=True, tag="done"):
    """That request is over, whether it was granted or not."""

    query: int


Message = (
    Take | Connect | Disconnect | Pause | SetLogLevel | Open | Drain | Ask | Granted | Report
    | Use | Done
)  # fmt: skip
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Channel(asyncio.Protocol):
    """One end. `on_message` gets what the other one says; `on_end` is called once, when it is gone
    or says what nobody understands."""

    def __init__(self, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None

    async def open(self, connected: socket.socket) -> None:
        """Takes over the socket."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=connected)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = [_decoder.decode(frame) for frame in self._reader.feed(data)]
        except (FrameError, msgspec.MsgspecError) as error:
            log.error("a front does not understand another one: %s", error)
            self.close()
            return
        for message in messages:
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_end()

    def send(self, message: Message) -> None:
        """Never waits; nothing happens when the other end is gone."""
        data = framed(msgspec.msgpack.encode(message))
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
