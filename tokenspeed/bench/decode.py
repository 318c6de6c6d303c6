"""Tokens per second of each user while `batch` users decode at `context` tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tokenspeed.bench.engine import Engine
from tokenspeed.bench.floors import Floors

WARM_TURNS = 12


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """`tps_user` is `turns` over the seconds that they took, the whole loop included; a step saw
    `mean_context` tokens of a user on average. `experts_read`: different ones of a layer, on
    average. `fraction` is the floor, which reads as many, over the measured time."""

    batch: int
    context: int
    mean_context: float
    turns: int
    step_ms: float
    tps_user: float
    floor_ms: float
    fraction: float
    experts_read: float | None


def measure(engine: Engine, floors: Floors, batch: int, context: int, turns: int) -> DecodePoint:
    """`turns` steps of `batch` users who are amid their answers. Leaves nothing running."""
    requests, reached = start(engine, batch, context, turns)
    began = time.perf_counter()
    for _ in range(turns):
        tokens = engine.turn()
        assert len(tokens) == batch
    seconds = (time.perf_counter() - began) / turns
    read = engine.routes.read(batch)
    engine.finish(requests)
    mean = reached + turns / 2
    floor = floors.decode_seconds(batch, mean, read)
    return DecodePoint(
        batch, context, mean, turns, seconds * 1e3, 1 / seconds, floor * 1e3, floor / seconds, read
    )


def start(engine: Engine, batch: int, context: int, turns: int) -> tuple[set[int], float]:
    """Requests in the middle of their answers, and the mean length of their contexts."""
    prompts = [engine.prompt(context) for _ in range(batch)]
    # All but their last blocks are in the cache before the first of them decodes: else it would be
    # far ahead of the last.
    rest = engine.plan.cache.block_size
    limits = engine.plan.scheduler
    chunks = batch * (rest // min(limits.max_step_tokens, limits.max_mixed_tokens) + 1)
    most = turns + 2 * WARM_TURNS + chunks
    generated = 0
    with engine.pretending():
        for prompt in prompts:
            engine.until_first_tokens({engine.submit(prompt, 1)})
        requests = {engine.submit(prompt, most) for prompt in prompts}
        waiting = set(requests)
        while waiting:
            tokens = engine.turn()
            generated += sum(tokens.values())
            waiting -= {request for request, count in tokens.items() if count}
    for _ in range(WARM_TURNS):
        generated += sum(engine.turn().values())
    return requests, context + generated / batch


def fits(engine: Engine, batch: int, context: int) -> bool:
    """Whether the cache, the slots and the model have room for it."""
    capacity, limits = engine.capacity, engine.plan.scheduler
    blocks = -(-(context + 400) // capacity.block_size) * batch
    return (
        blocks < capacity.num_blocks
        and batch <= limits.max_running
        and context + 400 <= limits.max_model_len
    )
