"""Experts in Triton: gate and up with the activation in one kernel, down with the weights in
another, over blocks of pairs that share an expert.

    inner[place] = act(Wg x[t], Wu x[t]),  made[pair] = w_pair (Wd inner[place] + bias)

The sum over a token's pairs is a third kernel, in a fixed order. One token alone goes through
`one_token_triton`.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch
from tokenspeed_kernels.moe.group_triton import group
from tokenspeed_kernels.moe.one_token_triton import ONE, OneTile, one_token
from tokenspeed_kernels.moe.op import Shared
from tokenspeed_kernels.moe.pairs_triton import activate, stays_exact, sum_pairs
from tokenspeed_kernels.weight import RawWeight


@dataclass(frozen=True, slots=True)
class Tile:
    """`pairs` of a block, `outputs` of the product (of gate and of up each), `inputs` at a time."""

    pairs: int
    outputs: int
    inputs: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of both products; they share the pairs of a block."""

    gate_up: Tile
    down: Tile


FEW = Tiles(Tile(16, 32, 128, 4, 4), Tile(16, 64, 128, 4, 4))
SOME = Tiles(Tile(64, 64, 64, 4, 4), Tile(64, 128, 64, 4, 4))
MANY = Tiles(Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3))


def tiles_for(pairs: int, num_experts: int) -> Tiles:
    """By how many pairs an expert gets on average."""
    each = pairs / num_experts
    return FEW if each <= 12 else SOME if each <= 64 else MANY


@triton.jit
def _gate_up(
    X, W, BIAS, PAIRS, EXPERTS, COUNT, INNER, clamp,
    D: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, CLAMP: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
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
    gate_at = W + rows[:, None] * D + k[None, :]
    up_at = gate_at + F * D
    gate = tl.zeros([M, N], tl.float32)
    up = tl.zeros([M, N], tl.float32)
    for start in tl.range(0, D, K, num_stages=STAGES):
        x = tl.load(x_at + start, mask=live[:, None], other=0.0)
        gate = tl.dot(x, tl.trans(tl.load(gate_at + start)), gate)
        up = tl.dot(x, tl.trans(tl.load(up_at + start)), up)
    if HAS_BIAS:
        gate += tl.load(BIAS + rows).to(tl.float32)[None, :]
        up += tl.load(BIAS + rows + F).to(tl.float32)[None, :]
    made = activate(gate, up, clamp, CLAMP).to(INNER.dtype.element_ty)
    to = INNER + (block * M + m).to(tl.int64)[:, None] * F + n[None, :]
    tl.store(to, made, mask=live[:, None] & inside[None, :])


@triton.jit
def _down(
    INNER, W, BIAS, WEIGHTS, PAIRS, EXPERTS, COUNT, MADE,
    D: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    HAS_BIAS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
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
    w_at = W + rows[:, None] * F + k[None, :]
    acc = tl.zeros([M, N], tl.float32)
    for start in tl.range(0, F, K, num_stages=STAGES):
        x = tl.load(x_at + start, mask=live[:, None], other=0.0)
        acc = tl.dot(x, tl.trans(tl.load(w_at + start)), acc)
    if HAS_BIAS:
        acc += tl.load(BIAS + rows).to(tl.float32)[None, :]
    acc *= tl.load(WEIGHTS + pair, mask=live, other=0.0)[:, None]
    to = MADE + tl.maximum(pair, 0).to(tl.int64)[:, None] * D + n[None, :]
    tl.store(to, acc.to(MADE.dtype.element_ty), mask=live[:, None] & inside[None, :])


class ExpertsTriton:
    """See `op.Experts`. bfloat16 weights and activations; widths are multiples of 64."""

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
        self._gate_up, self._down = gate_up, down
        self._gate_up_bias, self._down_bias = gate_up_bias, down_bias
        self._experts, self._clamp = num_experts, clamp
        self._hidden, self._inner = gate_up.shape[1], down.shape[1]
        assert self._hidden % 64 == 0 and self._inner % 64 == 0
        assert gate_up.shape[0] == 2 * num_experts * self._inner
        self._shared = shared
        # What one token's kernels read of it themselves.
        self._read = clamp is None and shared is not None and _plain(shared)

    def __call__(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        *,
        tiles: Tiles | OneTile | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`out`: where it goes, fresh memory where it is left out."""
        tokens = x.shape[0]
        assert x.is_contiguous() and x.shape[1] == self._hidden and x.dtype is torch.bfloat16
        assert weights.is_contiguous() and experts.is_contiguous()
        if tiles is None:
            tiles = ONE if tokens == 1 else tiles_for(experts.numel(), self._experts)
        one = isinstance(tiles, OneTile)
        added = None
        if self._shared is not None and not (one and self._read):
            added = self._shared.compute(x)
            assert added.is_contiguous()
        if out is None:
            out = torch.empty_like(x) if added is None else added
        if isinstance(tiles, OneTile):
            assert tokens == 1
            beside = None
            if self._read and self._shared is not None:
                beside = (self._shared.gate_up.data, self._shared.down.data)
            one_token(
                x, self._gate_up, self._down, (self._gate_up_bias, self._down_bias), beside,
                weights, experts, added, self._clamp, tiles, out,
            )  # fmt: skip
        elif tokens:
            self._many(x, weights, experts, added, tiles, out)
        return out

    def _many(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        added: torch.Tensor | None,
        tiles: Tiles,
        out: torch.Tensor,
    ) -> None:
        (tokens, top), pdl = experts.shape, dependent_launch(x.device)
        groups = group(experts, self._experts, tiles.gate_up.pairs)
        tile = tiles.gate_up
        shape = (groups.most * tile.pairs, self._inner)
        inner = torch.empty(shape, dtype=x.dtype, device=x.device)
        _gate_up[(cdiv(self._inner, tile.outputs), groups.most)](
            x, self._gate_up.data, self._gate_up_bias, groups.pairs, groups.experts, groups.count,
            inner, self._clamp or 0.0, D=self._hidden, F=self._inner, TOP=top, M=tile.pairs,
            N=tile.outputs, K=_step(self._hidden, tile.inputs),
            HAS_BIAS=self._gate_up_bias is not None, CLAMP=self._clamp is not None,
            STAGES=tile.stages, PDL=pdl, num_warps=tile.warps, num_stages=tile.stages,
            launch_pdl=pdl,
        )  # fmt: skip
        tile = tiles.down
        kept = torch.float32 if stays_exact(tokens) else x.dtype
        made = torch.empty((tokens * top, self._hidden), dtype=kept, device=x.device)
        _down[(cdiv(self._hidden, tile.outputs), groups.most)](
            inner, self._down.data, self._down_bias, weights, groups.pairs, groups.experts,
            groups.count, made, D=self._hidden, F=self._inner, M=tile.pairs, N=tile.outputs,
            K=_step(self._inner, tile.inputs), HAS_BIAS=self._down_bias is not None,
            STAGES=tile.stages, PDL=pdl, num_warps=tile.warps, num_stages=tile.stages,
            launch_pdl=pdl,
        )  # fmt: skip
        sum_pairs(made, added, out)


def _plain(shared: Shared) -> bool:
    parts = (shared.gate_up, shared.down)
    return all(part.format == "bfloat16" and part.data.is_contiguous() for part in parts)


def _step(width: int, wanted: int) -> int:
    """Inputs at a time: `wanted`, or 64 where that does not divide the width."""
    return wanted if width % wanted == 0 else 64
