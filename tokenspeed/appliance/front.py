"""The HTTP side of one instance: the listening socket, the server on it, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenspeed.appliance.admin import RELOAD
from tokenspeed.appliance.instance import UNIX, cannot_write
from tokenspeed.engine import EngineUnavailable
from tokenspeed.errors import Problem, TryAgainError, UnavailableError
from tokenspeed.plan import ServePlan
from tokenspeed.server.keys import Keys, admit
from tokenspeed.server.listen import is_local, uvicorn_config
from tokenspeed.server.openai.errors import ApiError, unavailable
from tokenspeed.server.tls import Tls

BACKLOG = 2048
# What is left to send once every request has ended.
FLUSH_SECONDS = 5
READINESS = frozenset({"/readyz", "/health"})


def listen_for_metrics(serve: ServePlan) -> socket.socket | None:
    """The listener for metrics alone, where the plan has one. Raises as `listen`."""
    if serve.metrics_port is None:
        return None
    return listen(serve.host, serve.metrics_port, "observability.metrics_port")


def listen(host: str, port: int, key: str = "serve.port") -> socket.socket:
    """A listening socket, so that the address is ours before anything slow begins. `key` is where
    the recipe gives the port.

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
                    path=key,
                    message=f"{host}:{port} is in use by another process",
                    hint=f"stop it (`tokenspeed ps`, `ss -ltnp sport = :{port}`), or use another "
                    f"port: --set {key}=…" + " (0 takes a free one)" * (key == "serve.port"),
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
            hint="use an address of this machine, and a port of 1024 or above: --set serve.host=… "
            "--set serve.port=…",
        )
    )


def listen_here(path: Path) -> socket.socket:
    """A listening Unix socket in a private folder. Raises TryAgainError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise cannot_write(path, error) from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The address to give to people: one that works from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Doorway:
    """The application of the server: a few answers of its own until the real one is in place.

    So probes are answered from the first moment on, also while weights are fetched. The public is
    let in once `is_open`; the instance's own Unix socket leads to the application before, and to
    `local`, which reloads.
    `farewell`: each connection ends with its next answer. `active` counts open requests.
    """

    def __init__(self, keys: Keys, tls: Tls | None = None) -> None:
        self._keys = keys
        self._tls = tls
        self.inner: ASGIApp | None = None
        self.local: ASGIApp | None = None
        self.is_open = False
        self.farewell = False
        self.active = 0
        self.stage = "starting"
        self.fraction = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            # The inner application's own life is begun and ended by who puts it in place.
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return
        if self._tls is not None:
            self._tls.refresh()
        self.active += 1
        try:
            app = self._app_for(scope)
            await app(scope, receive, _with_close(send) if self.farewell else send)
        finally:
            self.active -= 1

    def _app_for(self, scope: Scope) -> ASGIApp:
        if self.farewell and scope["path"] in READINESS:
            return JSONResponse({"status": "draining", "detail": "it stops"}, 503)
        if self.local is not None and scope["path"] == RELOAD and is_local(scope):
            return self.local
        if self.inner is not None and (self.is_open or is_local(scope)):
            return self.inner
        return self._answer(scope)

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
        if path in READINESS:
            return JSONResponse({"status": "loading", "detail": detail}, 503, refusal.headers())
        return Response(refusal.body(), refusal.status, refusal.headers(), "application/json")


def _with_close(send: Send) -> Send:
    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return closing


class Server(uvicorn.Server):
    """uvicorn on sockets of ours: `serve([])`, then `open_local` and `open`. Signals are ours too:
    draining comes before closing."""

    def __init__(self, app: ASGIApp, tls: Tls | None = None) -> None:
        self._tls = tls
        settings = {"backlog": BACKLOG, "timeout_graceful_shutdown": FLUSH_SECONDS}
        super().__init__(uvicorn_config(app, **settings))
        self._begun = asyncio.Event()
        self._public: asyncio.AbstractServer | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._begun.set()

    async def open(self, listener: socket.socket) -> None:
        """Begins to accept from the public."""
        await self._begun.wait()
        loop = asyncio.get_running_loop()
        tls = None if self._tls is None else self._tls.context
        server = await loop.create_server(self._protocol, sock=listener, ssl=tls, backlog=BACKLOG)
        self._public = server
        self.servers.append(server)

    async def open_metrics(self, listener: socket.socket) -> None:
        """Begins to accept who asks for metrics."""
        await self._begun.wait()
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(self._protocol, sock=listener))

    async def open_local(self, listener: socket.socket) -> None:
        """Begins to accept from this machine's own tools."""
        await self._begun.wait()
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_unix_server(self._protocol, sock=listener))

    def pause(self) -> None:
        """Accepts nobody more from the public; connections stay."""
        if self._public is not None:
            self._public.close()

    def _protocol(self, _loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=_loop,
        )
        return protocol

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

    `url` is http://host:port, or unix: and the path of a socket.

    Raises OSError or http.client.HTTPException when there is no answer.
    """
    return await asyncio.to_thread(ask_now, url, method, path, body, seconds, key)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket at a path."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(url: str, seconds: float) -> http.client.HTTPConnection:
    if url.startswith(UNIX):
        return _UnixConnection(url.removeprefix(UNIX), seconds)
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=seconds)


def ask_now(
    url: str, method: str, path: str, body: Any = None, seconds: float = 5.0, key: str = ""
) -> tuple[int, Any]:
    """`ask` for callers without an event loop."""
    connection = _connection(url, seconds)
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
