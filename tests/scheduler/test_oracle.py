"""The core decides what the plain-Python model decides, step by step, on random workloads."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tests.scheduler.device import VOCAB
from tests.scheduler.driver import make_config
from tests.scheduler.oracle import ModelScheduler, Row
from tokenspeed.scheduler import Deltas, Scheduler, SchedulerConfig, Step


def rows_of(step: Step | None) -> list[Row] | None:
    if step is None:
        return None
    rows = []
    at = 0
    for i in range(step.num_rows):
        end = at + int(step.query_lens[i])
        rows.append(
            Row(
                request_id=int(step.request_ids[i]),
                query_len=int(step.query_lens[i]),
                context_len=int(step.context_lens[i]),
                sample=bool(step.samples[i]),
                admitted=bool(step.admitted[i]),
                cached_len=int(step.cached_lens[i]),
                first=bool(step.first[i]),
                tokens=tuple(step.tokens[at:end].tolist()),
            )
        )
        at = end
    return rows


def triples(deltas: Deltas) -> list[tuple[int, int, int]]:
    return list(
        zip(
            deltas.request_ids.tolist(),
            deltas.tokens.tolist(),
            deltas.finish.tolist(),
            strict=True,
        )
    )


class Pair:
    """The core and the model, given the same calls."""

    def __init__(self, config: SchedulerConfig, rng: random.Random) -> None:
        self.core = Scheduler(config)
        self.model = ModelScheduler(config)
        self.depth = config.in_flight_depth
        self.rng = rng
        self.forces = rng.random() < 0.5
        self.flights: list[Step] = []
        self.now = 0.0

    def submit(self, prompt: list[int], max_tokens: int) -> None:
        rng = self.rng
        request_id = rng.randrange(14)
        min_tokens = rng.choice([0, 0, 4])
        stops = frozenset(rng.sample(range(VOCAB), rng.choice([0, 3])))
        priority = rng.choice([0, 0, 2, -1])
        salt = rng.choice([b"", b"", b"x"])
        reads = rng.random() < 0.9
        max_wait = rng.choice([math.inf, math.inf, 30.0, 0.0])
        result = self.core.submit(
            request_id,
            np.array(prompt, np.int32),
            max_tokens,
            np.array(sorted(stops), np.int32),
            min_tokens=min_tokens,
            priority=priority,
            salt=salt,
            read_prefix_cache=reads,
            max_wait_s=max_wait,
            now=self.now,
        )
        assert result.name == self.model.submit(
            request_id,
            prompt,
            max_tokens,
            min_tokens,
            stops,
            priority,
            salt,
            reads,
            max_wait,
            self.now,
        )

    def step(self) -> bool:
        self.now += self.rng.choice([0.0, 0.1, 20.0])
        step = self.core.step(self.now)
        assert rows_of(step) == self.model.step(self.now)
        assert triples(self.core.take_ended()) == self.model.ended
        self.model.ended.clear()
        if step is not None:
            self.flights.append(step)
        return step is not None

    def commit(self) -> None:
        step = self.flights.pop(0)
        widths = np.where(np.arange(step.num_rows) < step.num_decode_rows, step.query_lens, 1)
        forced = [self._forced() for _ in range(step.num_samples)]
        counts = [
            self.rng.randint(1, int(width)) + given
            for width, given in zip(widths[step.samples != 0], forced, strict=True)
        ]
        tokens = [self.rng.randrange(VOCAB) for _ in range(sum(counts))]
        arrays = (np.array(part, np.int32) for part in (tokens, counts, forced))
        assert triples(self.core.commit(step.id, *arrays)) == self.model.commit(
            tokens, counts, forced
        )

    def _forced(self) -> int:
        """How many tokens follow without being sampled: now and then a few."""
        may = not (self.depth and self.core.config.max_draft_tokens)
        return self.rng.choice([0, 0, 0, 1, 2, 9]) if may and self.forces else 0

    def turn(self) -> bool:
        stepped = self.step()
        if self.flights and (not stepped or len(self.flights) > self.depth):
            self.commit()
            return True
        return stepped

    def compare_counts(self) -> None:
        stats, model = self.core.stats(), self.model
        assert stats.blocks_used == len(model._held()) + len(model.fenced)
        assert stats.blocks_cached == sum(block.rested is not None for block in model.cached)
        assert stats.running == sum(1 for _ in model._running())
        assert stats.running + stats.waiting == len(model.lives)
        assert stats.preemptions == model.preemptions


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_decisions_equal_the_model(depth: int, chunked: bool, cached: bool, seed: int) -> None:
    rng = random.Random(f"{depth} {chunked} {cached} {seed}")
    drafts, running = rng.choice([0, 0, 1, 3]), rng.choice([2, 5, 8])
    config = make_config(
        num_blocks=rng.choice([9, 14, 22, 60]),
        block_size=rng.choice([1, 3, 4, 8]),
        max_running=running,
        max_draft_tokens=drafts,
        max_step_tokens=max(rng.choice([8, 20, 64]), running * (1 + drafts)),
        max_model_len=48,
        prefix_cache=cached,
        chunked_prefill=chunked,
        in_flight_depth=depth,
        max_mixed_tokens=rng.choice([1, 5, 64]),
        max_backlog_tokens=rng.choice([0, 9, 64]),
        backlog_steps=rng.choice([1, 2, 8]),
        patience_steps=rng.choice([1, 3, 32]),
        cache_lead_s=rng.choice([0.0, 0.0, 25.0]),
        max_waiting=rng.choice([0, 4, 64]),
        min_tail_tokens=rng.choice([0, 1, 2]),
    )
    pair = Pair(config, rng)
    families = [[rng.randrange(VOCAB) for _ in range(40)] for _ in range(2)]
    prompts = list(families)
    for _ in range(200):
        if rng.random() < 0.4 and len(pair.model.lives) < 12:
            family = rng.choice(families)[: rng.randint(0, 32)]
            tail = [rng.randrange(VOCAB) for _ in range(rng.randint(0, 4))]
            if rng.random() < 0.3:  # the next turn of an earlier one
                family = rng.choice(prompts)[: 36 - len(tail)]
            prompts.append(family + tail)
            pair.submit(family + tail, rng.choice([0, 1, 2, 12, 24]))
        if rng.random() < 0.05:
            request_id = rng.randrange(14)
            assert pair.core.abort(request_id) == pair.model.abort(request_id)
        if rng.random() < 0.01:
            assert pair.core.reset_prefix_cache() == pair.model.reset_prefix_cache()
        if pair.flights and rng.random() < 0.2:
            pair.commit()
        pair.turn()
        pair.compare_counts()
    while pair.turn():
        pair.compare_counts()
    assert not pair.model.lives
