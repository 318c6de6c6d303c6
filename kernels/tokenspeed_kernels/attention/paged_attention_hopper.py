"""Paged attention on sm_90: rows of many tokens by warpgroups with roles, the others in Triton."""

from __future__ import annotations

import functools

from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tokenspeed_kernels.attention.attend_hopper import _attend_hopper
from tokenspeed_kernels.attention.paged_attention_triton import (
    Attend,
    PagedAttentionTriton,
    Tensors,
    Tiling,
    flat_tokens,
)
from tokenspeed_kernels.attention.paged_attention_triton import paged_attention as triton_attention

# Four warps for each half of the 128 rows; four more ask for the tiles.
EXTEND_HOPPER = Tiling(
    128, 128, 4, 3, 1, lanes=False, split_loop=True, tensor_maps=True, cost=2, registers=232
)
# Tokens and dimensions that the copy engine brings at once.
_BOX = 64
# What is left of 512 a lane of three warpgroups, in eights.
_ALL_REGISTERS = 504


def launch_hopper(attend: Attend, tensors: Tensors, early: bool) -> None:
    """See `paged_attention_triton.Launch`; for a bfloat16 cache and tilings of 128 rows. It begins
    only once the kernel before it is done, so `early` does not matter."""
    tiling, layout = attend.tiling, attend.layout
    assert attend.rows == 128 and tiling.registers is not None
    shared = NVMMASharedLayout.get_default_for([_BOX, _BOX], bfloat16)
    maps = [
        TensorDescriptor.from_tensor(flat_tokens(cache), [_BOX, _BOX], shared)
        for cache in (tensors.k_cache, tensors.v_cache)
    ]
    _attend_hopper[(layout.num_programs * attend.lanes,)](
        tensors.q, *maps, tensors.block_tables, attend.schedule, tensors.out,
        attend.parts, attend.part_sums,
        tensors.block_tables.stride(0), layout.max_tiles, tensors.scale, tensors.v_scale,
        H=attend.heads, K=attend.kv_heads, D=attend.head_dim, N=tiling.keys,
        BLOCK=tensors.k_cache.shape[1], P=layout.num_programs, REPEATS=layout.repeats,
        COST=tiling.cost, STAGES=tiling.stages, TURNS=tiling.specialise,
        PRODUCER_REGISTERS=_ALL_REGISTERS - 2 * tiling.registers,
        CONSUMER_REGISTERS=tiling.registers, num_warps=tiling.warps,
    )  # fmt: skip


# See `op.BoundPagedAttention`; a bfloat16 cache only.
PagedAttentionHopper = functools.partial(
    PagedAttentionTriton, extend=EXTEND_HOPPER, launch_extend=launch_hopper
)

# See `op.PagedAttention`.
paged_attention = functools.partial(triton_attention, bind=PagedAttentionHopper)
