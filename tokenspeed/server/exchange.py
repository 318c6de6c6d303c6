"""One HTTP exchange over ASGI: the body in, JSON or events out, and a client who may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from tokenspeed.engine import Hold
from tokenspeed.server.openai.errors import ApiError, bad_request, out_of_time

LINGER_BYTES = 32 << 20


class ClientGone(Exception):  # noqa: N818 - not a mistake of anyone
    """The client closed the connection; there is nobody to answer."""


async def read_json(
    scope: Scope,
    receive: Receive,
    max_bytes: int,
    decode: Callable[[bytes], Any] = msgspec.json.decode,
) -> Any:
    """The decoded body; `decode` raises what msgspec's does. Raises ApiError 413 when it is too
    large, 415 when its headers say that it is something else than JSON, 400 when it is not JSON."""
    _check_kind(scope["headers"])
    body = await _read_body(scope, receive, max_bytes)
    try:
        return decode(body)
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise bad_request("The body is not UTF-8.", code="invalid_json") from None


async def drop_rest(scope: Scope, receive: Receive) -> None:
    """Reads what a client still sends before it is refused, where the connection ends with that.

    Closed while it sends, it would be reset, and the client, or the proxy before it, would never
    see the answer. Others are read on anyway, for their next request.
    """
    headers = dict(scope["headers"])
    ends = scope["http_version"] == "1.0" or b"close" in headers.get(b"connection", b"").lower()
    if not ends or b"expect" in headers:
        return
    size = 0
    while size <= LINGER_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def _check_kind(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """No header at all is taken for JSON; other kinds are what forms of web pages can send."""
    for name, value in headers:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            if kind != b"application/json" and not kind.endswith(b"+json"):
                shown = kind[:60].decode("latin-1")
                message = (
                    f"The body must be sent as 'Content-Type: application/json', not {shown!r}."
                )
                raise ApiError(415, message, code="unsupported_media_type")
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            shown = value[:60].decode("latin-1")
            message = f"'Content-Encoding: {shown}' is not supported: send the body as it is."
            raise ApiError(415, message, code="unsupported_encoding")


async def _read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    too_large = ApiError(
        413,
        f"The body is larger than the {max_bytes} bytes that this server takes.",
        code="body_too_large",
    )
    # A client that is still sending does not read: up to here its body is read and thrown away,
    # so that it gets to see the answer.
    patience = max_bytes + LINGER_BYTES
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > patience:
            raise too_large
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
        if size > patience:
            raise too_large
        if not message.get("more_body", False):
            break
    if size > max_bytes:
        raise too_large
    return b"".join(chunks)


@asynccontextmanager
async def while_connected(receive: Receive, seconds: float | None = None) -> AsyncIterator[None]:
    """Cancels its body, at whatever it waits for, when the client leaves: raises ClientGone; or
    when the time is over, where it is limited: raises ApiError 504.

    The body of the request must have been read.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    limit = asyncio.timeout(None if seconds is None else max(0.0, seconds))
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise out_of_time() from None
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        watcher.cancel()


async def send_json(
    send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


# The extension of ASGI's scope by whose "chunk" `listen` writes a piece of the answer's body at
# once: bytes -> what to wait for before the next one, None for nothing.
WRITE = "tokenspeed.write"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request whose body was read, and its answer. `headers` are some of the answer's."""

    scope: Scope
    receive: Receive
    send: Send
    headers: Mapping[str, str]


class EventStream:
    """Server-sent events. The status line goes out with the first of them, so that everything
    that fails before it still has a status of its own."""

    def __init__(self, exchange: Exchange) -> None:
        extension = exchange.scope.get("extensions", {}).get(WRITE)
        self._write: Callable[[bytes], Hold] = extension["chunk"] if extension else self._sent
        self._exchange = exchange
        self._early: list[bytes] = []  # what waits for the status line
        self._ready = False
        self.started = False

    def write(self, frames: bytes) -> Hold:
        """Returns what to wait for before the next frames, None for nothing."""
        if self._ready:
            return self._write(frames)
        self._early.append(frames)
        return self._begin

    def _sent(self, frames: bytes) -> Hold:
        """For other servers than ours."""
        message = {"type": "http.response.body", "body": frames, "more_body": True}
        return partial(self._exchange.send, message)

    async def flush(self, frames: bytes) -> None:
        """Writes, and waits while the client does not read."""
        hold = self.write(frames)
        if hold is not None:
            await hold()

    async def _begin(self) -> None:
        if self.started:
            return  # another choice was the first
        self.started = True
        fields = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            # Proxies of the nginx kind would otherwise collect events before passing them on.
            (b"x-accel-buffering", b"no"),
            *((name.encode(), value.encode()) for name, value in self._exchange.headers.items()),
        ]
        start = {"type": "http.response.start", "status": 200, "headers": fields}
        await self._exchange.send(start)
        hold = self._write(b"".join(self._early))
        self._ready = True
        if hold is not None:
            await hold()

    async def finish(self, frames: bytes = b"") -> None:
        """The last frames, and the end of the answer: the whole of it, where it came at once."""
        if not self._ready:
            await self._begin()
        await self._exchange.send({"type": "http.response.body", "body": frames})


def ignored_header(names: tuple[str, ...]) -> dict[str, str]:
    """X-Ignored-Fields: names of the body's fields that had no effect, cut to a bounded length."""
    shown = [_printable(name) for name in names[:50]]
    text = ", ".join(shown)[:1000]
    return {"x-ignored-fields": text} if text else {}


def _printable(name: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() and c != "," else "?" for c in name[:100])
