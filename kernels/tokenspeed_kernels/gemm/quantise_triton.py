"""Rows to float8 with a scale of their own, in Triton: a row in registers, read once."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import (
    dependent_launch,
    next_power_of_2,
    start_next,
    wait_for_producer,
)
from tokenspeed_kernels.weight import E4M3_LARGEST, LEAST_SCALED

_LARGEST = tl.constexpr(E4M3_LARGEST)
_LEAST = tl.constexpr(LEAST_SCALED)


@triton.jit
def to_float8(x):
    """A row in float8 and its scale: the largest element becomes 448."""
    wide = x.to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 0), _LEAST) / _LARGEST
    scaled = tl.minimum(tl.maximum(wide / scale, -_LARGEST), _LARGEST)
    return scaled.to(tl.float8e4nv), scale


@triton.jit
def _quantise(X, OUT, SCALES, width, row_stride, PAD: tl.constexpr, PDL: tl.constexpr):
    start_next(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PAD)
    wait_for_producer(PDL)
    x = tl.load(X + row * row_stride + column, mask=column < width, other=0.0)
    narrow, scale = to_float8(x)
    tl.store(OUT + row * width + column, narrow, mask=column < width)
    tl.store(SCALES + row, scale)


def float8_like(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for `x` [T, D] in float8, and for its scales."""
    rows = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    return rows, torch.empty((len(x), 1), dtype=torch.float32, device=x.device)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [T, D] to float8_e4m3fn [T, D] and float32 [T, 1], whose product it is: the largest
    element of each row becomes 448."""
    rows, width = x.shape
    assert x.stride(1) == 1
    out, scales = float8_like(x)
    if rows:
        padded = next_power_of_2(width)
        pdl = dependent_launch(x.device)
        _quantise[(rows,)](
            x, out, scales, width, x.stride(0), PAD=padded, PDL=pdl,
            num_warps=min(max(padded // 1024, 1), 16), launch_pdl=pdl,
        )  # fmt: skip
    return out, scales
