"""Paged attention on sm_90: rows of many tokens by warpgroups with roles, the others in Triton."""

from __future__ import annotations

import functools
from typing import Any

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

# Four warps for each half of the 128 rows; one more asks for the tiles.
EXTEND_HOPPER = Tiling(
    128, 128, 4, 2, 1, lanes=False, split_loop=True, tensor_maps=True, cost=2, registers=240,
    draws=True, producer_warps=1,
)  # fmt: skip
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
        tensors.q, *maps, tensors.block_tables, attend.schedule, attend.counts, tensors.sinks,
        tensors.out, attend.parts, attend.part_sums,
        tensors.block_tables.stride(0), layout.max_tiles, tensors.scale, tensors.v_scale,
        H=attend.heads, K=attend.kv_heads, D=attend.head_dim, N=tiling.keys,
        BLOCK=tensors.k_cache.shape[1], P=layout.num_programs, REPEATS=layout.repeats,
        COST=tiling.cost, STAGES=tiling.stages, TURNS=tiling.specialise,
        PRODUCER_REGISTERS=_ALL_REGISTERS - 2 * tiling.registers,
        CONSUMER_REGISTERS=tiling.registers, PRODUCER_WARPS=tiling.producer_warps,
        HAS_SINKS=tensors.sinks is not None, num_warps=tiling.warps,
    )  # fmt: skip


def bind_hopper(
    *shape: Any, decode: Tiling | None = None, extend: Tiling = EXTEND_HOPPER, window: int = 0
) -> PagedAttentionTriton:
    """See `op.BoundPagedAttention`; a bfloat16 cache only. Behind a window prompts meet few keys:
    those are left to Triton."""
    rest: dict[str, Any] = {"decode": decode}
    if window:
        rest["window"] = window
    else:
        rest |= {"extend": extend, "launch_extend": launch_hopper}
    return PagedAttentionTriton(*shape, **rest)


# See `op.PagedAttention`.
paged_attention = functools.partial(triton_attention, bind=bind_hopper)
