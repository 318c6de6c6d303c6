"""Prompts: tokens per second of a cold one, and the time to the first token behind a cached one."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from tokenspeed.bench import decode
from tokenspeed.bench.engine import Engine
from tokenspeed.bench.floors import Floors


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """Median seconds from the submission to the first token of `new` tokens on `cached` ones."""

    new: int
    cached: int
    runs: int
    ttft_ms: float
    tokens_s: float
    floor_ms: float
    fraction: float


def measure(engine: Engine, floors: Floors, new: int, cached: int, runs: int) -> PrefillPoint:
    """One run more is made before and not counted."""
    past = _cached(engine, cached)
    before = engine.stats().cached_prompt_tokens
    seconds = []
    for _ in range(runs + 1):
        prompt = np.concatenate((past[:cached], engine.prompt(new)))
        began = time.perf_counter()
        engine.until_first_tokens({engine.submit(prompt, 1)})
        seconds.append(time.perf_counter() - began)
    assert engine.stats().cached_prompt_tokens - before == cached * (runs + 1)
    engine.finish(set())
    median = statistics.median(seconds[1:])
    floor = floors.prefill_seconds(new, cached)
    return PrefillPoint(new, cached, runs, median * 1e3, new / median, floor * 1e3, floor / median)


@dataclass(frozen=True, slots=True)
class BesidePoint:
    """`new` tokens on `cached` ones while `batch` users decode at `context`: median milliseconds
    to the first token. `step_ms`: between two tokens of those users before, median; `longest_ms`:
    while the prompt is computed, the longest of all runs."""

    new: int
    cached: int
    batch: int
    context: int
    runs: int
    ttft_ms: float
    step_ms: float
    longest_ms: float


def measure_beside(
    engine: Engine, new: int, cached: int, batch: int, context: int, runs: int
) -> BesidePoint:
    """One run more is made before and not counted."""
    past = _cached(engine, cached)
    users, _ = decode.start(engine, batch, context, 64 * (runs + 1))
    undisturbed, seconds, gaps = [], [], []
    for _ in range(runs + 1):
        undisturbed += [_turn(engine)[0] for _ in range(8)]
        prompt = np.concatenate((past[:cached], engine.prompt(new)))
        began = time.perf_counter()
        asked = engine.submit(prompt, 1)
        while True:
            gap, tokens = _turn(engine)
            gaps.append(gap)
            if asked in tokens:
                break
        seconds.append(time.perf_counter() - began)
        if len(seconds) == 1:
            gaps.clear()
    engine.finish(users)
    return BesidePoint(
        new, cached, batch, context, runs,
        ttft_ms=statistics.median(seconds[1:]) * 1e3,
        step_ms=statistics.median(undisturbed) * 1e3,
        longest_ms=max(gaps) * 1e3,
    )  # fmt: skip


def _turn(engine: Engine) -> tuple[float, dict[int, int]]:
    began = time.perf_counter()
    tokens = engine.turn()
    return time.perf_counter() - began, tokens


def _cached(engine: Engine, length: int) -> np.ndarray:
    """A prompt whose first `length` tokens are cached."""
    assert length % engine.plan.cache.block_size == 0, "whole blocks are cached"
    past = engine.prompt(length + 1)
    if length:
        with engine.pretending():
            engine.until_first_tokens({engine.submit(past, 1)})
    return past
