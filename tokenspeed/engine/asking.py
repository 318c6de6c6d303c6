"""What a front asks of its worker beside requests: each question is answered once, or fails."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import TypeAlias

from tokenspeed.engine.state import EngineUnavailable
from tokenspeed.wire import (
    AskExperts,
    AskStats,
    EngineStats,
    ExpertsAnswer,
    Flush,
    Flushed,
    FrontMessage,
    LayerLoad,
    Profile,
    Profiled,
    SetLogLevel,
    StatsAnswer,
)

FLUSH_SECONDS = 10.0
EXPERTS_SECONDS = 10.0
# A trace is written after its steps, which takes seconds for hundreds of them.
TRACE_SECONDS = 60.0

WorkerAnswer: TypeAlias = StatsAnswer | ExpertsAnswer | Flushed | Profiled


class Asking:
    """`send` sends, and raises EngineUnavailable when there is no worker: so does every method
    that waits, also when the worker goes meanwhile or is too slow."""

    def __init__(self, send: Callable[[FrontMessage], None]) -> None:
        self._send = send
        self._asked: dict[int, asyncio.Future[WorkerAnswer]] = {}
        self._last = 0
        self._log_level = ""  # as the worker starts

    async def stats(self, timeout: float) -> EngineStats:
        """The worker's true state now."""
        answer = await self._ask(AskStats, timeout)
        assert isinstance(answer, StatsAnswer)
        return answer.stats

    async def experts(self) -> tuple[LayerLoad, ...]:
        """Tokens that each expert was given since the worker's start, () where nobody counts."""
        answer = await self._ask(AskExperts, EXPERTS_SECONDS)
        assert isinstance(answer, ExpertsAnswer)
        return answer.layers

    async def flush(self) -> int:
        """Forgets every cached prefix; returns the number of blocks that held one."""
        answer = await self._ask(Flush, FLUSH_SECONDS)
        assert isinstance(answer, Flushed)
        return answer.blocks

    async def profile(self, steps: int, seconds: float) -> Profiled:
        """Waits until the next steps are recorded, or those of so many seconds."""
        question = functools.partial(Profile, steps=steps, seconds=seconds)
        answer = await self._ask(question, seconds + TRACE_SECONDS)
        assert isinstance(answer, Profiled)
        return answer

    def set_log_level(self, level: str) -> None:
        """Of the worker, and of each that takes its place."""
        self._log_level = level
        with contextlib.suppress(EngineUnavailable):
            self._send(SetLogLevel(level))

    # ---- for the engine

    def greet(self) -> None:
        """A worker is ready."""
        if self._log_level:
            self._send(SetLogLevel(self._log_level))

    def answered(self, answer: WorkerAnswer) -> None:
        future = self._asked.get(answer.query_id)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, error: EngineUnavailable) -> None:
        """The worker is gone."""
        for future in self._asked.values():
            if not future.done():
                future.set_exception(error)
        self._asked.clear()

    async def _ask(self, question: Callable[[int], FrontMessage], timeout: float) -> WorkerAnswer:
        self._last += 1
        number = self._last
        self._send(question(number))
        future: asyncio.Future[WorkerAnswer] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            detail = f"no answer within {timeout:g} s"
            raise EngineUnavailable("stalled", detail) from None
        finally:
            self._asked.pop(number, None)
