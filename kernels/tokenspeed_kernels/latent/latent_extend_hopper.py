"""Latent attention of rows of many tokens on sm_90: attention over keys and values by warpgroups
with roles, what makes them in Triton."""

from __future__ import annotations

import functools

import torch
from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tokenspeed_kernels.attention.schedule_triton import Layout, write_schedule
from tokenspeed_kernels.latent.attend_expanded_hopper import _attend_expanded
from tokenspeed_kernels.latent.latent_extend_triton import (
    ExtendTiling,
    LatentExtendTriton,
    Meeting,
)
from tokenspeed_kernels.latent.latent_extend_triton import latent_extend as extend_triton

# Four warps for each half of the 128 queries; one more asks for the tiles.
HOPPER = ExtendTiling(queries=128, keys=128, warps=4, stages=2)
# Dimensions that the copy engine brings at once.
_BOX = 64
# A lane's, of the first two warpgroups and of the third.
_REGISTERS = (240, 24)


class AttendHopper:
    """See `latent_extend_triton.Attend`; q tiles of 128 queries."""

    def __init__(
        self, tiling: ExtendTiling, num_rows: int, num_tokens: int, device: torch.device
    ) -> None:
        assert tiling.queries == 128
        self._num_rows = num_rows
        self._layout = Layout(
            num_programs=1,
            max_tiles=min(num_tokens // tiling.queries + num_rows, max(num_tokens, 1)),
            tile_tokens=tiling.queries,
            tile_keys=tiling.keys,
            repeats=1,
            tile_cost=0,
        )
        self._schedule = torch.empty(self._layout.size, dtype=torch.int32, device=device)

    def schedule(
        self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor, first_row: int
    ) -> None:
        """See `Attend`."""
        write_schedule(
            self._layout, cu_query_lens, context_lens, first_row, self._num_rows, self._schedule
        )

    def __call__(self, meeting: Meeting) -> None:
        """See `Attend`."""
        shape, tiling, plan = meeting.shape, meeting.tiling, meeting.plan
        query, rotated = meeting.query, meeting.rotated
        layout = NVMMASharedLayout.get_default_for([tiling.keys, _BOX], bfloat16)
        made, turned = (
            TensorDescriptor.from_tensor(brought, [tiling.keys, _BOX], layout)
            for brought in (meeting.made.flatten(1), meeting.turned)
        )
        consumer, producer = _REGISTERS
        _attend_expanded[(plan.q_tiles * plan.shares, shape.num_heads)](
            query, rotated, made, turned, meeting.cu_query_lens, self._schedule, meeting.lines,
            meeting.out, meeting.state, meeting.sums, query.stride(0),
            query.stride(1), rotated.stride(0), rotated.stride(1), plan.first_row,
            meeting.first_tile, meeting.tiles, plan.shares, plan.tokens,
            self._layout.max_tiles, meeting.scale, H=shape.num_heads, NOPE=shape.nope_dim,
            E=shape.rope_dim, VALUE=shape.value_dim, N=tiling.keys, P=self._layout.num_programs,
            BT=tiling.tokens, STAGES=tiling.stages, TURNS=False, PRODUCER_REGISTERS=producer,
            CONSUMER_REGISTERS=consumer, num_warps=tiling.warps,
        )  # fmt: skip


# See `op.BoundLatentExtend`.
LatentExtendHopper = functools.partial(
    LatentExtendTriton, tiling=HOPPER, attend=AttendHopper, by_torch=True
)

# See `op.LatentExtend`.
latent_extend = functools.partial(extend_triton, bind=LatentExtendHopper)
