"""Runs requests through the worker's own loop, in this process and without sockets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tokenspeed.plan import Plan
from tokenspeed.request import (
    Constraints,
    Delta,
    FinishReason,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from tokenspeed.worker.build import Built, build

GREEDY = SamplingParams(temperature=0.0)
FRONT = "test"


@dataclass
class Answer:
    """What came back for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    error: str = ""

    def take(self, delta: Delta) -> None:
        """Adds a delta; the rules of the stream are checked on the way."""
        assert self.finish_reason is None, "a delta after the final one"
        first = self.cached_tokens is None
        if delta.finish_reason not in (
            FinishReason.ABORT,
            FinishReason.ERROR,
            FinishReason.EXPIRED,
            FinishReason.FULL,
            FinishReason.INVALID,
        ):
            assert (delta.cached_tokens is not None) == first
        assert delta.prompt_logprobs is None or first
        if first:
            self.cached_tokens = delta.cached_tokens
            self.prompt_logprobs = delta.prompt_logprobs
        self.tokens.extend(delta.tokens)
        self.logprobs.extend(delta.logprobs)
        self.finish_reason = delta.finish_reason
        self.error = delta.error


class Driver:
    """Submits, turns the loop, collects answers by request id."""

    def __init__(self, built: Built) -> None:
        self.loop = built.loop
        self.scheduler = built.scheduler
        self.capacity = built.capacity
        self.answers: dict[int, Answer] = {}
        self._ids = itertools.count(1)

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        stop_token_ids: tuple[int, ...] = (),
        min_tokens: int = 0,
        salt: bytes = b"",
        constraints: Constraints | None = None,
    ) -> int:
        """Returns the request's id; a refusal is its answer."""
        request_id = next(self._ids)
        self.answers[request_id] = Answer()
        refusal = self.loop.submit(
            FRONT,
            Request(
                request_id=request_id,
                tokens=np.array(prompt, dtype="<i4").tobytes(),
                max_tokens=max_tokens,
                sampling=sampling,
                stop_token_ids=stop_token_ids,
                min_tokens=min_tokens,
                salt=salt,
                constraints=constraints,
            ),
        )
        if refusal is not None:
            self.answers[request_id].take(refusal)
        return request_id

    def abort(self, request_id: int) -> None:
        delta = self.loop.abort(FRONT, request_id)
        if delta is not None:
            self.answers[request_id].take(delta)

    def turn(self, check: bool = False) -> None:
        """One turn of the loop; `check` audits the scheduler after it."""
        for front, delta in self.loop.turn():
            if front == FRONT:
                self.answers[delta.request_id].take(delta)
        if check:
            self.scheduler.check()

    def run(self, check: bool = False) -> None:
        """Turns until every request has ended, and closes the books."""
        while self.loop.busy:
            self.turn(check)
        self.scheduler.check()
        stats = self.loop.stats()
        assert stats.running == stats.waiting == stats.slots_used == stats.blocks_used == 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
    ) -> list[Answer]:
        """All prompts at once, to their ends."""
        ids = [self.submit(prompt, max_tokens, sampling) for prompt in prompts]
        self.run()
        return [self.answers[request_id] for request_id in ids]


@contextmanager
def driver(plan: Plan, model_dir: Path) -> Iterator[Driver]:
    """Builds the worker's loop for the plan; closes its stream at the end."""
    built = build(plan, model_dir, lambda stage, fraction, detail="": None)
    try:
        yield Driver(built)
    finally:
        built.loop.close()
