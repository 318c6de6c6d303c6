"""Requests of token ids into a worker's loop, and turns of it, without any front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from tokenspeed.plan import Plan
from tokenspeed.request import Delta, Request, SamplingParams
from tokenspeed.scheduler import Scheduler
from tokenspeed.worker.loop import Loop

FRONT = "bench"
DRAWN = SamplingParams(temperature=1.0, seed=1)


class Turns:
    """Submits prompts and turns the loop. `clock` tells seconds, `skipping` opens the block in
    which prompts are taken for computed."""

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        loop: Loop,
        clock: Callable[[], float],
        skipping: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.stats = loop.stats
        self._scheduler = scheduler
        self._loop = loop
        self._skipping = skipping
        self._random = np.random.default_rng(0)
        self._last_id = 0

    def prompt(self, length: int) -> np.ndarray:
        """Random int32 ids."""
        vocabulary = self.plan.model.config.vocab_size
        return self._random.integers(0, vocabulary, length, dtype=np.int32)

    def submit(self, prompt: np.ndarray, max_tokens: int) -> int:
        self._last_id += 1
        refusal = self._loop.submit(
            FRONT,
            Request(
                request_id=self._last_id,
                tokens=prompt.astype("<i4").tobytes(),
                max_tokens=max_tokens,
                sampling=DRAWN,
            ),
        )
        assert refusal is None, refusal
        return self._last_id

    def deltas(self) -> list[Delta]:
        """One step further; what each request got."""
        return [delta for _, delta in self._loop.turn()]

    def turn(self) -> dict[int, int]:
        """One step further; how many tokens each request got."""
        return {delta.request_id: len(delta.tokens) for delta in self.deltas()}

    def until_first_tokens(self, requests: set[int]) -> None:
        waiting = set(requests)
        while waiting:
            waiting -= {request for request, tokens in self.turn().items() if tokens}

    @contextmanager
    def pretending(self) -> Iterator[None]:
        """Prompts are taken for computed inside."""
        with self._skipping():
            yield

    def finish(self, requests: set[int]) -> None:
        """Ends them and forgets what is cached."""
        for request in requests:
            self._loop.abort(FRONT, request)
        while self._loop.busy:
            self.turn()
        self._scheduler.reset_prefix_cache()
