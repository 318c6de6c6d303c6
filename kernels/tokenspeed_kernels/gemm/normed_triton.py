"""The product of a row that is a norm, with the norm, in Triton: one launch instead of two.

    total = residual + branch,    y = norm(total) W^T + bias

One row's norm keeps one multiprocessor busy, and the product behind it waits for that with its
weights in registers. Each program of the product makes the norm for itself instead. As others still
read the residual while some are done, the sum goes to a place of its own.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.gemm.op import Unnormed
from tokenspeed_kernels.gemm.tiles import Normed
from tokenspeed_kernels.launch_triton import (
    cdiv,
    dependent_launch,
    next_power_of_2,
    start_next,
    wait_for_producer,
)


@triton.jit
def _one_normed(
    BRANCH, RESIDUAL, NORM, WEIGHT, BIAS, TOTAL, ROWS, OUT, out_features, eps,
    D: tl.constexpr, D_PAD: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """N outputs of one row. With PARTS > 1, BRANCH is float32 [PARTS, D], to be added up. The first
    program leaves the sum in TOTAL and its norm in ROWS."""
    start_next(PDL)
    n = tl.program_id(0) * N + tl.arange(0, N)
    column = tl.arange(0, D_PAD)
    inside = column < D
    # Constant: on their way while the producer of BRANCH still runs.
    weight = tl.load(NORM + column, mask=inside, other=0.0)
    w = tl.load(
        WEIGHT + n.to(tl.int64)[:, None] * D + column[None, :],
        mask=(n < out_features)[:, None] & inside[None, :], other=0.0,
        eviction_policy="evict_first",
    )  # fmt: skip
    wait_for_producer(PDL)
    x = tl.load(BRANCH + column, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        x += tl.load(BRANCH + part * D + column, mask=inside, other=0.0)
    residual = tl.load(RESIDUAL + column, mask=inside, other=0.0)
    # As `norm_triton` has it, roundings included.
    total = (x.to(tl.float32) + residual.to(tl.float32)).to(TOTAL.dtype.element_ty)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / D + eps)
    normed = (wide * scale).to(ROWS.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
    normed = normed.to(ROWS.dtype.element_ty)
    y = tl.sum(w.to(tl.float32) * normed.to(tl.float32)[None, :], 1)
    if HAS_BIAS:
        y += tl.load(BIAS + n, mask=n < out_features, other=0.0).to(tl.float32)
    tl.store(OUT + n, y.to(OUT.dtype.element_ty), mask=n < out_features)
    if tl.program_id(0) == 0:
        tl.store(TOTAL + column, total, mask=inside)
        tl.store(ROWS + column, normed, mask=inside)


def multiply_normed(
    x: Unnormed, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, cut: Normed
) -> None:
    """Writes `x.total`, `x.rows` and `out` [1, out], the product of the norm with `weight` [out,
    in]."""
    out_features, width = weight.shape
    assert weight.is_contiguous() and out.is_contiguous() and out.numel() == out_features
    for row in (x.residual, x.total, x.rows):
        assert row.is_contiguous() and row.shape == (1, width)
    assert x.branch.is_contiguous() and x.branch.shape[-2:] == (1, width)
    assert x.branch.dtype is (x.residual.dtype if x.branch.dim() == 2 else torch.float32)
    pdl = dependent_launch(out.device)
    _one_normed[(cdiv(out_features, cut.outputs),)](
        x.branch, x.residual, x.weight, weight, bias, x.total, x.rows, out, out_features, x.eps,
        D=width, D_PAD=next_power_of_2(width), N=cut.outputs,
        PARTS=1 if x.branch.dim() == 2 else x.branch.shape[0], HAS_BIAS=bias is not None, PDL=pdl,
        num_warps=cut.warps, launch_pdl=pdl,
    )  # fmt: skip
