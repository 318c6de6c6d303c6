"""What a kernel supports, as data: devices, predicates over facts, one row per kernel.

Closed world: a kernel supports what its row states and nothing else. A fact that the row does
not constrain is refused, so forgetting to declare never claims support. Nothing here imports
torch: a plan can be made, and explained, on a machine that cannot run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Fact: TypeAlias = str | int | bool


@dataclass(frozen=True, slots=True)
class Device:
    """A device as kernels see it.

    `kind` is "cpu" or "cuda". `arch` is "sm_90" and the like on CUDA, the machine name
    ("x86_64") on a CPU. `features` are the flags of /proc/cpuinfo on a CPU, capabilities on CUDA.
    """

    kind: str
    arch: str
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Predicate:
    """A test of one fact; `text` is the requirement in words, for explanations."""

    text: str
    choices: tuple[Fact, ...] | None = None
    low: int | None = None
    high: int | None = None
    divisor: int | None = None

    def holds(self, value: Fact) -> bool:
        """True where `value` meets the requirement; a value of another type never does."""
        if self.choices is not None:
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        if self.low is not None or self.high is not None:
            return _is_count(value) and (
                (self.low is None or value >= self.low)  # type: ignore[operator]
                and (self.high is None or value <= self.high)  # type: ignore[operator]
            )
        if self.divisor is not None:
            return _is_count(value) and value > 0 and value % self.divisor == 0  # type: ignore[operator]
        return True


def _is_count(value: Fact) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def one_of(*choices: Fact) -> Predicate:
    """The fact equals one of `choices`, type included (True is not 1)."""
    return Predicate(" or ".join(_spans(choices)), choices=choices)


# Fewer numbers at one distance are written out.
_SPAN = 4


def _spans(choices: tuple[Fact, ...]) -> Iterator[str]:
    """In words: numbers that follow one another at one distance as the first and the last."""
    at = 0
    while at < len(choices):
        end = at + 1
        if end < len(choices) and _is_count(choices[at]) and _is_count(choices[end]):
            step = int(choices[end]) - int(choices[at])
            while end < len(choices) and choices[end] == int(choices[end - 1]) + step:
                end += 1
            if end - at >= _SPAN:
                by = "" if step == 1 else f" in steps of {step}"
                yield f"{choices[at]} to {choices[end - 1]}{by}"
                at = end
                continue
        yield str(choices[at])
        at += 1


def between(low: int, high: int) -> Predicate:
    """`low` <= fact <= `high`."""
    return Predicate(f"{low} to {high}", low=low, high=high)


def multiple_of(divisor: int) -> Predicate:
    """The fact is a positive multiple of `divisor`."""
    return Predicate(f"a multiple of {divisor}", divisor=divisor)


def anything() -> Predicate:
    """Any value: the kernel states that the fact does not matter to it."""
    return Predicate("anything")


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Which devices a kernel runs on. `archs` None means every arch of those kinds."""

    kinds: tuple[str, ...]
    archs: tuple[str, ...] | None = None
    features: tuple[str, ...] = ()

    def miss(self, device: Device) -> str | None:
        """The first requirement that `device` misses, or None."""
        if device.kind not in self.kinds:
            return f"runs on {' or '.join(self.kinds)}, the device is {device.kind}"
        if self.archs is not None and device.arch not in self.archs:
            return f"runs on {' or '.join(self.archs)}, the device is {device.arch or 'unknown'}"
        lacking = [feature for feature in self.features if feature not in device.features]
        if lacking:
            return f"needs {', '.join(lacking)}, which the device lacks"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """One kernel of an op: where its code is and what it supports.

    `module` and `attribute` name the implementation (imported by `registry.load` alone). `why`
    is the reason to take it, printed in the plan. `is_reference` marks the torch truth.
    `bound_attribute` names the same kernel as a class bound to a shape of batch, if there is one.
    `takes_parts`: its first argument may be float32 [parts, T, ...] that it adds up itself.
    `ordered`: a row's result is its own, to the last bit: its sums keep one order whatever else is
    in the batch.
    `float8_attribute` names the same kernel with a result in float8 as well, if there is one.
    """

    name: str
    module: str
    attribute: str
    device: DeviceRule
    requires: Mapping[str, Predicate]
    why: str
    is_reference: bool = False
    bound_attribute: str | None = None
    takes_parts: bool = False
    ordered: bool = False
    float8_attribute: str | None = None

    def miss(self, need: Mapping[str, Fact], device: Device) -> str | None:
        """The first requirement that `need` on `device` misses, or None where all hold."""
        if (reason := self.device.miss(device)) is not None:
            return reason
        for field, value in need.items():
            predicate = self.requires.get(field)
            if predicate is None:
                return f"does not state {field}"
            if not predicate.holds(value):
                return f"needs {field} {predicate.text}, not {value}"
        for field in self.requires:
            if field not in need:
                return f"needs {field}, which the need leaves open"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """An op and its kernels, best first, the reference last.

    `fields` are the facts that a need must give, all of them and no others. `fuses`: the op stands
    for others that compute the same, and is worth having only where a kernel of its own does.
    """

    op: str
    fields: tuple[str, ...]
    kernels: tuple[KernelSpec, ...]
    fuses: bool = False


# Head sizes of the CPU kernels: whole vectors of 16, scratch for 256.
HEAD_DIM = one_of(*range(16, 257, 16))

REFERENCE = DeviceRule(("cpu", "cuda"))
ANY_CPU = DeviceRule(("cpu",))
AVX2 = DeviceRule(("cpu",), ("x86_64",), ("avx2", "fma", "f16c"))
AVX512 = DeviceRule(
    ("cpu",), ("x86_64",), ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c")
)
AVX512_VNNI = DeviceRule(
    ("cpu",),
    ("x86_64",),
    ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma", "f16c"),
)
# What the Triton kernels are compiled for and tested on; programmatic dependent launch needs it.
TRITON = DeviceRule(("cuda",), ("sm_90", "sm_100"))
# Warpgroups with roles and products on whole warpgroups: instructions of this one architecture.
HOPPER = DeviceRule(("cuda",), ("sm_90",))
