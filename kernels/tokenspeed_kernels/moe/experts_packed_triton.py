"""Experts over 4-bit weights in Triton: gate and up with the activation in one kernel, down with
the weights in another, over blocks of pairs that share an expert. They lie as in `packed_triton`.

    inner[place] = act(Wg x[t], Wu x[t]),  made[pair] = w_pair (Wd inner[place] + bias)

The sum over a token's pairs is a third kernel, or left to the kernel that reads the result.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenspeed_kernels.launch_triton import cdiv, dependent_launch
from tokenspeed_kernels.moe.group_triton import group
from tokenspeed_kernels.moe.op import Shared
from tokenspeed_kernels.moe.packed_few_triton import _down, _gate_up
from tokenspeed_kernels.moe.packed_many_triton import _down_many, _gate_up_many, _narrow
from tokenspeed_kernels.moe.packed_triton import KINDS, ROWS, pack
from tokenspeed_kernels.moe.pairs_triton import sum_pairs
from tokenspeed_kernels.weight import RawWeight


@dataclass(frozen=True, slots=True)
class Tile:
    """`pairs` of a block, `tiles` of rows of a program (of gate and of up each), `warps`; `ahead`:
    so many of a warp's chunks are on their way at once. `most_registers` of a lane; 0: no bound."""

    pairs: int
    tiles: int
    warps: int
    ahead: int = 2
    most_registers: int = 0

    @property
    def options(self) -> dict[str, int]:
        """Of the compiler."""
        bound = {"maxnreg": self.most_registers} if self.most_registers else {}
        return {"num_warps": self.warps, **bound}


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of both products; they share the pairs of a block. `stages` of a pipeline, where the warps
    of a program share its tiles and not their inputs; 0: see the module's text. `early`: see
    `packed_few_triton._gate_up`."""

    gate_up: Tile
    down: Tile
    stages: int = 0
    early: bool = True


# One token's programs all fit the device at once: 720 and 360 for experts of 2,880 in 2,880.
ONE = Tiles(Tile(8, 1, 4, ahead=1), Tile(8, 2, 4))
FEW = Tiles(Tile(8, 1, 4, ahead=1), Tile(8, 2, 4, ahead=1))
SOME = Tiles(Tile(16, 1, 4), Tile(16, 2, 4, ahead=1))
MANY = Tiles(Tile(64, 4, 4), Tile(64, 4, 4), stages=3)


def tiles_for(chosen: torch.Tensor, num_experts: int) -> Tiles:
    """By how many pairs `chosen` [T, k] gives an expert on average. Only CUDA has products of 8
    columns."""
    if chosen.numel() / num_experts > 6:
        return MANY
    if torch.version.hip is not None:
        return SOME
    return ONE if len(chosen) == 1 else FEW


class ExpertsPackedTriton:
    """See `op.Experts`. 4-bit weights, which it packs; bfloat16 activations; widths are multiples
    of 32."""

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
        self._hidden, self._inner = gate_up.shape[1], down.shape[1]
        assert gate_up.shape[0] == 2 * num_experts * self._inner
        self._kind = KINDS[gate_up.format].value
        self._gate_up, self._down = pack(gate_up), pack(down)
        self._gate_up_bias, self._down_bias = gate_up_bias, down_bias
        self._experts, self._clamp, self._shared = num_experts, clamp, shared

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
            tiles = tiles or tiles_for(experts, self._experts)
            compute = self._many if tiles.stages else self._few
            sum_pairs(compute(x, weights, experts, tiles), added, out, apart=True)
        return out

    def parts(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """See `op.ExpertsInParts`."""
        tiles = tiles_for(experts, self._experts)
        if tiles.stages or self._shared is not None or not len(x):
            return self(x, weights, experts)
        return self._few(x, weights, experts, tiles)

    def _few(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, tiles: Tiles
    ) -> torch.Tensor:
        """What each pair of token and expert makes, with its weight, float32 [k, T, D]."""
        (tokens, top), pdl, one = experts.shape, dependent_launch(x.device), len(x) == 1
        tile, weight = tiles.gate_up, self._gate_up
        pairs, chosen, count, blocks = None, experts, None, top
        if not one:
            groups = group(experts, self._experts, tile.pairs)
            pairs, chosen, count, blocks = groups.pairs, groups.experts, groups.count, groups.most
        # Between the choice and `_gate_up`, which begins to load by it before this is done.
        narrow = self._narrow(x, turn=False)
        shape = (blocks * tile.pairs, self._inner)
        inner = torch.empty(shape, dtype=torch.float16, device=x.device)
        each = _tiles(tile, self._inner)
        _gate_up[(self._inner // (ROWS * each), blocks)](
            narrow, weight.words, weight.scales, self._gate_up_bias, pairs, chosen, count, inner,
            weight.left_wide, self._clamp or 0.0, D=self._hidden, F=self._inner, TOP=top,
            M=tile.pairs, T=each, W=tile.warps, GROUPS=weight.groups, KIND=self._kind,
            HAS_BIAS=self._gate_up_bias is not None, CLAMP=self._clamp is not None, ONE=one,
            AHEAD=tile.ahead, EARLY=tiles.early, PDL=pdl, **tile.options, launch_pdl=pdl,
        )  # fmt: skip
        tile, weight = tiles.down, self._down
        # Few tokens: exact until it is summed.
        made = torch.empty((top, tokens, self._hidden), dtype=torch.float32, device=x.device)
        each = _tiles(tile, self._hidden)
        _down[(self._hidden // (ROWS * each), blocks)](
            inner, weight.words, weight.scales, self._down_bias, weights, pairs, chosen, count,
            made, weight.left_wide, tokens, D=self._hidden, F=self._inner, TOP=top, M=tile.pairs,
            T=each, W=tile.warps, GROUPS=weight.groups, KIND=self._kind,
            HAS_BIAS=self._down_bias is not None, ONE=one, AHEAD=tile.ahead, PDL=pdl,
            **tile.options, launch_pdl=pdl,
        )  # fmt: skip
        return made

    def _many(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, tiles: Tiles
    ) -> torch.Tensor:
        """As `_few`, of the dtype of `x`."""
        (tokens, top), pdl = experts.shape, dependent_launch(x.device)
        narrow = self._narrow(x, turn=True)
        groups = group(experts, self._experts, tiles.gate_up.pairs)
        tile, weight = tiles.gate_up, self._gate_up
        shape = (groups.most * tile.pairs, self._inner)
        inner = torch.empty(shape, dtype=torch.float16, device=x.device)
        each = _tiles(tile, self._inner)
        _gate_up_many[(self._inner // (ROWS * each), groups.most)](
            narrow, weight.words, weight.scales, self._gate_up_bias, groups.pairs, groups.experts,
            groups.count, inner, weight.left, self._clamp or 0.0, D=self._hidden, F=self._inner,
            TOP=top, M=tile.pairs, T=each, GROUPS=weight.groups, KIND=self._kind,
            HAS_BIAS=self._gate_up_bias is not None, CLAMP=self._clamp is not None,
            STAGES=tiles.stages, PDL=pdl, num_warps=tile.warps, num_stages=tiles.stages,
            launch_pdl=pdl,
        )  # fmt: skip
        tile, weight = tiles.down, self._down
        made = torch.empty((top, tokens, self._hidden), dtype=x.dtype, device=x.device)
        each = _tiles(tile, self._hidden)
        _down_many[(self._hidden // (ROWS * each), groups.most)](
            inner, weight.words, weight.scales, self._down_bias, weights, groups.pairs,
            groups.experts, groups.count, made, weight.left, tokens, D=self._hidden, F=self._inner,
            TOP=top, M=tile.pairs, T=each, GROUPS=weight.groups, KIND=self._kind,
            HAS_BIAS=self._down_bias is not None, STAGES=tiles.stages, PDL=pdl,
            num_warps=tile.warps, num_stages=tiles.stages, launch_pdl=pdl,
        )  # fmt: skip
        return made

    def _narrow(self, x: torch.Tensor, turn: bool) -> torch.Tensor:
        out, pdl = torch.empty_like(x, dtype=torch.float16), dependent_launch(x.device)
        _narrow[(len(x), cdiv(self._hidden, 1024))](
            x, out, D=self._hidden, TURN=turn, BLOCK=1024, PDL=pdl, num_warps=4, launch_pdl=pdl
        )
        return out


def _tiles(tile: Tile, rows: int) -> int:
    """Tiles of a program: as many as wanted, or the most that divide those of the rows."""
    each = tile.tiles
    while rows // ROWS % each:
        each //= 2
    return each
