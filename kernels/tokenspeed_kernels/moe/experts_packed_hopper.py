"""Experts over MXFP4 weights on Hopper: of few tokens and of one both products stream their weights
through rings (`packed_stream_gluon`, `packed_one_gluon`), of many they are those of
`experts_packed_triton`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenspeed_kernels.launch_triton import dependent_launch, num_multiprocessors
from tokenspeed_kernels.moe.experts_packed_triton import ExpertsPackedTriton, Tiles
from tokenspeed_kernels.moe.group_triton import group
from tokenspeed_kernels.moe.packed_one_gluon import _packed_one
from tokenspeed_kernels.moe.packed_stream_gluon import PAIRS, _packed_stream
from tokenspeed_kernels.moe.packed_triton import INPUTS, ROWS


@dataclass(frozen=True, slots=True)
class Cut:
    """`programs` of a multiprocessor, `stages` of the ring of each; `most_registers` of a lane."""

    programs: int
    stages: int
    most_registers: int


@dataclass(frozen=True, slots=True)
class CutOne:
    """`stages` of the ring of a program; the second product goes in `splits` over its inputs."""

    stages: int
    splits: int


# The programs of both products for one token of gpt-oss run at once.
ONE = CutOne(stages=6, splits=2)
# As many rings as there is shared memory for.
FEW = Cut(programs=16, stages=3, most_registers=128)


class ExpertsPackedHopper(ExpertsPackedTriton):
    """See `op.Experts`. MXFP4 weights, which it packs; bfloat16 activations; widths are multiples
    of 64."""

    one, few = ONE, FEW

    def _few(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, tiles: Tiles
    ) -> torch.Tensor:
        """See there; of one token perhaps more parts than it has choices. `tiles` are of other
        products."""
        (tokens, top), device = experts.shape, x.device
        # Between the choice and the first product, which begins to load by it before this is done.
        if tokens == 1:
            return self._one_token(self._narrow(x, turn=False), weights, experts)
        groups = group(experts, self._experts, PAIRS.value)
        narrow = self._narrow(x, turn=False)
        shape = (groups.most * PAIRS.value, self._inner)
        inner = torch.empty(shape, dtype=torch.float16, device=device)
        made = torch.empty((top, tokens, self._hidden), dtype=torch.float32, device=device)
        for weight, bias, given, out, rows in (
            (self._gate_up, self._gate_up_bias, narrow, inner, ROWS),
            (self._down, self._down_bias, inner, made, 2 * ROWS),
        ):
            width, outputs, cut = given.shape[1], out.shape[-1], self.few
            items = groups.most * (outputs // rows)
            shares = max(1, min(items // cut.programs, num_multiprocessors(device)))
            _packed_stream[(shares * cut.programs,)](
                given, weight.words, weight.scales, bias, weights, groups.pairs, groups.experts,
                groups.count, out, weight.left_wide, self._clamp or 0.0, tokens, WIDTH=width,
                OUTPUTS=outputs, TOP=top, STAGES=min(cut.stages, -(-width // INPUTS)),
                GATED=out is inner, CLAMP=self._clamp is not None, HAS_BIAS=bias is not None,
                NEIGHBOURS=cut.programs, PDL=dependent_launch(device), num_warps=1,
                maxnreg=cut.most_registers, launch_pdl=dependent_launch(device),
            )  # fmt: skip
        return made

    def _one_token(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """As `_few`, of `x` [1, D] float16."""
        top, device, splits = experts.shape[1], x.device, self.one.splits
        inner = torch.empty((top, self._inner), dtype=torch.float16, device=device)
        made = torch.empty((splits * top, 1, self._hidden), dtype=torch.float32, device=device)
        for weight, bias, given, out, items, parts in (
            (self._gate_up, self._gate_up_bias, x, inner, self._inner // 8, 1),
            (self._down, self._down_bias, inner, made, self._hidden // ROWS * splits, splits),
        ):
            _packed_one[(top * items,)](
                given, weight.words, weight.scales, bias, weights, experts, out, weight.left_wide,
                self._clamp or 0.0, WIDTH=given.shape[1], OUTPUTS=out.shape[-1], TOP=top,
                STAGES=self.one.stages, SPLITS=parts, GATED=out is inner,
                CLAMP=self._clamp is not None, HAS_BIAS=bias is not None,
                PDL=dependent_launch(device), num_warps=1, launch_pdl=dependent_launch(device),
            )  # fmt: skip
        return made
