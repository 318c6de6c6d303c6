"""How the application is put on a socket: uvicorn, and a protocol that knows half-closed clients.

A client may close its sending side and still read. On the wire that looks exactly like one who
left: only sending something tells them apart, since one who left answers with a reset. So while
an answer is awaited, such a client gets something now and then that it must ignore: before the
answer `102 Processing`, within a stream of events a comment. The reset then ends the request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
_COMMENT = b"3\r\n:\n\n\r\n"  # an empty comment of an event stream, as a chunk
# The first probe makes a client who left answer with a reset, the second one meets it.
_PROBE_SECONDS = (0.05, 0.2, 0.5, 1.0)
KEEP_ALIVE_SECONDS = 75


class HalfOpenHttp(HttpToolsProtocol):
    """uvicorn's protocol, except that the end of the client's stream is not the client's end."""

    _probes = 0
    _timer: asyncio.TimerHandle | None = None

    def eof_received(self) -> bool:  # type: ignore[override]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False  # nothing is awaited, or the request will never be complete
        if cycle.scope["http_version"] != "1.1":
            return False  # older clients know no interim answers
        cycle.keep_alive = False
        self._probe()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

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
