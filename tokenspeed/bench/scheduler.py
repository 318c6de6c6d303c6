"""What scheduling costs, driven from Python, beside the published peer package.

    python -m tokenspeed.bench.scheduler            this scheduler
    python -m tokenspeed.bench.scheduler --peer     and `tokenspeed-scheduler` 0.1.42, side by side

Workload: agents share a long prefix, each with a private tail, one full-attention group, greedy
length-limited outputs. Figures are CPU time of the calling thread in microseconds: medians (p99).
The peer is never installed by this program; without it, `--peer` stops and says how to get it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenspeed.bench.scheduler_peer import PeerMissingError, PeerScheduler
from tokenspeed.scheduler import Scheduler, SchedulerConfig, Step

Ints = NDArray[np.int32]
NO_STOPS = np.array([], np.int32)


@dataclass(frozen=True)
class Shape:
    """Sizes of one scheduler under test. Counts are of tokens or blocks."""

    block: int
    blocks: int
    running: int
    step_tokens: int = 8192
    max_len: int = 300_000


class Driven(Protocol):
    """What the workload needs of a scheduler."""

    name: str

    def submit(self, request_id: int, tokens: Ints, max_tokens: int) -> None: ...
    def step(self) -> int:
        """Plans a step and reads what a model needs of it; returns its rows that sample."""

    def finish_step(self) -> list[int]:
        """Gives every sampling row a token; returns the ids that ended."""


class OwnScheduler:
    """`tokenspeed.scheduler` behind the workload's interface."""

    name = "tokenspeed"

    def __init__(self, shape: Shape) -> None:
        self._core = Scheduler(
            SchedulerConfig(
                num_blocks=shape.blocks,
                block_size=shape.block,
                max_running=shape.running,
                max_step_tokens=shape.step_tokens,
                max_model_len=shape.max_len,
                prefix_cache=True,
                chunked_prefill=True,
                in_flight_depth=0,
                digest_key=(1, 2),
            )
        )
        self._step: Step | None = None

    def submit(self, request_id: int, tokens: Ints, max_tokens: int) -> None:
        result = self._core.submit(request_id, tokens, max_tokens, NO_STOPS, now=0.0)
        assert result.name == "ACCEPTED", result

    def step(self) -> int:
        self._step = step = self._core.step(0.0)
        if step is None:
            return 0
        arrays = (step.request_ids, step.slots, step.query_lens, step.context_lens)
        assert all(len(array) == step.num_rows for array in arrays)
        assert step.dirty.ndim == 2 and step.tokens.ndim == 1
        return int(step.num_samples)

    def finish_step(self) -> list[int]:
        if self._step is None:
            return []
        deltas = self._core.commit(self._step.id, np.full(self._step.num_samples, 7, np.int32))
        ended: list[int] = deltas.request_ids[deltas.finish != 0].tolist()
        return ended


@dataclass
class Timing:
    """CPU microseconds of repeated calls."""

    values: list[float] = field(default_factory=list)

    def time(self, call: Callable[[], object]) -> None:
        begin = time.thread_time_ns()
        call()
        self.values.append((time.thread_time_ns() - begin) / 1000)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        return sorted(self.values)[int(0.99 * (len(self.values) - 1))]


def prompt_of(rng: np.random.Generator, prefix: Ints, tail: int) -> Ints:
    return np.concatenate([prefix, rng.integers(0, 100_000, tail, dtype=np.int32)])


def settle(driven: Driven, running: int) -> None:
    """Steps until `running` requests decode."""
    while driven.step() < running:
        driven.finish_step()
    driven.finish_step()


def decode(make: Callable[[Shape], Driven], running: int, context: int, steps: int) -> Timing:
    """Steady decode steps of `running` requests behind a shared prefix."""
    rng = np.random.default_rng(7)
    prefix = rng.integers(0, 100_000, context, dtype=np.int32)
    driven = make(Shape(64, 2 * context // 64 + running * 64, running))
    for i in range(running):
        driven.submit(i, prompt_of(rng, prefix, int(rng.integers(1, 384))), 3000)
    settle(driven, running)
    timing = Timing()
    for _ in range(steps):
        timing.time(driven.step)
        driven.finish_step()
    return timing


def queue(make: Callable[[Shape], Driven], waiting: int, context: int, steps: int) -> Timing:
    """Steps of 32 decodes, which hold all slots, while `waiting` cached prompts wait."""
    rng = np.random.default_rng(7)
    prefix = rng.integers(0, 100_000, context, dtype=np.int32)
    driven = make(Shape(64, 2 * context // 64 + 32 * 64, 32))
    for i in range(32 + waiting):
        driven.submit(i, prompt_of(rng, prefix, int(rng.integers(1, 384))), 3000)
    settle(driven, 32)
    timing = Timing()
    for _ in range(steps):
        timing.time(driven.step)
        driven.finish_step()
    return timing


def match(make: Callable[[Shape], Driven], context: int, steps: int) -> Timing:
    """Submission and admission of a prompt whose prefix is cached."""
    rng = np.random.default_rng(7)
    prefix = rng.integers(0, 100_000, context, dtype=np.int32)
    driven = make(Shape(64, 3 * context // 64, 4))
    timing = Timing()
    for i in range(steps + 1):
        prompt = prompt_of(rng, prefix, 192)

        def admit(request_id: int = i, tokens: Ints = prompt) -> None:
            driven.submit(request_id, tokens, 1)
            driven.step()

        if i > 0:
            timing.time(admit)
        else:
            admit()
        while not driven.finish_step():
            driven.step()
    return timing


def churn(make: Callable[[Shape], Driven], agents: int, context: int, output: int) -> float:
    """CPU microseconds per output token of agents that come back with 800 tokens more."""
    rng = np.random.default_rng(7)
    prefix = rng.integers(0, 100_000, context, dtype=np.int32)
    driven = make(Shape(64, 2 * context // 64 + agents * (2 * (800 + output) // 64 + 8), agents))
    contexts = [prompt_of(rng, prefix, int(rng.integers(1, 192))) for _ in range(agents)]
    left = [2] * agents
    timing = Timing()
    produced = 0
    ended: list[int] = []

    def come_back(agent: int) -> None:
        grown = prompt_of(rng, contexts[agent], 800)
        # A new id each time: the peer forgets an ended request only with its next plan.
        request_id = agent + agents * left[agent]
        timing.time(lambda: driven.submit(request_id, grown, output))
        contexts[agent] = np.concatenate([grown, np.full(output, 7, np.int32)])

    def turn() -> None:
        nonlocal produced, ended
        produced += driven.step()
        ended = driven.finish_step()

    for agent in range(agents):
        come_back(agent)
    while any(left):
        timing.time(turn)
        for agent in (request_id % agents for request_id in ended):
            left[agent] -= 1
            if left[agent]:
                come_back(agent)
    return sum(timing.values) / produced


def report(title: str, timings: Sequence[float | Timing], target: float | None) -> None:
    cells = []
    medians = []
    for timing in timings:
        if isinstance(timing, Timing):
            cells.append(f"{timing.median:12,.1f} ({timing.p99:,.0f})".rjust(24))
            medians.append(timing.median)
        else:
            cells.append(f"{timing:12,.2f}".rjust(24))
            medians.append(timing)
    aim = "" if target is None else f"{target:,.0f}"
    ratio = f"{medians[1] / medians[0]:,.0f}x" if len(medians) > 1 else ""
    print(f"{title:44}{''.join(cells)}{aim:>8}{ratio:>9}", flush=True)


def compare(makers: Sequence[Callable[[Shape], Driven]], names: Sequence[str], quick: bool) -> None:
    """A row for each case, a column for each of `makers`; the first has all samples."""
    head = "".join(name.rjust(24) for name in names)
    print(f"{'CPU us: median (p99)':44}{head}{'target':>8}{'ratio':>9}")
    steps = 40 if quick else 200
    for running, context, target in (
        (1, 50_000, 5),
        (64, 50_000, 60),
        (256, 1_000, 250),
        (256, 50_000, 250),
    ):
        runs = [
            decode(make, running, context, steps if i == 0 else steps // 2)
            for i, make in enumerate(makers)
        ]
        report(f"step, {running} running, {context // 1000}k context", runs, target)
    for waiting in (0, 256):
        runs = [
            queue(make, waiting, 50_000, 100 if i == 0 else 12) for i, make in enumerate(makers)
        ]
        report(f"step, 32 running, {waiting} wait for slots", runs, None)
    matches = [match(make, 50_000, steps // 4) for make in makers]
    report("submit and admit, 50k cached", matches, 500)
    agents, output = (64, 50) if quick else (256, 100)
    rates: list[float] = [churn(make, agents, 50_000, output) for make in makers]
    report(f"agentic churn, {agents} agents, per output token", rates, 5)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tokenspeed.bench.scheduler",
        description="CPU time of the scheduler, driven from Python.",
    )
    parser.add_argument("--peer", action="store_true", help="measure the peer package beside it")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    options = parser.parse_args(arguments)
    makers: list[Callable[[Shape], Driven]] = [OwnScheduler]
    names = [OwnScheduler.name]
    if options.peer:
        try:
            version = PeerScheduler.version()
        except PeerMissingError as missing:
            print(missing, file=sys.stderr)
            return 69  # EX_UNAVAILABLE
        makers.append(lambda shape: PeerScheduler(shape.block, shape.blocks, shape.running))
        names.append(f"{PeerScheduler.name} {version}")
    compare(makers, names, options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
