"""Finds the kernel for a need, and says why the others were not taken.

`find` reads tables only, so it runs without torch and for devices that are not here. `load`
imports the implementation; only the process that computes calls it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenspeed_kernels.activation.specs import TABLES as ACTIVATION
from tokenspeed_kernels.attention.specs import TABLES as ATTENTION
from tokenspeed_kernels.embedding.specs import TABLES as EMBEDDING
from tokenspeed_kernels.gemm.specs import TABLES as GEMM
from tokenspeed_kernels.latent.specs import TABLES as LATENT
from tokenspeed_kernels.moe.specs import TABLES as MOE
from tokenspeed_kernels.norm.specs import TABLES as NORM
from tokenspeed_kernels.rope.specs import TABLES as ROPE
from tokenspeed_kernels.sampling.specs import TABLES as SAMPLING
from tokenspeed_kernels.spec import Device, Fact, KernelSpec, OpTable

TABLES: tuple[OpTable, ...] = (
    *EMBEDDING,
    *NORM,
    *GEMM,
    *ROPE,
    *ATTENTION,
    *LATENT,
    *ACTIVATION,
    *MOE,
    *SAMPLING,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The kernel taken, why, and each other kernel of the op with the reason it was not."""

    spec: KernelSpec
    reason: str
    rejected: tuple[tuple[str, str], ...]


class NoKernel(LookupError):  # noqa: N818  (a fact about the tables, not a fault)
    """No kernel fits, or the one asked for does not. `rejected` has the reason for each."""

    def __init__(self, message: str, rejected: tuple[tuple[str, str], ...] = ()) -> None:
        self.rejected = rejected
        super().__init__("\n".join([message, *(f"  not {name}: {why}" for name, why in rejected)]))


def ops() -> tuple[str, ...]:
    """The names of all ops."""
    return tuple(table.op for table in TABLES)


def specs(op: str) -> tuple[KernelSpec, ...]:
    """The kernels of `op`, best first, the reference last. Raises NoKernel on an unknown op."""
    return _table(op).kernels


def need_fields(op: str) -> tuple[str, ...]:
    """The facts that a need for `op` must give."""
    return _table(op).fields


def why_not(
    spec: KernelSpec, need: Mapping[str, Fact], device: Device, ordered: bool = False
) -> str | None:
    """Why the kernel cannot be taken, None where nothing is against it. `ordered`: only such are
    wanted."""
    reason = spec.miss(need, device)
    if reason is None and ordered and not spec.ordered:
        reason = "the order of its sums depends on the batch"
    return reason


def find(
    op: str,
    need: Mapping[str, Fact],
    device: Device,
    override: str | None = None,
    *,
    ordered: bool = False,
) -> Selection:
    """The best kernel of `op` that supports `need` on `device`.

    `override` names the kernel to take; it must belong to the op and support the need like any
    other. `ordered`: the kernel has to be. Raises NoKernel with the reason for every kernel that
    was turned down.
    """
    if override is not None:
        misses = [(spec, why_not(spec, need, device, ordered)) for spec in specs(op)]
        return _take_override(op, override, misses)
    rejected: list[tuple[str, str]] = []
    taken: KernelSpec | None = None
    for spec in specs(op):
        if (reason := why_not(spec, need, device, ordered)) is not None:
            rejected.append((spec.name, reason))
        elif taken is None:
            taken = spec
        else:
            rejected.append((spec.name, f"{taken.name} comes first"))
    if taken is None:
        raise NoKernel(f"no kernel of {op} supports {_describe(need, device)}", tuple(rejected))
    return Selection(taken, taken.why, tuple(rejected))


def fuses(op: str) -> bool:
    """Whether `op` stands for others that compute the same. Raises NoKernel on an unknown op."""
    return _table(op).fuses


def takes_parts(name: str) -> bool:
    """Whether the kernel adds up the parts of its first argument. Raises as `load` does."""
    return _spec(name).takes_parts


def is_ordered(name: str) -> bool:
    """Whether the kernel's sums keep one order whatever the batch. Raises as `load` does."""
    return _spec(name).ordered


def load(name: str) -> Callable[..., Any]:
    """Imports the kernel called `name`: a function, or for bound ops a class to call with the
    weight. Raises NoKernel on an unknown name, ImportError where its libraries are missing."""
    spec = _spec(name)
    return _imported(spec, spec.attribute)


def load_bound(name: str) -> Callable[..., Any] | None:
    """The same kernel as a class that is bound to a shape of batch, None where it has no such
    form. Raises as `load` does."""
    spec = _spec(name)
    return None if spec.bound_attribute is None else _imported(spec, spec.bound_attribute)


def load_float8(name: str) -> Callable[..., Any] | None:
    """The same kernel with its result in float8 as well, None where it has no such form. Raises as
    `load` does."""
    spec = _spec(name)
    return None if spec.float8_attribute is None else _imported(spec, spec.float8_attribute)


def _imported(spec: KernelSpec, attribute: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(spec.module), attribute)
    return found


def _spec(name: str) -> KernelSpec:
    for table in TABLES:
        for spec in table.kernels:
            if spec.name == name:
                return spec
    raise NoKernel(f"there is no kernel called {name}")


def _table(op: str) -> OpTable:
    for table in TABLES:
        if table.op == op:
            return table
    raise NoKernel(f"there is no op called {op}; the ops are {', '.join(ops())}")


def _take_override(op: str, name: str, misses: list[tuple[KernelSpec, str | None]]) -> Selection:
    for spec, reason in misses:
        if spec.name != name:
            continue
        if reason is not None:
            raise NoKernel(f"{name} was asked for and cannot run: {reason}", ((name, reason),))
        others = tuple(
            (other.name, miss or f"{name} was asked for") for other, miss in misses if other != spec
        )
        return Selection(spec, "asked for by name", others)
    known = ", ".join(spec.name for spec, _ in misses)
    raise NoKernel(f"{op} has no kernel called {name}; it has {known}")


def _describe(need: Mapping[str, Fact], device: Device) -> str:
    facts = ", ".join(f"{field} {value}" for field, value in need.items()) or "it"
    return f"{facts} on {device.kind} {device.arch}".rstrip()
