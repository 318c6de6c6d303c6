"""Products with few rows in Triton: the weight is read once, at the rate of memory.

One row is a dot product per output in ordinary arithmetic, straight from memory to registers.
A few rows go through the matrix units with a deep pipeline of narrow weight tiles; narrow, so that
there are enough programs to fill the device without splitting the inputs.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch
from tokenspeed_kernels.weight import RawWeight


@dataclass(frozen=True, slots=True)
class Tile:
    """`outputs` of a program, `inputs` of one turn of its loop."""

    outputs: int
    inputs: int
    warps: int
    stages: int


@triton.jit
def _one_row(
    X, WEIGHT, BIAS, OUT, out_features, in_features,
    N: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    weights = WEIGHT + n.to(tl.int64)[:, None] * in_features
    inside = (n < out_features)[:, None]
    # Weights are constant: the first tile is on its way while the producer of X still runs.
    w = tl.load(weights + k[None, :], mask=inside & (k < in_features)[None, :],
                other=0.0, eviction_policy="evict_first")  # fmt: skip
    after_producer(PDL)
    x = tl.load(X + k, mask=k < in_features, other=0.0)
    acc = w.to(tl.float32) * x.to(tl.float32)[None, :]
    for begin in tl.range(K, in_features, K, num_stages=STAGES):
        column = begin + k
        w = tl.load(weights + column[None, :], mask=inside & (column < in_features)[None, :],
                    other=0.0, eviction_policy="evict_first")  # fmt: skip
        x = tl.load(X + column, mask=column < in_features, other=0.0)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
    y = tl.sum(acc, 1)
    if HAS_BIAS:
        y += tl.load(BIAS + n, mask=n < out_features, other=0.0).to(tl.float32)
    tl.store(OUT + n, y.to(OUT.dtype.element_ty), mask=n < out_features)


@triton.jit
def _few_rows(
    X, WEIGHT, BIAS, OUT, rows, out_features, in_features, x_stride,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.arange(0, M)
    k = tl.arange(0, K)
    weights = WEIGHT + n.to(tl.int64)[:, None] * in_features
    inside = (n < out_features)[:, None]
    w = tl.load(weights + k[None, :], mask=inside & (k < in_features)[None, :], other=0.0)
    after_producer(PDL)
    x = tl.load(X + m[:, None] * x_stride + k[None, :],
                mask=(m < rows)[:, None] & (k < in_features)[None, :], other=0.0)  # fmt: skip
    acc = tl.dot(w, tl.trans(x))
    for begin in tl.range(K, in_features, K, num_stages=STAGES):
        column = begin + k
        w = tl.load(weights + column[None, :], mask=inside & (column < in_features)[None, :],
                    other=0.0)  # fmt: skip
        x = tl.load(X + m[:, None] * x_stride + column[None, :],
                    mask=(m < rows)[:, None] & (column < in_features)[None, :],
                    other=0.0)  # fmt: skip
        acc = tl.dot(w, tl.trans(x), acc)
    if HAS_BIAS:
        acc += tl.load(BIAS + n, mask=n < out_features, other=0.0).to(tl.float32)[:, None]
    tl.store(
        OUT + m[None, :] * out_features + n[:, None], acc.to(OUT.dtype.element_ty),
        mask=inside & (m < rows)[None, :],
    )  # fmt: skip


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: Tile,
) -> None:
    """out = x weight^T + bias for up to 64 rows of `x`."""
    rows, in_features = x.shape
    out_features = weight.shape[0]
    assert x.stride(1) == 1 and weight.is_contiguous() and out.is_contiguous() and rows <= 64
    pdl = dependent_launch(x.device)
    grid = (triton.cdiv(out_features, tile.outputs),)
    if rows == 1:
        _one_row[grid](
            x, weight, bias, out, out_features, in_features, N=tile.outputs, K=tile.inputs,
            HAS_BIAS=bias is not None, STAGES=tile.stages, PDL=pdl,
            num_warps=tile.warps, launch_pdl=pdl,
        )  # fmt: skip
    else:
        _few_rows[grid](
            x, weight, bias, out, rows, out_features, in_features, x.stride(0),
            M=max(triton.next_power_of_2(rows), 16), N=tile.outputs, K=tile.inputs,
            HAS_BIAS=bias is not None, STAGES=tile.stages, PDL=pdl,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
        )  # fmt: skip


# Measured on one H200 in whole decode steps of an 8B model. Alone, torch's product is faster at
# many outputs; but it waits for the kernel before it to end and keeps the next one from starting,
# which costs more between small kernels. Beyond 16 rows it wins all the same.
ONE_ROW = Tile(16, 256, 4, 4)
FEW_ROWS = Tile(32, 256, 4, 4)
MOST_ROWS = 16


class LinearSmallTriton:
    """See `op.Linear`. bfloat16 weights; torch's product where that is faster."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        assert weight.data.dtype is torch.bfloat16 and weight.data.is_contiguous()
        self._weight = weight.data
        self._bias = None if bias is None else bias.to(torch.bfloat16)

    def __call__(
        self,
        x: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows, out_features = x.shape[0], self._weight.shape[0]
        dtype = out_dtype or x.dtype
        if not 1 <= rows <= MOST_ROWS:
            product = F.linear(x, self._weight, self._bias)
            return product.to(dtype) if out is None else out.copy_(product)
        if out is None:
            out = torch.empty((rows, out_features), dtype=dtype, device=x.device)
        multiply(x, self._weight, self._bias, out, ONE_ROW if rows == 1 else FEW_ROWS)
        return out
