"""The HTTP side of one instance: the listening socket, the server on it, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenspeed.engine import EngineUnavailable
from tokenspeed.errors import Problem, TryAgainError, UnavailableError
from tokenspeed.server.keys import Keys, admit
from tokenspeed.server.listen import uvicorn_config
from tokenspeed.server.openai.errors import ApiError, unavailable

BACKLOG = 2048
# What is left to send once every request has ended.
FLUSH_SECONDS = 5


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that the address is ours before anything slow begins.

    Raises TryAgainError when the address is in use, UnavailableError when it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise _no_address(host, port, error) from error
    listener = socket.socket(family, kind, protocol)
    try:
        # Without this an address stays taken for a minute after its connections closed.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Bound alone is not enough: two bound sockets may share an address until one listens.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise TryAgainError(
                Problem(
                    code="TS-S220",
                    path="serve.port",
                    message=f"{host}:{port} is in use by another process",
                    hint=f"stop it (`tokenspeed ps`, `ss -ltnp sport = :{port}`), or take another "
                    "port: --set serve.port=0 takes a free one",
                )
            ) from error
        raise _no_address(host, port, error) from error
    listener.setblocking(False)
    return listener


def _no_address(host: str, port: int, error: OSError) -> UnavailableError:
    return UnavailableError(
        Problem(
            code="TS-S221",
            path="serve.host",
            message=f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="take an address of this machine, and a port from 1024 on: --set serve.host=… "
            "--set serve.port=…",
        )
    )


def url_of(listener: socket.socket) -> str:
    """The address to give to people: one that works from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Doorway:
    """The application of the server: a few answers of its own until the real one is in place.

    So probes are answered from the first moment on, also while weights are fetched.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.inner: ASGIApp | None = None
        self.stage = "starting"
        self.fraction = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            # The inner application's own life is begun and ended by who puts it in place.
            await receive()
            await send({"type": "lifespan.startup.complete"})
        elif self.inner is not None:
            await self.inner(scope, receive, send)
        else:
            await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        path = scope["path"]
        detail = f"{self.stage}, {self.fraction:.0%}"
        state = {"stage": self.stage, "percent": int(self.fraction * 100)}
        refusal = unavailable(EngineUnavailable("loading", detail))
        try:
            admit(scope, self._keys)
        except ApiError as error:
            refusal = error
        if path == "/livez":
            return JSONResponse({"status": "live"})
        if path == "/startupz":
            return JSONResponse({"status": "loading", **state}, 503, refusal.headers())
        if path in ("/readyz", "/health"):
            return JSONResponse({"status": "loading", "detail": detail}, 503, refusal.headers())
        return Response(refusal.body(), refusal.status, refusal.headers(), "application/json")


class Server(uvicorn.Server):
    """uvicorn on a socket of ours. Signals are ours too: draining comes before closing."""

    def __init__(self, app: ASGIApp) -> None:
        settings = {"backlog": BACKLOG, "timeout_graceful_shutdown": FLUSH_SECONDS}
        super().__init__(uvicorn_config(app, **settings))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def finish(self) -> None:
        """Closes the listener and idle connections; `serve` returns when the rest is sent."""
        self.should_exit = True

    def drop(self) -> None:
        """`serve` returns without waiting for anybody."""
        self.should_exit = True
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def ask(
    url: str, method: str, path: str, body: Any = None, seconds: float = 5.0, key: str = ""
) -> Any:
    """One request to an instance, with an API key if one is given: (status, decoded JSON or text).

    Raises OSError or http.client.HTTPException when there is no answer.
    """
    return await asyncio.to_thread(ask_now, url, method, path, body, seconds, key)


def ask_now(
    url: str, method: str, path: str, body: Any = None, seconds: float = 5.0, key: str = ""
) -> tuple[int, Any]:
    """`ask` for callers without an event loop."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=seconds)
    try:
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        data = response.read()
        kind = response.headers.get("Content-Type", "")
    finally:
        connection.close()
    if kind.startswith("application/json"):
        return response.status, json.loads(data)
    return response.status, data.decode(errors="replace")
