"""RMSNorm in Triton: one program per row, the row held in registers between its two uses.

One token's norm keeps one multiprocessor busy, and its router reads next to nothing: together they
are two waits for memory. `ScoredNormTriton` makes both in one launch: each program of the router
makes the whole norm again, with its part of the router's weight on the way meanwhile. As programs
still read the residual while others are done, the sum goes to a place of its own.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.gemm.op import Quantised
from tokenspeed_kernels.gemm.quantise_triton import float8_like, to_float8
from tokenspeed_kernels.launch_triton import dependent_launch, start_next, wait_for_producer
from tokenspeed_kernels.moe.op import Scored
from tokenspeed_kernels.moe.packed_triton import narrow
from tokenspeed_kernels.weight import RawWeight

# Below this many rows the device is not full: more warps per row shorten the wait for memory.
_FEW_ROWS = 264
# Scores of a program.
_SCORES = 2


@triton.jit
def _sum_of_parts(X, row, rows, row_stride, column, inside, PARTS: tl.constexpr):
    """A row of X, or with PARTS > 1 of float32 [PARTS, rows, D], added up in their order."""
    x = tl.load(X + row * row_stride + column, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        place = (part * rows + row) * row_stride + column
        x += tl.load(X + place, mask=inside, other=0.0)
    return x


@triton.jit
def _normed(x, weight, eps, D: tl.constexpr, TYPE: tl.constexpr):
    """The norm of a row. Rounded twice, as the models were trained."""
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / D + eps)
    return ((wide * scale).to(TYPE).to(tl.float32) * weight.to(tl.float32)).to(TYPE)


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
    x = _sum_of_parts(X, row, tl.num_programs(0), row_stride, column, inside, PARTS)
    if ADD:
        residual = tl.load(RESIDUAL + row * D + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(RESIDUAL.dtype.element_ty)
        tl.store(RESIDUAL + row * D + column, x, mask=inside)
    made = _normed(x, weight, eps, D, OUT.dtype.element_ty)
    tl.store(OUT + row * D + column, made, mask=inside)
    if QUANTISE:
        float8, scale = to_float8(made)
        tl.store(FLOAT8 + row * D + column, float8, mask=inside)
        tl.store(SCALES + row, scale)


@triton.jit
def _scored_norm(
    X, RESIDUAL, WEIGHT, ROUTER, BIAS, OUT, HALF, SUM, SCORES, eps,
    D: tl.constexpr, D_PAD: tl.constexpr, E: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    start_next(PDL)
    program = tl.program_id(0)
    n = program * N + tl.arange(0, N)
    column = tl.arange(0, D_PAD)
    inside = column < D
    # Constant: they are on their way while the producer of X still runs.
    weight = tl.load(WEIGHT + column, mask=inside, other=0.0)
    at = ROUTER + n[:, None] * D + column[None, :]
    router = tl.load(at, mask=(n < E)[:, None] & inside[None, :], other=0.0)
    wait_for_producer(PDL)
    x = _sum_of_parts(X, 0, 1, D, column, inside, PARTS)
    residual = tl.load(RESIDUAL + column, mask=inside, other=0.0)
    x = (x.to(tl.float32) + residual.to(tl.float32)).to(RESIDUAL.dtype.element_ty)
    made = _normed(x, weight, eps, D, OUT.dtype.element_ty)
    scores = tl.sum(router.to(tl.float32) * made.to(tl.float32)[None, :], 1)
    if HAS_BIAS:
        scores += tl.load(BIAS + n, mask=n < E, other=0.0).to(tl.float32)
    tl.store(SCORES + n, scores, mask=n < E)
    if program == 0:
        tl.store(OUT + column, made, mask=inside)
        tl.store(HALF + column, narrow(made), mask=inside)
        tl.store(SUM + column, x, mask=inside)


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
    values, scales = (None, None) if float8 is None else float8
    made = Quantised(out, values, scales)
    if rows == 0:
        return made
    padded = triton.next_power_of_2(width)
    # 8 elements are one 16-byte load of a thread; few rows take one load each, many take four.
    loads = 1 if rows <= _FEW_ROWS or ordered else 4
    pdl = dependent_launch(x.device)
    _rms_norm[(rows,)](
        x, residual, weight, out, values, scales, x.stride(-2), eps,
        D=width, D_PAD=padded, PARTS=1 if x.dim() == 2 else x.shape[0],
        ADD=residual is not None, QUANTISE=values is not None, PDL=pdl,
        num_warps=min(max(padded // (256 * loads), 1), 16), launch_pdl=pdl,
    )  # fmt: skip
    return made


class ScoredNormTriton:
    """See `op.ScoredNorm`; bfloat16."""

    def __init__(
        self, weight: torch.Tensor, eps: float, router: RawWeight, bias: torch.Tensor | None
    ) -> None:
        assert weight.dtype is router.data.dtype is torch.bfloat16
        assert weight.is_contiguous() and router.data.is_contiguous()
        self._weight, self._eps, self._router, self._bias = weight, eps, router.data, bias

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor | Scored, torch.Tensor]:
        """`x` as in `norm_triton.add_rms_norm`."""
        if len(residual) != 1:
            return add_rms_norm(x, residual, self._weight, self._eps), residual
        assert residual.is_contiguous() and x.is_contiguous()
        experts, width = self._router.shape
        rows, total = torch.empty_like(residual), torch.empty_like(residual)
        half = torch.empty_like(residual, dtype=torch.float16)
        scores = torch.empty((1, experts), dtype=torch.float32, device=residual.device)
        pdl, padded = dependent_launch(residual.device), triton.next_power_of_2(width)
        _scored_norm[(triton.cdiv(experts, _SCORES),)](
            x, residual, self._weight, self._router, self._bias, rows, half, total, scores,
            self._eps, D=width, D_PAD=padded, E=experts, N=_SCORES,
            PARTS=1 if x.dim() == 2 else x.shape[0], HAS_BIAS=self._bias is not None, PDL=pdl,
            num_warps=min(max(padded // 256, 1), 16), launch_pdl=pdl,
        )  # fmt: skip
        return Scored(rows, scores, half), total
