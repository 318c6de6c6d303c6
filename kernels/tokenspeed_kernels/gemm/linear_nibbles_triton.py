"""Linear layers over 4-bit weights in Triton, which are read as they are stored and widened in
registers, for few rows and for many.

    y = x (W scales)^T + bias
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch
from tokenspeed_kernels.nibbles_triton import KINDS, widened
from tokenspeed_kernels.weight import NIBBLE_GROUPS, RawWeight


@dataclass(frozen=True, slots=True)
class NibblesTile:
    """`rows` of x and `outputs` of a program, `inputs` of one turn of its loop."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


FEW = NibblesTile(16, 32, 128, 4, 4)
MANY = NibblesTile(64, 64, 128, 4, 3)


def tile_for(rows: int) -> NibblesTile:
    return FEW if rows <= 32 else MANY


@triton.jit
def _product(
    X, W, SCALES, BIAS, OUT, rows, out_features, x_stride,
    WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    after_producer(PDL)
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    inside, live = n < out_features, m < rows
    outputs = tl.where(inside, n, 0).to(tl.int64)
    x_at = X + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    acc = tl.zeros([M, N], tl.float32)
    for start in tl.range(0, WIDTH, K, num_stages=STAGES):
        x = tl.load(x_at + start, mask=live[:, None] & (start + k < WIDTH)[None, :], other=0.0)
        w = widened(W, SCALES, outputs, start, WIDTH, N, K, GROUP, KIND)
        acc = tl.dot(x, tl.trans(w.to(x.dtype)), acc)
    if HAS_BIAS:
        acc += tl.load(BIAS + outputs).to(tl.float32)[None, :]
    to = OUT + m.to(tl.int64)[:, None] * out_features + n[None, :]
    tl.store(to, acc.to(OUT.dtype.element_ty), mask=live[:, None] & inside[None, :])


class LinearNibblesTriton:
    """See `op.Linear`. Weights of 4 bits without scales of their rows, bfloat16 rows."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        assert weight.data.is_contiguous() and weight.row_scales is None
        self._weight, self._bias = weight, bias

    def __call__(
        self,
        x: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        *,
        tile: NibblesTile | None = None,
    ) -> torch.Tensor:
        weight, rows = self._weight, len(x)
        out_features, width = weight.shape
        out = torch.empty((rows, out_features), dtype=out_dtype or x.dtype, device=x.device)
        if not rows:
            return out
        assert x.stride(1) == 1
        tile, pdl = tile or tile_for(rows), dependent_launch(x.device)
        grid = (cdiv(out_features, tile.outputs), cdiv(rows, tile.rows))
        _product[grid](
            x, weight.data, weight.scales, self._bias, out, rows, out_features, x.stride(0),
            WIDTH=width, M=tile.rows, N=tile.outputs, K=tile.inputs,
            GROUP=NIBBLE_GROUPS[weight.format], KIND=KINDS[weight.format].value,
            HAS_BIAS=self._bias is not None, STAGES=tile.stages, PDL=pdl, num_warps=tile.warps,
            num_stages=tile.stages, launch_pdl=pdl,
        )  # fmt: skip
        return out
