"""RMSNorm in Triton: one program per row, the row held in registers between its two uses."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.gemm.op import Quantised
from tokenspeed_kernels.gemm.quantise_triton import float8_like, to_float8
from tokenspeed_kernels.launch_triton import (
    dependent_launch,
    next_power_of_2,
    start_next,
    wait_for_producer,
)

# Below this many rows the device is not full: more warps per row shorten the wait for memory.
_FEW_ROWS = 264
# Registers of a thread where parts are added up. Left alone the compiler takes 32 for 512 threads
# and asks for one part after the other; with these all are on their way before the first is added.
_MOST_REGISTERS = 128


@triton.jit
def _rms_norm(
    X, RESIDUAL, WEIGHT, OUT, FLOAT8, SCALES, row_stride, eps,
    D: tl.constexpr, D_PAD: tl.constexpr, PARTS: tl.constexpr, ADD: tl.constexpr,
    QUANTISE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """With PARTS > 1, X is float32 [PARTS, rows, D], to be added up. QUANTISE: OUT also in float8,
    over a scale of its row."""
    start_next(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, D_PAD)
    inside = column < D
    # The weight is constant: it may be read while the producer of X still runs.
    weight = tl.load(WEIGHT + column, mask=inside, other=0.0)
    wait_for_producer(PDL)
    x = tl.load(X + row * row_stride + column, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        place = (part * tl.num_programs(0) + row) * row_stride + column
        x += tl.load(X + place, mask=inside, other=0.0)
    if ADD:
        residual = tl.load(RESIDUAL + row * D + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(RESIDUAL.dtype.element_ty)
        tl.store(RESIDUAL + row * D + column, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / D + eps)
    # Rounded twice, as the models were trained.
    normed = (wide * scale).to(OUT.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
    normed = normed.to(OUT.dtype.element_ty)
    tl.store(OUT + row * D + column, normed, mask=inside)
    if QUANTISE:
        narrow, scale = to_float8(normed)
        tl.store(FLOAT8 + row * D + column, narrow, mask=inside)
        tl.store(SCALES + row, scale)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    ordered: bool = False,
) -> torch.Tensor:
    """See `op.RmsNorm`. Rows of `x` may be strided. `ordered`: a row is summed up in one order,
    however many there are."""
    assert weight.dtype is x.dtype
    return _launch(x, None, weight, eps, out, None, ordered).rows


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    ordered: bool = False,
) -> torch.Tensor:
    """See `op.AddRmsNorm`. `out` may be `x`; `x` may also be float32 [parts, T, D], to be added up
    in their order. `ordered`: see `rms_norm`."""
    _check(x, residual)
    return _launch(x, residual, weight, eps, out, None, ordered).rows


def add_rms_norm_float8(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Quantised:
    """See `op.AddRmsNormFloat8`; `x` as in `add_rms_norm`."""
    _check(x, residual)
    return _launch(x, residual, weight, eps, None, float8_like(residual), False)


def _check(x: torch.Tensor, residual: torch.Tensor) -> None:
    assert residual.is_contiguous() and residual.shape == x.shape[-2:]
    assert x.is_contiguous() and x.dtype is (residual.dtype if x.dim() == 2 else torch.float32)


rms_norm_ordered = functools.partial(rms_norm, ordered=True)
add_rms_norm_ordered = functools.partial(add_rms_norm, ordered=True)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None,
    float8: tuple[torch.Tensor, torch.Tensor] | None,
    ordered: bool,
) -> Quantised:
    rows, width = x.shape[-2:]
    assert x.stride(-1) == 1 and weight.is_contiguous()
    if out is None:
        out = torch.empty((rows, width), dtype=weight.dtype, device=x.device)
    assert out.is_contiguous()
    narrow, scales = (None, None) if float8 is None else float8
    made = Quantised(out, narrow, scales)
    if rows == 0:
        return made
    padded = next_power_of_2(width)
    # 8 elements are one 16-byte load of a thread; few rows take one load each, many take four.
    loads = 1 if rows <= _FEW_ROWS or ordered else 4
    pdl = dependent_launch(x.device)
    parts = 1 if x.dim() == 2 else x.shape[0]
    bound = {"maxnreg": _MOST_REGISTERS} if pdl and parts > 1 and loads == 1 else {}
    _rms_norm[(rows,)](
        x, residual, weight, out, narrow, scales, x.stride(-2), eps,
        D=width, D_PAD=padded, PARTS=parts,
        ADD=residual is not None, QUANTISE=narrow is not None, PDL=pdl,
        num_warps=min(max(padded // (256 * loads), 1), 16), launch_pdl=pdl, **bound,
    )  # fmt: skip
    return made
