"""Runs the sequences of a request and sends the answer: whole, or as events of some shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

import msgspec

from tokenspeed.engine import Hold
from tokenspeed.server.exchange import (
    ClientGone,
    EventStream,
    Exchange,
    send_json,
    while_connected,
)
from tokenspeed.server.openai.answering import Answering
from tokenspeed.server.openai.choice import Choice, Piece
from tokenspeed.server.openai.errors import ApiError, internal_error
from tokenspeed.server.openai.stream import DONE, ChunkFrames, json_line

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2.0  # for a client to take the error that ends its stream


class Shape(Protocol):
    """What one endpoint's answers look like."""

    def whole(self, answering: Answering, pieces: list[list[Piece]]) -> dict[str, Any]:
        """The body of a buffered answer; `pieces` per choice."""
        ...

    def frames(self, answering: Answering) -> ChunkFrames: ...

    def opening(self, frames: ChunkFrames, choice: Choice) -> bytes:
        """Frames before a choice's first piece."""
        ...

    def piece(self, frames: ChunkFrames, choice: Choice, piece: Piece) -> bytes:
        """Frames of a piece, b"" when it shows nothing yet."""
        ...


async def send_whole(
    answering: Answering,
    shape: Shape,
    exchange: Exchange,
) -> None:
    """Waits for every choice, then answers with one JSON body."""
    gathered: list[list[Piece]] = [[] for _ in answering.choices]
    async with while_connected(exchange.receive, answering.seconds_left()):
        await answering.run(lambda choice, piece: gathered[choice.index].append(piece))
    body = msgspec.json.encode(shape.whole(answering, gathered))
    await send_json(exchange.send, 200, body, exchange.headers)


async def send_events(
    answering: Answering,
    shape: Shape,
    exchange: Exchange,
) -> None:
    """Streams pieces as they come."""
    write, left = partial(_write_events, answering, shape), answering.seconds_left()
    await _stream_answer(exchange, write, _failure, left)


class NamedEvents(Protocol):
    """An answer as events that have names."""

    def events(self, piece: Piece) -> Iterable[dict[str, Any]]: ...

    def failure(self, error: ApiError) -> bytes:
        """The last frames of an answer that is not completed."""
        ...


async def send_named_events(
    answering: Answering,
    answer: NamedEvents,
    exchange: Exchange,
) -> None:
    """Streams the events of the only choice as they come."""
    write, left = partial(_write_named_events, answering, answer), answering.seconds_left()
    await _stream_answer(exchange, write, answer.failure, left)


async def _write_named_events(
    answering: Answering, answer: NamedEvents, stream: EventStream
) -> None:
    def take(_: Choice, piece: Piece) -> Hold:
        frames = b"".join(event_frame(event) for event in answer.events(piece))
        return stream.write(frames) if frames else None

    await answering.run(take)


def event_frame(event: dict[str, Any]) -> bytes:
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\ndata: " + json_line(event) + b"\n\n"


async def whole_answer(answering: Answering, exchange: Exchange) -> list[Piece]:
    """All pieces of the only choice."""
    pieces: list[Piece] = []
    async with while_connected(exchange.receive, answering.seconds_left()):
        await answering.run(lambda _, piece: pieces.append(piece))
    return pieces


def _failure(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n" + DONE


async def _stream_answer(
    exchange: Exchange,
    write: Callable[[EventStream], Awaitable[None]],
    failure: Callable[[ApiError], bytes],
    seconds_left: float | None,
) -> None:
    """Runs `write` while the client is there and the request in time. A failure before the first
    byte is raised; a later one becomes the frames of `failure` in place of the finish, so that
    nobody takes the rest for whole."""
    stream = EventStream(exchange)
    try:
        async with while_connected(exchange.receive, seconds_left):
            await write(stream)
    except ClientGone:
        raise
    except Exception as error:
        if not stream.started:
            raise
        shown = error if isinstance(error, ApiError) else internal_error()
        if shown is not error:
            log.error("a stream failed", exc_info=error)
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await stream.finish(failure(shown))
        except TimeoutError:
            raise ClientGone from None  # it does not read
        return
    await stream.finish()


async def _write_events(answering: Answering, shape: Shape, stream: EventStream) -> None:
    frames = shape.frames(answering)
    opened: set[int] = set()

    def take(choice: Choice, piece: Piece) -> Hold:
        body = shape.piece(frames, choice, piece)
        if choice.index not in opened:
            opened.add(choice.index)
            body = shape.opening(frames, choice) + body
        return stream.write(body) if body else None

    await answering.run(take)
    usage = frames.usage(answering.usage()) if answering.options.include_usage else b""
    await stream.flush(usage + DONE)
