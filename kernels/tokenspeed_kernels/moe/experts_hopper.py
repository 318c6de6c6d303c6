"""Experts on Hopper: products of `grouped_hopper` for blocks of pairs, for one token those of
`one_token_triton`, the second one of bfloat16 by `one_token_hopper`.

Where the weights are float8, the rows that they meet become float8 too, with a scale for each 128
inputs: the token's by a kernel of its own, those between the products by the first product. One
token's stay bfloat16.

What few tokens pass beside their experts is read by the same kernels, as parts as wide as an
expert; what many pass, or in float8, is left to products of their own.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tokenspeed_kernels.launch_triton import dependent_launch, num_multiprocessors
from tokenspeed_kernels.maps_hopper import tensor_map
from tokenspeed_kernels.moe import one_token_hopper
from tokenspeed_kernels.moe.group_triton import Groups, group
from tokenspeed_kernels.moe.grouped_hopper import ROWS, _grouped
from tokenspeed_kernels.moe.one_token_triton import (
    ONE,
    ONE_ALONE,
    ONE_FP8,
    ONE_FP8_BLOCK,
    ONE_RING,
    OneTile,
    gate_up_one,
    one_token,
)
from tokenspeed_kernels.moe.op import Shared
from tokenspeed_kernels.moe.pairs_triton import stays_exact, sum_pairs
from tokenspeed_kernels.moe.quantise_groups_triton import GROUP, quantise_groups
from tokenspeed_kernels.weight import RawWeight


@dataclass(frozen=True, slots=True)
class Ring:
    """`pairs` of a block, `inputs` of a tile, `takers` warpgroups that multiply, `stages` tiles in
    the ring."""

    pairs: int
    inputs: int
    takers: int
    stages: int


# By how many pairs an expert gets on average, at most.
_WIDE = (
    (12, Ring(16, 128, 1, 6)),
    (24, Ring(32, 128, 1, 5)),
    (48, Ring(64, 64, 2, 5)),
    (1 << 30, Ring(128, 64, 2, 4)),
)
_NARROW = ((12, Ring(16, 128, 2, 6)), (24, Ring(32, 128, 2, 5)), (1 << 30, Ring(64, 128, 2, 5)))


# All of them, and whether their weights are float8.
RINGS = tuple(
    (narrow, ring) for narrow, rings in ((False, _WIDE), (True, _NARROW)) for _, ring in rings
)


def ring_for(pairs: int, num_experts: int, narrow: bool) -> Ring:
    """`narrow`: the weights are float8."""
    each = pairs / num_experts
    return next(ring for most, ring in (_NARROW if narrow else _WIDE) if each <= most)


class ExpertsHopper:
    """See `op.Experts` and `op.ExpertsInParts`. Weights bfloat16, fp8 or fp8_block, activations
    bfloat16; the hidden width is a multiple of 256, the inner one of 128. No biases, no clamp."""

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
        assert gate_up_bias is None and down_bias is None and clamp is None
        self._gate_up, self._down = gate_up, down
        self._experts, self._shared = num_experts, shared
        self._hidden, self._inner = gate_up.shape[1], down.shape[1]
        assert self._hidden % 256 == 0 and self._inner % 128 == 0
        assert gate_up.shape[0] == 2 * num_experts * self._inner
        # As the kernels count: 0 none, 1 one of a row, 2 one of a square.
        self._scale = 0 if gate_up.scales is None else gate_up.scales.dim()
        # What one token's kernels read of it themselves.
        self._beside: tuple[torch.Tensor, torch.Tensor] | None = None
        if shared is not None and _plain(shared.gate_up) and _plain(shared.down):
            self._beside = (shared.gate_up.data, shared.down.data)
        # In how many parts as wide as an expert, 0: not in whole ones.
        self._passed = 0
        if self._beside is not None and not self._scale:
            parts, rest = divmod(self._beside[1].shape[1], self._inner)
            self._passed = 0 if rest else parts

    def __call__(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        *,
        ring: Ring | OneTile | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`out`: where it goes, fresh memory where it is left out."""
        ring = ring or self._ring(experts)
        added = None
        if self._shared is not None and not self._reads_shared(ring, len(x)):
            added = self._shared.compute(x)
            assert added.is_contiguous()
        if out is None:
            out = torch.empty_like(x) if added is None else added
        if isinstance(ring, OneTile):
            self._one(x, weights, experts, added, ring, out)
        elif len(x):
            made = self._pairs(x, weights, experts, ring, in_parts=False)
            sum_pairs(made, added, out)
        return out

    def parts(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """See `op.ExpertsInParts`."""
        ring = self._ring(experts)
        few = len(x) > 0 and stays_exact(len(x))
        whole = self._shared is None or self._reads_shared(ring, len(x))
        if few and whole and isinstance(ring, Ring):
            return self._pairs(x, weights, experts, ring, in_parts=True)
        return self(x, weights, experts, ring=ring)

    def _reads_shared(self, ring: Ring | OneTile, tokens: int) -> bool:
        """Whether the kernels of so many tokens read what all pass."""
        if isinstance(ring, OneTile):
            return self._beside is not None
        return self._passed > 0 and stays_exact(tokens)

    def _ring(self, experts: torch.Tensor) -> Ring | OneTile:
        tokens, top = experts.shape
        if tokens != 1:
            ring = ring_for(experts.numel(), self._experts, self._scale > 0)
            # A part that all pass is read once a block, and so is an expert that many choose.
            low = ring.pairs < tokens and self._reads_shared(ring, tokens)
            return max(ring, _WIDE[1][1], key=lambda one: one.pairs) if low else ring
        if self._scale:
            return ONE_FP8 if self._scale == 1 else ONE_FP8_BLOCK
        if self._shared is not None:
            return ONE
        rings = one_token_hopper.fits(self._hidden, self._inner, top, experts.device)
        return ONE_RING if rings else ONE_ALONE

    def _one(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        added: torch.Tensor | None,
        tile: OneTile,
        out: torch.Tensor,
    ) -> None:
        assert len(x) == 1
        if tile.down_warps:
            one_token(x, self._gate_up, self._down, (None, None), self._beside, weights, experts,
                      added, None, tile, out)  # fmt: skip
            return
        assert self._shared is None and not self._scale
        inner = gate_up_one(x, self._gate_up, None, None, experts, None, tile, self._inner)
        one_token_hopper.down(inner, self._down.data, weights, experts, out)

    def _pairs(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        ring: Ring,
        in_parts: bool,
    ) -> torch.Tensor:
        """What each token's n-th expert makes, with its weight: [T, k, D]; in parts [k, T, D]. What
        all tokens pass counts as further experts where these kernels read it."""
        assert x.is_contiguous() and x.shape[1] == self._hidden and x.dtype is torch.bfloat16
        assert weights.is_contiguous() and experts.is_contiguous()
        tokens, top = experts.shape
        first, second, passed = None, None, 0
        if self._beside is not None and self._reads_shared(ring, tokens):
            (first, second), passed = self._beside, self._passed
        groups = group(experts, self._experts, ring.pairs, passed)
        rows, row_scales = quantise_groups(x) if self._scale else (x, None)
        places, width, hidden = groups.most * ring.pairs, self._inner, self._hidden
        inner = torch.empty((places, width), dtype=rows.dtype, device=x.device)
        inner_scales = None
        if self._scale:
            inner_scales = x.new_empty((places, width // GROUP), dtype=torch.float32)
        step = ROWS.value * ring.takers
        self._launch(
            (self._gate_up, first), None, rows, row_scales, inner, inner_scales, (0, 0), groups,
            weights, ring,
            HEIGHT=2 * width, HALF=width, STRIDE=step, ITEMS=width // step,
            TURNS=hidden // ring.inputs, D=hidden, WIDTH=width, GATED=True,
        )  # fmt: skip
        kept = torch.float32 if stays_exact(tokens) else x.dtype
        each = top + passed
        shape = (each, tokens) if in_parts else (tokens, each)
        made = torch.empty((*shape, hidden), dtype=kept, device=x.device)
        strides = (1, tokens) if in_parts else (each, 1)
        inner_map = tensor_map(inner, ring.pairs, ring.inputs)
        self._launch(
            (self._down, second), inner_map, inner, inner_scales, made, None, strides, groups,
            weights, ring,
            HEIGHT=hidden, HALF=step, STRIDE=2 * step, ITEMS=hidden // (2 * step),
            TURNS=width // ring.inputs, D=width, WIDTH=hidden, GATED=False,
        )  # fmt: skip
        return made

    def _launch(
        self,
        matrices: tuple[RawWeight, torch.Tensor | None],
        x_map: TensorDescriptor | None,
        x: torch.Tensor,
        x_scales: torch.Tensor | None,
        out: torch.Tensor,
        out_scales: torch.Tensor | None,
        strides: tuple[int, int],
        groups: Groups,
        weights: torch.Tensor,
        ring: Ring,
        **constants: Any,
    ) -> None:
        """`matrices`: of the experts, and of what all tokens pass where the kernel reads that."""
        pdl, (weight, shared) = dependent_launch(x.device), matrices
        programs = min(num_multiprocessors(x.device), groups.most * constants["ITEMS"])
        tokens, top = weights.shape
        shared_map = None if shared is None else tensor_map(shared, ROWS.value, ring.inputs)
        _grouped[(programs,)](
            tensor_map(weight.data, ROWS.value, ring.inputs), shared_map, x_map, x, groups.pairs,
            groups.experts, groups.count, weights, weight.scales, x_scales, out, out_scales,
            *strides, -(-tokens // ring.pairs),
            TOP=top + groups.passed, PASSED=groups.passed, M=ring.pairs, K=ring.inputs,
            TAKERS=ring.takers, STAGES=ring.stages, SCALE=self._scale, PDL=pdl, num_warps=4,
            launch_pdl=pdl, **constants,
        )  # fmt: skip


def _plain(weight: RawWeight) -> bool:
    return weight.format == "bfloat16" and weight.data.is_contiguous()
