"""Experts over float8 and 4-bit weights in Triton: `experts_triton` with weights that are read as
they are stored and widened in registers.

See `nibbles_triton` for those of 4 bits; float8 is taken as it is, the product of a step of inputs
times the scale of its rows or blocks. One token goes the same way as many.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch
from tokenspeed_kernels.moe.experts_triton import Tile, Tiles
from tokenspeed_kernels.moe.group_triton import group
from tokenspeed_kernels.moe.op import Shared
from tokenspeed_kernels.moe.pairs_triton import activate, stays_exact, sum_pairs
from tokenspeed_kernels.nibbles_triton import KINDS, NIBBLES, times_rows, widened
from tokenspeed_kernels.weight import NIBBLE_GROUPS, SQUARE, RawWeight

# Beyond the kinds of 4-bit values.
FP8_ROW, FP8_SQUARE = tl.constexpr(NIBBLES.value + 0), tl.constexpr(NIBBLES.value + 1)
_KINDS = {**KINDS, "fp8": FP8_ROW, "fp8_block": FP8_SQUARE}
# Inputs under one scale of float8 blocks.
_SQUARE = tl.constexpr(SQUARE)
_STEP = 128

FEW = Tiles(Tile(16, 32, _STEP, 4, 4), Tile(16, 64, _STEP, 4, 4))
MANY = Tiles(Tile(64, 32, _STEP, 4, 3), Tile(64, 64, _STEP, 4, 3))
# The product of a step is scaled in registers, of which four warps of sm_100 have too few.
MANY_FP8 = Tiles(Tile(64, 32, _STEP, 8, 3), Tile(64, 64, _STEP, 8, 3))


def tiles_for(pairs: int, num_experts: int, kept: str) -> Tiles:
    """By how many pairs an expert gets on average."""
    if pairs / num_experts <= 12:
        return FEW
    return MANY if kept in NIBBLE_GROUPS else MANY_FP8


@triton.jit
def _add_product(
    acc, x, W, SCALES, rows, start, WIDTH: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """acc [M, N] and what inputs `start` to start + K of `rows` make with `x` [M, K]."""
    if KIND < NIBBLES:
        w = widened(W, SCALES, rows, start, WIDTH, N, K, GROUP, KIND)
        acc = tl.dot(x, tl.trans(w.to(x.dtype)), acc)
    else:
        k = start + tl.arange(0, K)
        at = rows[:, None] * WIDTH + k[None, :]
        w = tl.load(W + at, mask=(k < WIDTH)[None, :], other=0.0)
        if KIND == FP8_ROW:
            scales = tl.load(SCALES + rows)
        else:
            ACROSS: tl.constexpr = (WIDTH + _SQUARE - 1) // _SQUARE
            scales = tl.load(SCALES + rows // _SQUARE * ACROSS + start // _SQUARE)
        acc += tl.dot(x, tl.trans(w.to(tl.float32).to(x.dtype))) * scales[None, :]
    return acc


@triton.jit
def _gate_up(
    X, W, SCALES, ROW_SCALES, BIAS, PAIRS, EXPERTS, COUNT, INNER, clamp,
    D: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    CLAMP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """W: for each expert F gate rows, then F up rows, of D."""
    after_producer(PDL)
    block = tl.program_id(1)
    if block >= tl.load(COUNT):
        return
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.arange(0, M)
    k = tl.arange(0, K)
    expert = tl.load(EXPERTS + block).to(tl.int64)
    pair = tl.load(PAIRS + block * M + m)
    live = pair >= 0
    token = (tl.maximum(pair, 0) // TOP).to(tl.int64)
    inside = n < F
    rows = expert * (2 * F) + tl.where(inside, n, 0)
    x_at = X + token[:, None] * D + k[None, :]
    gate = tl.zeros([M, N], tl.float32)
    up = tl.zeros([M, N], tl.float32)
    for start in tl.range(0, D, K, num_stages=STAGES):
        x = tl.load(x_at + start, mask=live[:, None] & (start + k < D)[None, :], other=0.0)
        gate = _add_product(gate, x, W, SCALES, rows, start, D, N, K, GROUP, KIND)
        up = _add_product(up, x, W, SCALES, rows + F, start, D, N, K, GROUP, KIND)
    gate = times_rows(gate, ROW_SCALES, rows, KIND)
    up = times_rows(up, ROW_SCALES, rows + F, KIND)
    if HAS_BIAS:
        gate += tl.load(BIAS + rows).to(tl.float32)[None, :]
        up += tl.load(BIAS + rows + F).to(tl.float32)[None, :]
    made = activate(gate, up, clamp, CLAMP).to(INNER.dtype.element_ty)
    to = INNER + (block * M + m).to(tl.int64)[:, None] * F + n[None, :]
    tl.store(to, made, mask=live[:, None] & inside[None, :])


@triton.jit
def _down(
    INNER, W, SCALES, ROW_SCALES, BIAS, WEIGHTS, PAIRS, EXPERTS, COUNT, MADE,
    D: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    GROUP: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """W: for each expert D rows of F. MADE: one row per pair."""
    after_producer(PDL)
    block = tl.program_id(1)
    if block >= tl.load(COUNT):
        return
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.arange(0, M)
    k = tl.arange(0, K)
    expert = tl.load(EXPERTS + block).to(tl.int64)
    pair = tl.load(PAIRS + block * M + m)
    live = pair >= 0
    inside = n < D
    rows = expert * D + tl.where(inside, n, 0)
    x_at = INNER + (block * M + m).to(tl.int64)[:, None] * F + k[None, :]
    acc = tl.zeros([M, N], tl.float32)
    for start in tl.range(0, F, K, num_stages=STAGES):
        x = tl.load(x_at + start, mask=live[:, None] & (start + k < F)[None, :], other=0.0)
        acc = _add_product(acc, x, W, SCALES, rows, start, F, N, K, GROUP, KIND)
    acc = times_rows(acc, ROW_SCALES, rows, KIND)
    if HAS_BIAS:
        acc += tl.load(BIAS + rows).to(tl.float32)[None, :]
    acc *= tl.load(WEIGHTS + pair, mask=live, other=0.0)[:, None]
    to = MADE + tl.maximum(pair, 0).to(tl.int64)[:, None] * D + n[None, :]
    tl.store(to, acc.to(MADE.dtype.element_ty), mask=live[:, None] & inside[None, :])


class ExpertsQuantisedTriton:
    """See `op.Experts`. Weights of `_KINDS`, bfloat16 activations; widths are multiples of 32."""

    def __init__(
        self,
        gate_up: RawWeight,
        down: RawWeight,
        num_experts: int,
        gate_up_bias: torch.Tensor | None,
        down_bias: torch.Tensor | None,
        clamp: float | None,
        shared: Shared | None = None,
    ) -> None:
        assert gate_up.format == down.format and gate_up.shape[1] % 32 == down.shape[1] % 32 == 0
        self._gate_up, self._down = gate_up, down
        self._gate_up_bias, self._down_bias = gate_up_bias, down_bias
        self._experts, self._clamp, self._shared = num_experts, clamp, shared
        self._hidden, self._inner = gate_up.shape[1], down.shape[1]
        assert gate_up.shape[0] == 2 * num_experts * self._inner
        self._kind = {
            "GROUP": NIBBLE_GROUPS.get(gate_up.format, SQUARE),
            "KIND": _KINDS[gate_up.format].value,
        }  # fmt: skip

    def __call__(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        *,
        tiles: Tiles | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`out`: where it goes, fresh memory where it is left out."""
        assert x.is_contiguous() and x.shape[1] == self._hidden and x.dtype is torch.bfloat16
        assert weights.is_contiguous() and experts.is_contiguous()
        added = None if self._shared is None else self._shared.compute(x)
        if out is None:
            out = torch.empty_like(x) if added is None else added
        if x.shape[0]:
            if tiles is None:
                tiles = tiles_for(experts.numel(), self._experts, self._gate_up.format)
            made = self._pairs(x, weights, experts, tiles)
            sum_pairs(made, added, out)
        return out

    def _pairs(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, tiles: Tiles
    ) -> torch.Tensor:
        """What each pair of token and expert makes, [T * k, D], with its weight."""
        (tokens, top), pdl = experts.shape, dependent_launch(x.device)
        groups = group(experts, self._experts, tiles.gate_up.pairs)
        tile, weight = tiles.gate_up, self._gate_up
        shape = (groups.most * tile.pairs, self._inner)
        inner = torch.empty(shape, dtype=x.dtype, device=x.device)
        _gate_up[(cdiv(self._inner, tile.outputs), groups.most)](
            x, weight.data, weight.scales, weight.row_scales, self._gate_up_bias, groups.pairs,
            groups.experts, groups.count, inner, self._clamp or 0.0, D=self._hidden,
            F=self._inner, TOP=top, M=tile.pairs, N=tile.outputs, K=tile.inputs, **self._kind,
            HAS_BIAS=self._gate_up_bias is not None, CLAMP=self._clamp is not None,
            STAGES=tile.stages, PDL=pdl, num_warps=tile.warps, num_stages=tile.stages,
            launch_pdl=pdl,
        )  # fmt: skip
        tile, weight = tiles.down, self._down
        kept = torch.float32 if stays_exact(tokens) else x.dtype
        made = torch.empty((tokens * top, self._hidden), dtype=kept, device=x.device)
        _down[(cdiv(self._hidden, tile.outputs), groups.most)](
            inner, weight.data, weight.scales, weight.row_scales, self._down_bias, weights,
            groups.pairs, groups.experts, groups.count, made, D=self._hidden, F=self._inner,
            M=tile.pairs, N=tile.outputs, K=tile.inputs, **self._kind,
            HAS_BIAS=self._down_bias is not None, STAGES=tile.stages, PDL=pdl,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
        )  # fmt: skip
        return made
