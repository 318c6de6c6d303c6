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
from tokenspeed.checkpoint.inventory import EXPERTS
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.plan import ExpansionPlan, LatentAttention, Moe, Plan
from tokenspeed.scheduler import Scheduler, Step
from tokenspeed.wire import LayerLoad
from tokenspeed.worker.build import limits_of, scheduler_config
from tokenspeed.worker.guides import Guides
from tokenspeed.worker.loop import Loop
from tokenspeed.worker.runner import PendingStep, StepResult
from tokenspeed.worker.sampler import Entry

# Of the best stream, by what a weight is kept in: narrow ones are widened on the way.
_EXPERTS = {"bfloat16": 0.83, "fp8": 0.7, "fp8_block": 0.7}
_NARROW_EXPERTS = 0.72
# Prompts over keys that were made for them, of the sustained rate.
_EXPANDED = 0.92
# Seconds of a layer.
_LAUNCHING = 1.2e-3


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of steps on the device of `floors`: what was measured over its floors, as shares of
    them. Tests hold them to the results that are kept, to 12 % for up to 64 rows of a dense model
    and 15 % for up to 32 of a mixture of experts.

    Prompts of latents make keys and values, `made_flops` of each token that they see, where
    `expansion` says that this pays; else a query meets a token in `absorbed_flops`. No graph holds
    such a step, and the host takes `launching` seconds for it."""

    floors: Floors
    launches: float  # seconds of a step
    cache: float  # reading it, of the best stream
    experts: float = 1.0  # likewise
    among: float = 1.0  # share of the experts that tokens choose from
    weights: float = 0.93  # likewise, of the others
    products: float = 1.0  # of prompts, of the sustained rate
    attention: float = 0.75  # of prompts, likewise
    expansion: ExpansionPlan | None = None
    made_flops: float = 0.0
    absorbed_flops: float = 0.0
    made: float = 0.9
    absorbed: float = 0.4
    launching: float = 0.0

    @classmethod
    def of(cls, plan: Plan, device_name: str, uniform_experts: int | None = None) -> Costs:
        """Experts are taken to be chosen evenly, with `uniform_experts` among so many of a layer
        (0: all). Raises KeyError for a device whose ceilings were not measured."""
        layers = plan.model.config.sequence()
        latents = [one.mixer for one in layers if isinstance(one.mixer, LatentAttention)]
        kept = plan.model.formats.get(EXPERTS)
        least = floors(plan, device_name)
        return cls(
            least,
            sum(22e-6 if isinstance(one.feed_forward, Moe) else 16e-6 for one in layers),
            # A cache of one byte an element is widened on the way.
            cache=0.75 if plan.cache.dtype == "fp8" else 0.93,
            experts=_EXPERTS.get(kept, _NARROW_EXPERTS) if kept else 1.0,
            among=uniform_experts / least.experts if uniform_experts and least.experts else 1.0,
            attention=_EXPANDED if latents else 0.75,
            expansion=plan.expansion,
            made_flops=sum(
                2.0 * one.num_heads * one.kv_rank * (one.nope_dim + one.value_dim)
                for one in latents
            ),
            absorbed_flops=sum(
                2.0 * one.num_heads * (2 * one.kv_rank + one.rope_dim) for one in latents
            ),
            launching=_LAUNCHING * len(layers) if latents else 0.0,
        )

    def decode(self, contexts: np.ndarray) -> float:
        """A step of rows behind so many tokens each, without prompts."""
        if not len(contexts):
            return 0.0
        floors = self.floors
        reads = floors.decode_seconds(0, 0) / self.weights + self._experts_read(len(contexts))
        cached = sum(floors.decode_seconds(1, float(context)) for context in contexts)
        cached -= len(contexts) * floors.decode_seconds(1, 0)
        return self.launches + reads + cached / self.cache

    def prompts(self, lengths: np.ndarray, contexts: np.ndarray, rows: int = 0) -> float:
        """What prompt rows of so many tokens, each behind its context, take beside `rows` that
        decode."""
        if not len(lengths):
            return 0.0
        floors = self.floors
        tokens = float(lengths.sum())
        products = tokens * floors.flops_per_token / self.products
        mixing = self._attend(lengths, contexts)
        reads = self._experts_read(rows + tokens) - self._experts_read(rows)
        return (products + mixing) / floors.ceilings.products + reads

    def _experts_read(self, tokens: float) -> float:
        floors = self.floors
        share: float = self.among * (1 - (1 - floors.chosen / self.among) ** tokens)
        return floors.expert_bytes * share / floors.ceilings.read / self.experts

    def expands(self, lengths: np.ndarray, contexts: np.ndarray) -> bool:
        """Whether keys and values are made for such prompts."""
        rule, seen = self.expansion, float((lengths + contexts).sum())
        return rule is not None and _pairs(lengths, contexts) > rule.least_reuse * (
            seen + rule.launch_tokens
        )

    def _attend(self, lengths: np.ndarray, contexts: np.ndarray) -> float:
        """Operations of prompts whose queries meet what they see, over the share of the sustained
        rate that they reach."""
        pairs = _pairs(lengths, contexts)
        usual = pairs * self.floors.flops_per_pair / self.attention
        if not self.absorbed_flops:
            return usual
        if not self.expands(lengths, contexts):
            return pairs * self.absorbed_flops / self.absorbed
        return usual + float((lengths + contexts).sum()) * self.made_flops / self.made


def _pairs(lengths: np.ndarray, contexts: np.ndarray) -> float:
    """Of a query token and one that it sees."""
    return float((lengths * contexts + lengths * lengths / 2).sum())


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
        decodes, seconds, costs = step.num_decode_rows, 0.0, self._costs
        if not self._pretending:
            prompts = (
                step.query_lens[decodes:].astype(float), step.context_lens[decodes:].astype(float)
            )  # fmt: skip
            # A step of prompts alone reads the weights too, beside computing.
            answers = costs.decode(step.context_lens[:decodes])
            beside = costs.prompts(*prompts, decodes)
            seconds = answers + beside if decodes else max(beside, costs.decode(np.zeros(1)))
            if costs.expands(*prompts):
                seconds = max(seconds, costs.launching)
            if decodes:
                self.delays.append(seconds - answers)
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
