"""Tokens per second of each user while `batch` users decode at `context` tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tokenspeed.bench.engine import Engine
from tokenspeed.bench.floors import Floors

WARM_TURNS = 12


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """`tps_user` is `turns` over the seconds that they took, the whole loop included. `fraction`
    is the floor over the measured time. `experts_read`: different ones of a layer, on average; the
    floor reads as many."""

    batch: int
    context: int
    turns: int
    step_ms: float
    tps_user: float
    floor_ms: float
    fraction: float
    experts_read: float | None


def measure(engine: Engine, floors: Floors, batch: int, context: int, turns: int) -> DecodePoint:
    requests = start(engine, batch, context, turns)
    began = time.perf_counter()
    for _ in range(turns):
        tokens = engine.turn()
        assert len(tokens) == batch
    seconds = (time.perf_counter() - began) / turns
    read = engine.routes.read(batch)
    engine.finish(requests)
    floor = floors.decode_seconds(batch, context + WARM_TURNS + turns / 2, read)
    return DecodePoint(
        batch, context, turns, seconds * 1e3, 1 / seconds, floor * 1e3, floor / seconds, read
    )


def start(engine: Engine, batch: int, context: int, turns: int) -> set[int]:
    """Requests in the middle of their answers."""
    # The first of them decode while the last prompts come in.
    limits = engine.plan.scheduler
    chunks = batch * (context // min(limits.max_step_tokens, limits.max_mixed_tokens) + 2)
    most = turns + 2 * WARM_TURNS + chunks
    requests = set()
    with engine.pretending():
        for _ in range(batch):
            requests.add(engine.submit(engine.prompt(context), most))
        engine.until_first_tokens(requests)
    for _ in range(WARM_TURNS):
        engine.turn()
    return requests


def fits(engine: Engine, batch: int, context: int) -> bool:
    """Whether the cache, the slots and the model have room for it."""
    capacity, limits = engine.capacity, engine.plan.scheduler
    blocks = -(-(context + 400) // capacity.block_size) * batch
    return (
        blocks < capacity.num_blocks
        and batch <= limits.max_running
        and context + 400 <= limits.max_model_len
    )
