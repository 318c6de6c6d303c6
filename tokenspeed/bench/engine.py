"""The worker's own loop in this process, for measurements: no sockets, no text, any weights.

A long context may be taken as present: its blocks are handed out and its tokens never computed,
since what a decode step costs depends on how much it reads and not on what.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from tokenspeed.bench.routes import Routes
from tokenspeed.bench.turns import Turns
from tokenspeed.plan import Plan
from tokenspeed.scheduler import Step
from tokenspeed.stages import Stages, in_words, process_age
from tokenspeed.wire import LayerLoad
from tokenspeed.worker.build import Built, build, limits_of
from tokenspeed.worker.loop import Loop
from tokenspeed.worker.runner import PendingStep, Runner
from tokenspeed.worker.sampler import Entry


class _Skipping:
    """A runner that takes prompts for computed while `pretending`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._pretending = False

    @contextmanager
    def pretending(self) -> Iterator[None]:
        self._pretending = True
        try:
            yield
        finally:
            self._pretending = False

    def admit(self, request_id: int, entry: Entry) -> None:
        self._runner.admit(request_id, entry)

    def recount(self, entry: Entry) -> None:
        self._runner.recount(entry)

    def launch(self, step: Step, masked_rows: np.ndarray) -> PendingStep:
        if self._pretending and step.num_decode_rows < step.num_rows:
            return self._runner.skip(step)
        return self._runner.launch(step, masked_rows)

    def expert_load(self) -> tuple[LayerLoad, ...]:
        return self._runner.expert_load()

    def close(self) -> None:
        self._runner.close()


class Engine(Turns):
    """A worker's parts on this machine's clock."""

    def __init__(self, plan: Plan, built: Built, routes: Routes) -> None:
        skipping = _Skipping(built.runner)
        depth = plan.scheduler.in_flight_depth
        loop = Loop(built.scheduler, skipping, built.guides, limits_of(plan), depth)
        super().__init__(plan, built.scheduler, loop, time.perf_counter, skipping.pretending)
        self.routes = routes
        self.capacity = built.capacity
        self._runner = built.runner

    def graph_share(self) -> str:
        """How many of the steps so far were replays of a captured graph."""
        replayed, launched = self._runner.replayed, self._runner.launched
        share = replayed / max(1, replayed + launched)
        return f"{replayed} of {replayed + launched} steps as captured graphs: {share:.1%}"


@contextmanager
def engine(
    plan: Plan, tell: Callable[[str], None], uniform_experts: int | None = None
) -> Iterator[Engine]:
    """Builds the worker's parts; the cache is filled with random numbers, as zeros draw less
    power than text does. `tell` hears how long each stage of the start took. `uniform_experts`:
    see `Routes`."""
    routes = Routes(plan, uniform_experts)
    stages = Stages(lambda stage, fraction, detail="": None, before=process_age())
    built = build(plan, Path(), stages, routes.kernels)
    tell(f"ready: {in_words(stages.done())}")
    # As a worker does: the collector has nothing to find in what is imported.
    gc.freeze()
    for pool in built.cache.tensors:
        if pool.dtype.itemsize == 1:
            # Bytes below that of 448, the largest float8.
            pool.view(torch.uint8).random_(0, 0x70)
        else:
            pool.normal_()
    if plan.device.kind == "cuda":
        torch.cuda.synchronize()
    try:
        yield Engine(plan, built, routes)
    finally:
        built.loop.close()
