"""A worker whose steps take the time that they are said to take: the real loop and scheduler on a
clock that only steps move. So policies are compared without the device, in the order of a second
for a minute of work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tokenspeed.bench.floors import Floors, floors
from tokenspeed.bench.turns import Turns
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.plan import Plan
from tokenspeed.scheduler import Scheduler, Step
from tokenspeed.wire import LayerLoad
from tokenspeed.worker.build import limits_of, scheduler_config
from tokenspeed.worker.guides import Guides
from tokenspeed.worker.loop import Loop
from tokenspeed.worker.runner import PendingStep, StepResult
from tokenspeed.worker.sampler import Entry


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of steps on the device of `floors`: what was measured over its floors, as shares of
    them. A test holds them to the results that are kept, to 12 % for up to 64 rows."""

    floors: Floors
    cache: float  # reading it, of the best stream
    weights: float = 0.93
    products: float = 1.0  # of prompts, of the sustained rate
    attention: float = 0.75  # of prompts, likewise
    launches: float = 0.55e-3  # seconds of a step

    @classmethod
    def of(cls, plan: Plan, device_name: str) -> Costs:
        """Raises KeyError for a device whose ceilings were not measured."""
        # A cache of one byte an element is widened on the way.
        return cls(floors(plan, device_name), 0.75 if plan.cache.dtype == "fp8" else 0.93)

    def decode(self, contexts: np.ndarray) -> float:
        """A step of rows behind so many tokens each, without prompts."""
        if not len(contexts):
            return 0.0
        floors = self.floors
        reads = floors.decode_seconds(0, 0) / self.weights
        cached = sum(floors.decode_seconds(1, float(context)) for context in contexts)
        cached -= len(contexts) * floors.decode_seconds(1, 0)
        return self.launches + reads + cached / self.cache

    def prompts(self, lengths: np.ndarray, contexts: np.ndarray) -> float:
        """What prompt rows of so many tokens, each behind its context, take beside."""
        floors = self.floors
        pairs = lengths * contexts + lengths * lengths / 2
        products = float(lengths.sum()) * floors.flops_per_token / self.products
        mixing = float(pairs.sum()) * floors.flops_per_pair / self.attention
        return (products + mixing) / floors.ceilings.products


class _Ended:
    """The outcome of a step that ends at `end`: who waits for it waits until then."""

    def __init__(self, clock: _Clock, end: float, samples: int) -> None:
        self._clock, self._end, self._samples = clock, end, samples

    def result(self) -> StepResult:
        self._clock.now = max(self._clock.now, self._end)
        return StepResult(np.zeros(self._samples, np.int32), np.empty(0, np.int64), None, ())


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Device:
    """Runs one step after the other, as `worker.runner.Runner` does, and computes nothing."""

    def __init__(self, costs: Costs, clock: _Clock) -> None:
        self._costs, self._clock = costs, clock
        self._free = 0.0
        self._pretending = False
        self.delays: list[float] = []

    @contextmanager
    def pretending(self) -> Iterator[None]:
        self._pretending = True
        try:
            yield
        finally:
            self._pretending = False

    def admit(self, request_id: int, entry: Entry) -> None:
        """Nothing is kept of a request."""

    def recount(self, entry: Entry) -> None:
        """Likewise."""

    def expert_load(self) -> tuple[LayerLoad, ...]:
        """No expert computes anything."""
        return ()

    def launch(self, step: Step, masked_rows: np.ndarray) -> PendingStep:
        decodes, seconds = step.num_decode_rows, 0.0
        if not self._pretending:
            beside = self._costs.prompts(
                step.query_lens[decodes:].astype(float), step.context_lens[decodes:].astype(float)
            )
            # A step of prompts alone reads the weights too, beside computing.
            alone = max(beside, self._costs.decode(np.zeros(1)))
            seconds = self._costs.decode(step.context_lens[:decodes]) + beside
            if decodes:
                self.delays.append(beside)
            else:
                seconds = alone
        self._free = max(self._free, self._clock.now) + seconds
        return PendingStep(_Ended(self._clock, self._free, step.num_samples))

    def close(self) -> None:
        """There is nothing to give back."""


class Simulated(Turns):
    """A worker of the plan on a clock of its own."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        clock = _Clock()
        self._device = _Device(costs, clock)
        scheduler = Scheduler(scheduler_config(plan))
        guides = Guides(_no_vocabulary, plan.model.config.vocab_size, 1)
        loop = Loop(
            scheduler, self._device, guides, limits_of(plan),
            plan.scheduler.in_flight_depth, clock=clock,
        )  # fmt: skip
        super().__init__(plan, scheduler, loop, clock, self._device.pretending)

    def take_delays(self) -> tuple[float, float]:
        """See `records.Level.delay`; since this was last asked."""
        delays, self._device.delays = sorted(self._device.delays), []
        return (delays[int(0.95 * (len(delays) - 1))], delays[-1]) if delays else (0.0, 0.0)


def _no_vocabulary() -> Vocabulary:
    raise AssertionError("requests of this bench have no grammar")
