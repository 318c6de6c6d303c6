"""The answer to one request: Deltas handed over as they come, or an asynchronous iterator of them.

A token of a lone stream finds every cache cold, so what it costs is the code that it passes. Handed
over, it goes from the socket's callback to the client's socket without waking a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeAlias

from tokenspeed.request import Delta

# What to wait for before more is handed over, None to go on.
Hold: TypeAlias = "Callable[[], Awaitable[None]] | None"
Taker: TypeAlias = "Callable[[Delta], Hold]"


class Answer:
    """Deltas of one request, in order; the last one carries the finish reason.

    A consumer that is slower than the engine gets several deltas merged into one, so at most
    the rest of one answer is held here. Leaving early must go through `close`, which frees what
    the request holds in the worker.
    """

    __slots__ = ("_ended", "_on_close", "_pending", "_taker", "_waiter", "request_id")

    def __init__(self, request_id: int, on_close: Callable[[int], None]) -> None:
        self.request_id = request_id
        self._on_close = on_close
        self._pending: list[Delta] = []
        self._waiter: asyncio.Future[Hold] | None = None
        self._taker: Taker | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._ended:
            raise StopAsyncIteration
        while not self._pending:
            await self._woken()
            if self._ended:  # closed by another task while this one waited
                raise StopAsyncIteration
        return self._held()

    async def deliver(self, take: Taker) -> None:
        """Hands each delta to `take` the moment it comes, until the last one or `close`.

        What comes while there is something to wait for is held, and handed over as one. Raises
        what `take` raised.
        """
        while not self._ended:
            if self._pending:
                hold = take(self._held())
            else:
                self._taker = take
                hold = await self._woken()
            if hold is not None:
                await hold()

    async def _woken(self) -> Hold:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = self._taker = None

    def _held(self) -> Delta:
        delta = merged(self._pending)
        self._pending = []
        self._ended = delta.finish_reason is not None
        return delta

    def put(self, delta: Delta) -> None:
        """Takes in a delta; nothing may follow the one with a finish reason."""
        take = self._taker
        if take is None:
            self._pending.append(delta)
            self._wake(None)
            return
        self._ended = delta.finish_reason is not None
        try:
            hold = take(delta)
        except Exception as error:
            self._taker = None
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)
            return
        if hold is not None or self._ended:
            self._taker = None
            self._wake(hold)

    def close(self) -> None:
        """Nothing more is handed over. Aborts the request unless it has ended. May be called
        twice."""
        self._ended = True
        self._pending = []
        self._taker = None
        self._wake(None)
        self._on_close(self.request_id)

    def _wake(self, hold: Hold) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(hold)


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
