"""Latent attention on sm_90: rows of few tokens by warpgroups with roles, the others in Triton."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tokenspeed_kernels.attention.paged_attention_triton import Attend, Tensors, Tiling
from tokenspeed_kernels.latent.attend_latent_hopper import _attend_latent_hopper
from tokenspeed_kernels.latent.join_parts_triton import join_parts
from tokenspeed_kernels.latent.latent_attention_triton import (
    LatentAttentionTriton,
    LatentTensors,
)
from tokenspeed_kernels.latent.latent_attention_triton import latent_attention as triton_attention
from tokenspeed_kernels.launch_triton import dependent_launch, next_power_of_2
from tokenspeed_kernels.maps_hopper import tensor_map

# Of a kv tile.
_KEYS = 64


@dataclass(frozen=True, slots=True)
class HopperTiling(Tiling):
    """`sharers`: warpgroups that share the values of a tile's sums, of `registers` a thread;
    `buffers`: turns of weights that scores may be ahead of them. `most_registers` a thread is what
    the kernel starts with: less than all leaves room for those before it and after it."""

    sharers: int = 1
    buffers: int = 2
    most_registers: int | None = None


def _tiling(rows: int, stages: int, **more: Any) -> HopperTiling:
    return HopperTiling(
        rows, _KEYS, 4, stages, 1, lanes=True, split_loop=False, tensor_maps=True, cost=1,
        joins=True,
        own_programs=True, **more,
    )  # fmt: skip


# By bytes of a latent's value and rows of a q tile. Sums of 64 rows beside widened values find no
# room.
TILINGS = {
    2: {
        16: _tiling(16, 2, registers=128, most_registers=112),
        32: _tiling(32, 2, registers=232),
        64: _tiling(64, 2, registers=160, sharers=2, buffers=1),
    },
    1: {
        16: _tiling(16, 4, registers=168, most_registers=128),
        32: _tiling(32, 3, registers=232),
    },
}


def _maps(tensors: LatentTensors) -> tuple[TensorDescriptor | None, ...]:
    """The planes of a pool by token, in boxes of a kv tile; the scales by kv tile."""
    planes = [plane.flatten(0, 1) for plane in (tensors.k_cache, tensors.v_cache)]
    maps = [tensor_map(plane, _KEYS, plane.shape[1]) for plane in planes]
    if tensors.scales is None:
        return *maps, None
    return *maps, tensor_map(tensors.scales.view(-1, _KEYS), 1, _KEYS)


def launch_hopper(attend: Attend, tensors: Tensors, early: bool) -> None:
    """See `paged_attention_triton.Launch`; with what joins the parts."""
    assert isinstance(tensors, LatentTensors) and isinstance(attend.tiling, HopperTiling)
    tiling, layout = attend.tiling, attend.layout
    rope, tables = tensors.v_cache, tensors.block_tables
    pdl = dependent_launch(tensors.q.device)
    _attend_latent_hopper[(layout.num_programs * attend.lanes,)](
        tensors.q, *_maps(tensors), tables, attend.schedule, tensors.out, attend.parts,
        attend.part_sums, tables.stride(0), layout.max_tiles,
        tensors.scale, tensors.v_scale, H=attend.heads, K=attend.lanes, R=attend.head_dim,
        E=rope.shape[2], BLOCK=rope.shape[1], M=attend.rows, P=layout.num_programs,
        STAGES=tiling.stages, BUFFERS=tiling.buffers, SHARERS=tiling.sharers,
        SCALED=tensors.scales is not None, REGISTERS=tiling.registers, EARLY=early, PDL=pdl,
        num_warps=tiling.warps, maxnreg=tiling.most_registers, launch_pdl=pdl,
    )  # fmt: skip
    if layout.num_programs > 1 and tensors.joined:
        join_parts(attend, tensors.out, tensors.v_scale, early)


class LatentAttentionHopper(LatentAttentionTriton):
    """See `op.BoundLatentAttention`."""

    def __init__(
        self,
        num_heads: int,
        rank: int,
        rope_dim: int,
        num_decode_rows: int,
        num_extend_rows: int,
        num_extend_tokens: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        decode: Tiling | None = None,
        extend: Tiling | None = None,
    ) -> None:
        tilings = TILINGS[kv_dtype.itemsize]
        widest = max(tilings)
        decode = decode or tilings[min(max(16, next_power_of_2(num_heads)), widest)]
        super().__init__(
            num_heads, rank, rope_dim, num_decode_rows, num_extend_rows, num_extend_tokens,
            kv_dtype, device, decode, extend or tilings[widest], launch_hopper,
        )  # fmt: skip


# See `op.LatentAttention`.
latent_attention = functools.partial(triton_attention, bind=LatentAttentionHopper)
