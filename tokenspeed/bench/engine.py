"""The worker's own loop in this process, for measurements: no sockets, no text, any weights.

A long context may be taken as present: its blocks are handed out and its tokens never computed,
since what a decode step costs depends on how much it reads and not on what.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from tokenspeed.bench.routes import Routes
from tokenspeed.hardware.probe import probe
from tokenspeed.plan import Plan
from tokenspeed.recipe.load import load_recipe
from tokenspeed.request import Delta, Request, SamplingParams
from tokenspeed.resolve.facts import THIS_BUILD, model_facts
from tokenspeed.resolve.resolve import resolve
from tokenspeed.scheduler import Step
from tokenspeed.worker.build import Built, build, limits_of
from tokenspeed.worker.loop import Loop
from tokenspeed.worker.runner import PendingStep, Runner
from tokenspeed.worker.sampler import Entry

FRONT = "bench"
DRAWN = SamplingParams(temperature=1.0, seed=1)


def plan_of(recipe: Path, overrides: tuple[str, ...]) -> Plan:
    """The recipe's plan on this machine, with dummy weights. Raises TokenspeedError."""
    loaded = load_recipe(recipe, (*overrides, "model.load=dummy"))
    return resolve(loaded.recipe, loaded.origins, model_facts(loaded), probe(), THIS_BUILD).plan


class _Skipping:
    """A runner that takes prompts for computed while `pretending`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.pretending = False

    def admit(self, request_id: int, entry: Entry) -> None:
        self._runner.admit(request_id, entry)

    def recount(self, entry: Entry) -> None:
        self._runner.recount(entry)

    def launch(self, step: Step, masked_rows: np.ndarray) -> PendingStep:
        if self.pretending and step.num_decode_rows < step.num_rows:
            return self._runner.skip(step)
        return self._runner.launch(step, masked_rows)

    def close(self) -> None:
        self._runner.close()


class Engine:
    """Submits random prompts and turns the loop."""

    def __init__(self, plan: Plan, built: Built, routes: Routes) -> None:
        self.plan, self.routes = plan, routes
        self.capacity = built.capacity
        self.stats = built.loop.stats
        self._scheduler = built.scheduler
        self._runner = built.runner
        self._skipping = _Skipping(built.runner)
        depth = plan.scheduler.in_flight_depth
        limits = limits_of(plan)
        self._loop = Loop(built.scheduler, self._skipping, built.guides, limits, depth)
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

    def graph_share(self) -> str:
        """How many of the steps so far were replays of a captured graph."""
        replayed, launched = self._runner.replayed, self._runner.launched
        share = replayed / max(1, replayed + launched)
        return f"{replayed} of {replayed + launched} steps as captured graphs: {share:.1%}"

    @contextmanager
    def pretending(self) -> Iterator[None]:
        """Prompts are taken for computed inside."""
        self._skipping.pretending = True
        try:
            yield
        finally:
            self._skipping.pretending = False

    def finish(self, requests: set[int]) -> None:
        """Ends them and forgets what is cached."""
        for request in requests:
            self._loop.abort(FRONT, request)
        while self._loop.busy:
            self.turn()
        self._scheduler.reset_prefix_cache()


@contextmanager
def engine(
    plan: Plan, tell: Callable[[str], None], uniform_experts: bool = False
) -> Iterator[Engine]:
    """Builds the worker's parts; the cache is filled with random numbers, as zeros draw less
    power than text does. `tell` hears how long each stage of the start took. `uniform_experts`:
    see `Routes`."""
    began = time.monotonic()
    ends: dict[str, float] = {}

    def report(stage: str, fraction: float) -> None:
        ends[stage] = time.monotonic() - began

    routes = Routes(plan, uniform_experts)
    built = build(plan, Path(), report, routes.kernels)
    stages = ", ".join(f"{stage} until {end:.1f} s" for stage, end in ends.items())
    tell(f"ready in {time.monotonic() - began:.1f} s: {stages}")
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
