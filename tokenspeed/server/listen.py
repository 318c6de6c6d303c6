"""How the application is put on a socket: uvicorn, and a protocol that knows half-closed clients.

A client may close its sending side and still read. On the wire that looks exactly like one who
left: only sending something tells them apart, since one who left answers with a reset. So while
an answer is awaited, such a client gets something now and then that it must ignore: before the
answer `102 Processing`, within a stream of events a comment. The reset then ends the request.

Requests are bounded before there is one: a head that is too long (431), or that or a body that
comes too slowly (408), ends its connection.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tokenspeed.engine import Hold
from tokenspeed.server.exchange import WRITE
from tokenspeed.server.openai.errors import ApiError

_PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
_COMMENT = b"3\r\n:\n\n\r\n"  # an empty comment of an event stream, as a chunk
# The first probe makes a client who left answer with a reset, the second one meets it.
_PROBE_SECONDS = (0.05, 0.2, 0.5, 1.0)
KEEP_ALIVE_SECONDS = 75

PATIENCE_SECONDS = 20.0  # for a whole head, and for each PATIENCE_BYTES of a body
PATIENCE_BYTES = 1024
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 256

_REASONS = {
    400: b"400 Bad Request",
    408: b"408 Request Timeout",
    431: b"431 Request Header Fields Too Large",
}


class HalfOpenHttp(HttpToolsProtocol):
    """uvicorn's protocol with bounds, and for which the end of the client's stream is not the
    client's end."""

    patience = PATIENCE_SECONDS
    _probes = 0
    _timer: asyncio.TimerHandle | None = None
    _slow: asyncio.TimerHandle | None = None
    _in_head = True
    _begins = False  # with the data that came last
    _heard = False
    _received = 0  # bytes of this head, or of the body since the last look
    _header_bytes = 0
    _refusal: ApiError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._begins = False
        # What ends a body is no part of the next head, however much of it came at once.
        in_head = self._in_head
        super().data_received(data)
        if in_head and self._in_head and not self._begins:
            self._received += len(data)
            if self._received > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(_long_head())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._begins = self._heard = True
        self._received = self._header_bytes = 0
        self._watch()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._header_bytes > MAX_HEAD_BYTES:
            self._refusal = _long_head()
            raise ValueError("the head is too long")  # which ends the parser

    def on_headers_complete(self) -> None:
        self._in_head, self._received = False, 0
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["extensions"] = {WRITE: {"chunk": partial(_write_chunk, self.cycle)}}

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._slow is not None:
            self._slow.cancel()
        # What follows is the next head, of which nothing has come yet.
        self._in_head, self._received = True, 0

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or ApiError(400, msg, code="invalid_http"))

    def eof_received(self) -> bool:  # type: ignore[override]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False  # nothing is awaited, or the request will never be complete
        if cycle.scope["http_version"] != "1.1" or self.scheme == "https":
            return False  # older clients know no interim answers, and TLS no half of a connection
        cycle.keep_alive = False
        self._probe()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._slow):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
        self._slow = self.loop.call_later(self.patience, self._look)

    def _look(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        waiting_for_us = self.flow.read_paused or (self._in_head and answering)
        if waiting_for_us or (not self._in_head and self._received >= PATIENCE_BYTES):
            self._received = 0
            self._watch()
        elif not self._heard:
            self.transport.close()
        elif not self.transport.is_closing():
            message = "The request was not complete in time."
            self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Ends the connection, with an answer where none is under way."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = error.body()
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n" % _REASONS[error.status]
            length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(head + length + body)
        self.transport.close()

    def _probe(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self.cycle.response_complete:
            return
        # With requests still in the pipeline the answer under way is not that of `cycle`.
        if not self.pipeline:
            if not self.cycle.response_started:
                self.transport.write(_PROCESSING)
            elif self.cycle.chunked_encoding:
                # Only event streams are chunked here; each write above us is a whole chunk.
                self.transport.write(_COMMENT)
        seconds = _PROBE_SECONDS[min(self._probes, len(_PROBE_SECONDS) - 1)]
        self._probes += 1
        self._timer = self.loop.call_later(seconds, self._probe)


def _write_chunk(cycle: RequestResponseCycle, data: bytes) -> Hold:
    """What `cycle.send` does with a piece of a body that has begun, without a coroutine."""
    if cycle.disconnected:
        return None
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return cycle.flow.drain if cycle.flow.write_paused else None


def _long_head() -> ApiError:
    message = f"The head may have {MAX_HEADERS} fields and {MAX_HEAD_BYTES} bytes."
    return ApiError(431, message, code="head_too_long")


def is_local(scope: Scope) -> bool:
    """Whether a request came through the instance's own Unix socket, which has a path and no port,
    in a folder that is closed to other users."""
    host, port = scope.get("server") or ("", 0)
    return port is None and host.startswith("/")


def uvicorn_config(app: ASGIApp, **settings: Any) -> uvicorn.Config:
    """The settings that the server's promises rest on; `settings` add to them (sockets, port)
    or replace them."""
    promised: dict[str, Any] = {
        "http": HalfOpenHttp,
        "ws": "none",
        "loop": "uvloop",
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
    }
    return uvicorn.Config(app, **(promised | settings))
