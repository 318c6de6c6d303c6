"""What can be measured, and where. Importing this does not import torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Times the kernels of `ops` on a kind of device, "cpu" or "cuda".

    `module` has `run`, which yields a Result for each case; for "cuda" also `tune`, which does so
    for every variant of a kernel. Of a CPU's parts `run` takes the name.
    """

    name: str
    kind: str
    module: str
    ops: tuple[str, ...]


_FEW = ("rms_norm", "add_rms_norm", "silu_mul", "rope_kv_write")
_PRODUCTS = ("linear", "linear_silu_mul")
PARTS = (
    Part("step", "cpu", "cpu", ()),
    Part("linear", "cpu", "cpu", ("linear",)),
    Part("attention", "cpu", "cpu", ("paged_attention",)),
    Part("layer", "cpu", "cpu", _FEW),
    Part("sampling", "cpu", "cpu", ("sample",)),
    Part("attention", "cuda", "gpu_attention", ("paged_attention",)),
    Part("latent", "cuda", "gpu_latent", ("latent_attention", "latent_extend")),
    Part("moe", "cuda", "gpu_moe", ("route", "experts")),
    Part("products", "cuda", "gpu_products", _PRODUCTS),
    Part("chain", "cuda", "gpu_chain", ()),
    Part("ordered", "cuda", "gpu_ordered", (*_PRODUCTS, "paged_attention")),
    Part(
        "others", "cuda", "gpu_others",
        (*_FEW, "sample", "log_softmax_topk"),
    ),
)  # fmt: skip
NAMES = tuple(dict.fromkeys(part.name for part in PARTS))


def wanted(kind: str, name: str | None, op: str | None) -> tuple[Part, ...]:
    """The parts for that kind of device, by name and by an op that they time."""
    return tuple(
        part
        for part in PARTS
        if part.kind == kind and name in (None, part.name) and (op is None or op in part.ops)
    )
