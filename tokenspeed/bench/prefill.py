"""Prompts: tokens per second of a cold one, and the time to the first token behind a cached one."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

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
    block = engine.plan.cache.block_size
    assert cached % block == 0, "whole blocks are cached"
    past = engine.prompt(cached + 1)
    if cached:
        with engine.pretending():
            engine.until_first_tokens({engine.submit(past, 1)})
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
