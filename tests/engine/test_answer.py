"""Merging keeps everything that was said; what is handed over comes once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tokenspeed.engine import Hold
from tokenspeed.engine.answer import Answer, merged
from tokenspeed.request import Delta, FinishReason, TokenLogprobs


def test_one_delta_is_itself() -> None:
    delta = Delta(request_id=1, tokens=(1, 2))
    assert merged([delta]) is delta


def test_merged_says_what_the_parts_said() -> None:
    scored = TokenLogprobs(3, -0.5)
    parts = [
        Delta(request_id=1, cached_tokens=32, prompt_logprobs=(None, scored), tokens=(1,)),
        Delta(request_id=1, tokens=(2, 3), logprobs=(scored,)),
        Delta(request_id=1, finish_reason=FinishReason.ERROR, error="why"),
    ]
    assert merged(parts) == Delta(
        request_id=1,
        tokens=(1, 2, 3),
        logprobs=(scored,),
        cached_tokens=32,
        prompt_logprobs=(None, scored),
        finish_reason=FinishReason.ERROR,
        error="why",
    )


def said(*tokens: int, last: bool = False) -> Delta:
    return Delta(request_id=1, tokens=tokens, finish_reason=FinishReason.STOP if last else None)


class Taking:
    """Takes the deltas of an answer; while `gate` is set, it has to be waited for."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, ...]] = []
        self.closed: list[int] = []
        self.gate: Callable[[], Awaitable[None]] | None = None
        self.answer = Answer(1, self.closed.append)
        self.task = asyncio.create_task(self.answer.deliver(self.take))

    def take(self, delta: Delta) -> Hold:
        if delta.tokens == (0,):
            raise ValueError("refused")
        self.taken.append(delta.tokens)
        return self.gate


@pytest.mark.anyio
async def test_handed_over_at_once_and_merged_while_waited_for() -> None:
    it = Taking()
    it.answer.put(said(1))  # before the task has begun
    await asyncio.sleep(0)
    it.answer.put(said(2))
    assert it.taken == [(1,), (2,)]  # without another turn of the loop
    gate = asyncio.Event()

    async def opened() -> None:
        await gate.wait()

    it.gate = opened
    it.answer.put(said(3))
    it.gate = None
    it.answer.put(said(4))
    it.answer.put(said(5, last=True))
    await asyncio.sleep(0)
    assert it.taken == [(1,), (2,), (3,)]
    gate.set()
    await it.task
    assert it.taken[3:] == [(4, 5)]
    it.answer.close()
    assert it.closed == [1]


@pytest.mark.anyio
async def test_what_the_taker_raises_ends_the_delivery() -> None:
    it = Taking()
    await asyncio.sleep(0)
    it.answer.put(said(0))
    it.answer.put(said(1))
    with pytest.raises(ValueError, match="refused"):
        await it.task
    assert it.taken == []


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["close", "cancel", "taker"])
async def test_nothing_is_handed_over_after_the_end(by: str) -> None:
    it = Taking()
    await asyncio.sleep(0)
    if by == "taker":  # as a stop string does
        real = it.take

        def take(delta: Delta) -> Hold:
            it.answer.close()
            return real(delta)

        it.task.cancel()
        await asyncio.gather(it.task, return_exceptions=True)
        it.task = asyncio.create_task(it.answer.deliver(take))
        await asyncio.sleep(0)
        it.answer.put(said(7))
        await it.task
        assert it.taken == [(7,)]
    elif by == "close":
        it.answer.close()
        await it.task
    else:
        it.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await it.task
    before = list(it.taken)
    it.answer.put(said(8))
    assert it.taken == before
