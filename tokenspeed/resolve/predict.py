"""How fast a plan will be: the roofline's terms over the device's ceilings, with a band.

Three cases for each point. *Fast*: every byte at the ceiling and nothing else, the tokens of a
batch choosing among half of the experts; no implementation is faster. *Expected*: what good
kernels reach. *Slow*: what public engines reach where they are worst. The factors of each case are
data of the plan, each with its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenspeed.checkpoint.formats import FLOATS
from tokenspeed.checkpoint.inventory import EXPERTS
from tokenspeed.plan import (
    Assumption,
    CachePlan,
    PredictedStep,
    PredictionPlan,
    SchedulerPlan,
    WeightFormat,
)
from tokenspeed.resolve.device import Target
from tokenspeed.resolve.roofline import Decode, Roofline, product_type
from tokenspeed.resolve.shard import Formats, Shard

Case = Literal["fast", "expected", "slow"]

BATCHES = (1, 8, 32, 128)
CONTEXTS = (1_000, 16_000, 50_000)

_H200 = "public kernels and an engine measured on an H200"
READ, READ_CACHE, COMPUTE = "share of the read ceiling", "share for the cache", "share of products"
NARROW, KERNEL, SPREAD = "share for dequantised weights", "s per kernel", "share of experts chosen"
LINK, EXCHANGE, BUSIEST = "share of the link", "s per exchange", "deviations of the busiest rank"
GPU = (
    Assumption(
        name=READ, fast=1.0, expected=0.88, slow=0.72,
        source=f"{_H200}: 0.75 to 0.94 of it in products of one row",
    ),
    Assumption(
        name=READ_CACHE, fast=1.0, expected=0.9, slow=0.5,
        source=f"{_H200}: 0.95 in bfloat16 and 0.8 to 0.9 in fp8 where the context is long",
    ),
    Assumption(
        name=NARROW, fast=1.0, expected=0.75, slow=0.4,
        source="of the share above, where the tensor cores do not take the weights as stored; "
        f"{_H200}",
    ),
    Assumption(
        name=COMPUTE, fast=1.0, expected=0.75, slow=0.45,
        source=f"{_H200}: 0.8 sustained in large products, less in ragged ones",
    ),
    Assumption(
        name=KERNEL, fast=0.0, expected=2.5e-6, slow=7.5e-6,
        source=f"{_H200}: 1 us a node, and 2 to 6 us that small products and attention lose",
    ),
    Assumption(
        name=SPREAD, fast=0.5, expected=1.0, slow=1.0,
        source=f"{_H200}: random weights route to half of the experts; 1 is even routing",
    ),
    Assumption(
        name=LINK, fast=1.0, expected=0.7, slow=0.4,
        source="assumed, not measured",
    ),
    Assumption(
        name=EXCHANGE, fast=2e-6, expected=8e-6, slow=20e-6,
        source="assumed, not measured: one hop, a sum over eight ranks, the same in a library",
    ),
    Assumption(
        name=BUSIEST, fast=0.0, expected=0.8, slow=1.3,
        source="whole experts per rank: the maximum of even draws; real routing is less even",
    ),
)  # fmt: skip
# What those become where only ordered kernels are taken.
ORDERED = {
    READ_CACHE: Assumption(
        name=READ_CACHE, fast=1.0, expected=0.55, slow=0.3,
        source="ordered attention on an H200: 0.5 to 0.65 of the read ceiling where many rows or "
        "long ones are read",
    ),
    COMPUTE: Assumption(
        name=COMPUTE, fast=1.0, expected=0.4, slow=0.2,
        source="ordered products and attention of prompts on an H200: 1.3 to 2.7 times as long",
    ),
}  # fmt: skip
CPU = (
    Assumption(
        name=READ, fast=1.0, expected=0.7, slow=0.4,
        source="assumed, not measured: quantised blocks are dequantised on the fly",
    ),
    Assumption(
        name=READ_CACHE, fast=1.0, expected=0.6, slow=0.3, source="assumed, not measured",
    ),
    Assumption(
        name=NARROW, fast=1.0, expected=1.0, slow=1.0, source="part of the share above",
    ),
    Assumption(
        name=COMPUTE, fast=1.0, expected=0.6, slow=0.3, source="assumed, not measured",
    ),
    Assumption(
        name=KERNEL, fast=0.0, expected=8e-6, slow=40e-6,
        source="assumed, not measured: a call from Python into a kernel",
    ),
    Assumption(
        name=SPREAD, fast=0.5, expected=1.0, slow=1.0, source="as on a GPU",
    ),
    Assumption(name=LINK, fast=1.0, expected=1.0, slow=1.0, source="one rank"),
    Assumption(name=EXCHANGE, fast=0.0, expected=0.0, slow=0.0, source="one rank"),
    Assumption(name=BUSIEST, fast=0.0, expected=0.0, slow=0.0, source="one rank"),
)  # fmt: skip
# One core asks for this part of the host's bandwidth at most.
CORE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The figures of one device that a step meets. Products by type of weights' product."""

    read: float
    products: dict[str, float]
    link: float
    capabilities: frozenset[str]


def device_ceilings(target: Target, threads: int) -> Ceilings | None:
    """None where nobody gave the bandwidth of the device or the speed of its products."""
    found = {entry.what: entry.value for entry in target.ceilings}
    kinds: tuple[str, ...] = ("bfloat16", "fp8", "int8")
    products = {what: found[what] for what in kinds if what in found}
    if target.kind == "cpu" and "float32" in found:
        products = {"bfloat16": found["float32"] * min(1.0, threads / target.cores)}
        if "read" in found:
            found["read"] *= min(1.0, threads * CORE_SHARE)
    if "read" not in found or "bfloat16" not in products:
        return None
    link = found.get("link", found.get("host", 0.0))
    return Ceilings(found["read"], products, link, target.kernels.features)


# Of the products' best rate, with attention among them: measured on one H200 on prompts of 128 to
# 500 tokens behind 50,000.
PROMPT_RATE = 0.65


def prompt_tokens_within(
    seconds: float, context: int, roofline: Roofline, target: Target
) -> int | None:
    """Prompt tokens behind `context` others that a device computes in that time; None where nobody
    gave its speed."""
    ceilings = device_ceilings(target, 1)
    if ceilings is None:
        return None
    work = sum(roofline.operations(Decode(batch=1, context=context)).values())
    return int(seconds * PROMPT_RATE * ceilings.products["bfloat16"] / work)


class Predictor:
    """Times of the decode steps of one deployment."""

    def __init__(
        self,
        roofline: Roofline,
        formats: Formats,
        ceilings: Ceilings,
        shard: Shard,
        assumptions: tuple[Assumption, ...],
    ) -> None:
        self._roofline = roofline
        self._formats = formats
        self._ceilings = ceilings
        self._shard = shard
        self._assumed = {entry.name: entry for entry in assumptions}

    def _factor(self, name: str, case: Case) -> float:
        entry = self._assumed[name]
        return {"fast": entry.fast, "expected": entry.expected, "slow": entry.slow}[case]

    def terms(self, step: Decode, case: Case) -> dict[str, float]:
        """Seconds of each part: weights, kv, compute, links, launches."""
        assumed, roofline = self._factor, self._roofline
        busiest = roofline.busiest(step, assumed(BUSIEST, case))
        weights = 0.0
        for group, size in roofline.weight_bytes(step, assumed(SPREAD, case)).items():
            narrow = 1.0 if self._is_native(self._formats[group]) else assumed(NARROW, case)
            skew = busiest if group == EXPERTS else 1.0
            weights += skew * size / (self._ceilings.read * assumed(READ, case) * narrow)
        cache = roofline.cache_bytes(step) / (self._ceilings.read * assumed(READ_CACHE, case))
        compute = 0.0
        for group, work in roofline.operations(step).items():
            kept = WeightFormat.BFLOAT16 if group == "mixing" else self._formats[group]
            skew = busiest if group == EXPERTS else 1.0
            compute += skew * work / (self._rate(kept) * assumed(COMPUTE, case))
        messages, links = roofline.messages(step), 0.0
        if messages.count:
            rate = self._ceilings.link * assumed(LINK, case)
            links = messages.count * assumed(EXCHANGE, case) + messages.bytes / rate
        launches = roofline.kernels() * assumed(KERNEL, case)
        return {
            "weights": weights,
            "kv": cache,
            "compute": compute,
            "links": links,
            "launches": launches,
        }

    def seconds(self, step: Decode, case: Case) -> float:
        """Reading and computing overlap; what is between kernels and ranks does not."""
        terms = self.terms(step, case)
        busy = max(terms["weights"] + terms["kv"], terms["compute"])
        return busy + terms["links"] + terms["launches"]

    def bound(self, step: Decode) -> str:
        """The largest part of the expected time."""
        terms = self.terms(step, "expected")
        if terms["compute"] < terms["weights"] + terms["kv"]:
            del terms["compute"]
        else:
            del terms["weights"], terms["kv"]
        return max(terms, key=lambda name: terms[name])

    def _is_native(self, kept: WeightFormat) -> bool:
        if kept in FLOATS:
            return True
        wanted = product_type(kept)
        return wanted != "bfloat16" and wanted in self._ceilings.capabilities

    def _rate(self, kept: WeightFormat) -> float:
        products = self._ceilings.products
        return products.get(product_type(kept), products["bfloat16"])


def predict(
    shard: Shard,
    formats: Formats,
    target: Target,
    threads: int,
    cache: CachePlan,
    scheduler: SchedulerPlan,
    activations: str,
    *,
    ordered: bool,
) -> PredictionPlan:
    """Points for the batches and contexts that the plan admits. `ordered`: all kernels are."""
    ceilings = device_ceilings(target, threads)
    if ceilings is None:
        return PredictionPlan(note=f"no speeds are known for {target.name}")
    if shard.parallel.world_size > 1 and not ceilings.link:
        return PredictionPlan(note=f"no speed of links is known for {target.name}")
    assumptions: tuple[Assumption, ...] = CPU if target.kind == "cpu" else GPU
    if ordered:
        assumptions = tuple(ORDERED.get(one.name, one) for one in GPU)
    roofline = Roofline(shard, formats, cache.groups, activations)
    predictor = Predictor(roofline, formats, ceilings, shard, assumptions)
    most = scheduler.max_running * shard.parallel.attention_dp
    batches = sorted({min(batch, most) for batch in BATCHES})
    contexts = sorted({min(context, scheduler.max_model_len) for context in CONTEXTS})
    steps = tuple(
        _point(predictor, Decode(batch, context), roofline, cache, shard)
        for context in contexts
        for batch in batches
    )
    return PredictionPlan(steps=steps, assumptions=assumptions)


def _point(
    predictor: Predictor, step: Decode, roofline: Roofline, cache: CachePlan, shard: Shard
) -> PredictedStep:
    expected = predictor.seconds(step, "expected")
    blocks = roofline.rows(step) * -(-step.context // cache.block_size)
    per_minute = 60 * step.batch / expected / shard.parallel.world_size
    return PredictedStep(
        batch=step.batch,
        context=step.context,
        fits=blocks < cache.num_blocks,
        step_s=_short(expected),
        fast_s=_short(predictor.seconds(step, "fast")),
        slow_s=_short(predictor.seconds(step, "slow")),
        bound=predictor.bound(step),
        tokens_per_s_user=_short(1 / expected),
        tokens_per_min_device=_short(per_minute),
    )


def _short(value: float) -> float:
    """Four digits: more would claim more, and rounding must not differ between machines."""
    return float(f"{value:.4g}")
