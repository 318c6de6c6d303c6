"""The answer to one request, as an asynchronous iterator of Deltas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from tokenspeed.request import Delta


class Answer:
    """Deltas of one request, in order; the last one carries the finish reason.

    A consumer that is slower than the engine gets several deltas merged into one, so at most
    the rest of one answer is held here. Leaving early must go through `aclose` (or
    `contextlib.aclosing`), which frees what the request holds in the worker.
    """

    __slots__ = ("_ended", "_on_close", "_pending", "_waiter", "request_id")

    def __init__(self, request_id: int, on_close: Callable[[int], None]) -> None:
        self.request_id = request_id
        self._on_close = on_close
        self._pending: list[Delta] = []
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._ended:
            raise StopAsyncIteration
        while not self._pending:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if self._ended:  # closed by another task while this one waited
                raise StopAsyncIteration
        delta = merged(self._pending)
        self._pending = []
        self._ended = delta.finish_reason is not None
        return delta

    def put(self, delta: Delta) -> None:
        """Hands over a delta; nothing may follow the one with a finish reason."""
        self._pending.append(delta)
        self._wake()

    async def aclose(self) -> None:
        """Ends the iteration. Aborts the request unless it has ended. May be called twice."""
        self._ended = True
        self._pending = []
        self._wake()
        self._on_close(self.request_id)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merged(deltas: Sequence[Delta]) -> Delta:
    """One delta that says what these consecutive ones of one request said."""
    first, last = deltas[0], deltas[-1]
    if first is last:
        return first
    return Delta(
        request_id=first.request_id,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        cached_tokens=first.cached_tokens,
        queued_seconds=first.queued_seconds,
        prompt_logprobs=first.prompt_logprobs,
        finish_reason=last.finish_reason,
        error=last.error,
    )
