"""What one order of sums costs on a CUDA device: products and attention of an 8B model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from tokenspeed_kernels.attention.paged_attention_hopper import bind_hopper
from tokenspeed_kernels.attention.paged_attention_ordered import PagedAttentionOrdered
from tokenspeed_kernels.bench.gpu_attention import HEAD_DIM, HEADS, Batch
from tokenspeed_kernels.bench.gpu_measure import READ_GBS, microseconds, sets_for
from tokenspeed_kernels.bench.result import Result, memory
from tokenspeed_kernels.gemm.linear_ordered import LinearOrdered, LinearSiluMulOrdered
from tokenspeed_kernels.gemm.linear_triton import LinearSiluMulTriton, LinearTriton
from tokenspeed_kernels.weight import RawWeight

KV_HEADS, MOST_KEYS = 8, 1 << 17
# Out, in, gated.
WEIGHTS = [(6144, 4096, False), (4096, 4096, False), (28672, 4096, True), (4096, 14336, False)]
LINEAR = {"ordered": LinearOrdered, "usual": LinearTriton}
GATED = {"ordered": LinearSiluMulOrdered, "usual": LinearSiluMulTriton}
# New tokens, context, rows.
BATCHES = [(1, 1023, 1), (1, 49999, 1), (1, 49999, 16), (1, 4095, 64), (8192, 0, 1)]


def products(rows: int) -> Iterator[Result]:
    """Those of a layer, one after the other."""
    weights = [
        [RawWeight("bfloat16", (out, inner), _randn(out, inner)) for out, inner, _ in WEIGHTS]
        for _ in range(sets_for(sum(out * inner * 2 for out, inner, _ in WEIGHTS)))
    ]
    size = sum(out * inner * 2 for out, inner, _ in WEIGHTS)
    inputs = [_randn(rows, inner) for _, inner, _ in WEIGHTS]

    def call(layer: list[Callable[[torch.Tensor], object]]) -> None:
        for product, x in zip(layer, inputs, strict=True):
            product(x)

    for name in LINEAR:
        layers = [
            [
                GATED[name](weight, None) if gated else LINEAR[name](weight, None).parts
                for weight, (_, _, gated) in zip(layer, WEIGHTS, strict=True)
            ]
            for layer in weights
        ]
        us = microseconds([lambda layer=layer: call(layer) for layer in layers])
        yield memory("layer", name, f"{rows} rows", us, size, READ_GBS)


def attention(new: int, context: int, rows: int) -> Iterator[Result]:
    """Of `rows` with `new` tokens behind `context`, ordered and usual."""
    size = rows * (new + context) * KV_HEADS * HEAD_DIM * 4
    batch = Batch(new, context, rows, KV_HEADS, torch.bfloat16, sets_for(size, 8))
    decode = rows if new == 1 else 0
    shape = (HEADS, KV_HEADS, HEAD_DIM, decode, rows - decode, rows * new, torch.bfloat16)
    bound = {
        "ordered": PagedAttentionOrdered(*shape, batch.q.device, most_keys=MOST_KEYS),
        "usual": bind_hopper(*shape, batch.q.device),
    }
    for name, attend in bound.items():
        attend.schedule(batch.cu, batch.context)
        us = microseconds([
            lambda k=k, v=v, a=attend: a(batch.q, k, v, batch.tables, 0.09, out=batch.out)
            for k, v in batch.caches
        ])  # fmt: skip
        yield memory("attention", name, f"{rows} x {new} on {context}", us, size, READ_GBS)


def _randn(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_()


def tune() -> Iterator[Result]:
    """Nothing here has variants."""
    yield from ()


def run() -> Iterator[Result]:
    """The ordered kernels beside the usual ones."""
    for rows in (1, 64, 8192):
        yield from products(rows)
    for batch in BATCHES:
        yield from attention(*batch)
