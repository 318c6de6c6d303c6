"""The outermost layer: every request has an id, every error the envelope, every answer is counted.

A client's X-Request-Id is kept when it is short and printable, else replaced.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Collection, Mapping

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenspeed.metrics import Metrics
from tokenspeed.server.anthropic.errors import error_body, speaks_anthropic
from tokenspeed.server.exchange import ClientGone, drop_rest, send_json
from tokenspeed.server.openai.answering import ANSWERING, Answering
from tokenspeed.server.openai.errors import ApiError, internal_error
from tokenspeed.server.recent import Recent
from tokenspeed.server.tracing import Trace, Tracer, parents

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
PROBES = frozenset(
    {"/livez", "/readyz", "/health", "/startupz", "/metrics", "/status", "/status.json"}
)
CLIENT_GONE = 499  # never sent; how the log and the metrics name a client who left


class Boundary:
    """Wraps an application; see the module. `routes` are the paths that metrics tell apart;
    `recent` gets the errors, `tracer` what became of each request. `log_requests` may change
    meanwhile."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        routes: Collection[str],
        log_requests: bool,
        recent: Recent,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._recent = recent
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)
        self.log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        # Each kind of client reports the id that it finds under its own name.
        anthropic = speaks_anthropic(scope["path"])
        names = [b"x-request-id", b"request-id"] if anthropic else [b"x-request-id"]
        began, status, is_read = time.monotonic(), 0, False

        async def heard() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *((name, request_id) for name in names),
                ]
            await send(message)

        try:
            await self._app(scope, heard, marked)
        except ClientGone:
            self._metrics.requests_cancelled.inc()
            status = CLIENT_GONE
        except Exception as error:
            if status:
                raise  # too late for a status: the connection is closed, which the client sees
            if not is_read and not _is_too_large(error):
                await drop_rest(scope, receive)
            await _send_error(marked, error, request_id, anthropic)
        finally:
            route = scope["path"] if scope["path"] in self._routes else "other"
            self._metrics.http_requests.labels(route, str(status)).inc()
            if status >= 400 and scope["path"] not in PROBES:
                self._recent.note(scope["method"], scope["path"], status, request_id.decode())
            if self._tracer is not None and scope["path"] not in PROBES:
                self._trace(self._tracer, scope, route, status, began, request_id)
            if self.log_requests:
                self._log(scope, status, time.monotonic() - began, request_id)

    def _trace(
        self, tracer: Tracer, scope: Scope, route: str, status: int, began: float, request_id: bytes
    ) -> None:
        answering: Answering | None = scope.get(ANSWERING)
        parent, state = parents(scope["headers"])
        tracer.record(
            Trace(
                method=scope["method"],
                route=route,
                status=status,
                request_id=request_id.decode(),
                parent=parent,
                state=state,
                model="" if answering is None else answering.options.model,
                began=began,
                ended=time.monotonic(),
                sequences=() if answering is None else answering.traces(),
            )
        )

    def _log(self, scope: Scope, status: int, seconds: float, request_id: bytes) -> None:
        fields = {
            "status": status,
            "seconds": round(seconds, 3),
            "request_id": request_id.decode(),
        }
        # Probes ask several times a second; their lines would bury the others.
        level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
        log.log(level, "%s %s", scope["method"], scope["path"][:200], extra={"fields": fields})


async def _send_error(send: Send, error: Exception, request_id: bytes, anthropic: bool) -> None:
    of_route: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        of_route = error.headers or {}  # Allow, with 405
        error = _of_route(error)
    if not isinstance(error, ApiError):
        log.error("request %s failed", request_id.decode(), exc_info=error)
        error = internal_error()
    headers = {**error.headers(), **of_route}
    if error.status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    body = error_body(error, request_id.decode()) if anthropic else error.body()
    await send_json(send, error.status, body, headers)


def _is_too_large(error: Exception) -> bool:
    """Whether as much of the body was read as ever is."""
    return isinstance(error, ApiError) and error.status == 413


def _of_route(error: HTTPException) -> ApiError:
    """Starlette's own errors: no such path, wrong method."""
    message = {
        404: "There is no such path; /openapi.json lists them, /status is a page for people.",
        405: "This path does not take that method.",
    }
    code = {404: "not_found", 405: "method_not_allowed"}
    return ApiError(
        error.status_code,
        message.get(error.status_code, error.detail),
        code=code.get(error.status_code),
    )


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return bytes(value)
    return f"req-{secrets.token_hex(12)}".encode()
