"""Paged attention on sm_90 by warps with roles; behind a window, in Triton."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tokenspeed_kernels.attention.attend_decode_hopper import _attend_decode
from tokenspeed_kernels.attention.attend_hopper import _attend_hopper
from tokenspeed_kernels.attention.paged_attention_triton import (
    Attend,
    PagedAttentionTriton,
    Tensors,
    Tiling,
    flat_tokens,
)
from tokenspeed_kernels.attention.paged_attention_triton import paged_attention as triton_attention
from tokenspeed_kernels.launch_triton import dependent_launch, next_power_of_2
from tokenspeed_kernels.maps_hopper import tensor_map

# Four warps for each half of the 128 rows; one more asks for the tiles.
EXTEND_HOPPER = Tiling(
    128, 128, 4, 2, 1, lanes=False, split_loop=True, tensor_maps=True, cost=2, registers=240,
    draws=True, producer_warps=1,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RingTiling(Tiling):
    """`before`: kv tiles that a program asks for before the kernel ahead is done."""

    before: int = 0
    most_registers: int = 128


class Unturned(NamedTuple):
    """What queries, keys and values [parts, T, (H + 2 K) D] still need: see `rope.op`."""

    positions: torch.Tensor
    cos_sin: torch.Tensor
    slots: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float


def _ring(stages: int, programs: int, **more: Any) -> RingTiling:
    return RingTiling(
        8,
        64,
        4,
        stages,
        programs,
        lanes=True,
        split_loop=False,
        tensor_maps=True,
        rounded=True,
        **more,
    )


# Few rows: one ring of a whole multiprocessor. Many: two, of which one is filled while the other's
# row ends.
RING_FEW = _ring(6, 1, before=6, most_registers=168)
RING_MANY = _ring(3, 2, cost=1, before=3, joins=True)
_FEW = 4


def ring_tiling(num_rows: int) -> RingTiling:
    """The tiling for up to `num_rows` rows of one query."""
    return RING_FEW if num_rows <= _FEW else RING_MANY


def launch_ring(
    attend: Attend, tensors: Tensors, early: bool, unturned: Unturned | None = None
) -> None:
    """See `paged_attention_triton.Launch`; rows of one query and a bfloat16 cache."""
    tiling, layout = attend.tiling, attend.layout
    assert isinstance(tiling, RingTiling) and tensors.k_cache.shape[1] % tiling.keys == 0
    keys, values, tables = tensors.k_cache, tensors.v_cache, tensors.block_tables
    box = (tiling.keys, attend.head_dim)
    maps = [tensor_map(flat_tokens(cache), *box) for cache in (keys, values)]
    pdl, parts, strides, eps = dependent_launch(tensors.q.device), 0, (0, 0), 0.0
    given: tuple[torch.Tensor | None, ...] = (None,) * 7
    if unturned is not None:
        parts = 1 if tensors.q.dim() == 2 else tensors.q.shape[0]
        strides = (tensors.q.stride(-2), tensors.q.stride(0))
        *rope, eps = unturned
        given = (*rope, keys, values)
    _attend_decode[(layout.num_programs * attend.lanes,)](
        tensors.q, *given, *maps, tables, attend.schedule, tensors.sinks, tensors.out,
        attend.parts, attend.part_sums, attend.counts, *strides, eps, tables.stride(0),
        layout.max_tiles, tensors.scale, tensors.v_scale,
        H=attend.heads, K=attend.kv_heads, D=attend.head_dim, BLOCK=keys.shape[1], M=attend.rows,
        P=layout.num_programs, COST=tiling.cost, STAGES=tiling.stages, BEFORE=tiling.before,
        HAS_SINKS=tensors.sinks is not None,
        JOIN_ROWS=next_power_of_2(attend.used_rows) if tiling.joins else 0, ROPE=parts,
        NORM=given[4] is not None, EARLY=early, PDL=pdl, num_warps=tiling.warps,
        maxnreg=tiling.most_registers, launch_pdl=pdl,
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
    caches = (tensors.k_cache, tensors.v_cache)
    maps = [tensor_map(flat_tokens(cache), _BOX, _BOX) for cache in caches]
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


class PagedAttentionHopper(PagedAttentionTriton):
    """See `op.BoundPagedAttention` and `op.TurnsQueries`; rings for rows of one query."""

    def __init__(self, *shape: Any, decode: RingTiling, extend: Tiling) -> None:
        rest: dict[str, Any] = {"decode": decode, "launch_decode": launch_ring}
        rest |= {"extend": extend, "launch_extend": launch_hopper}
        super().__init__(*shape, **rest)
        heads, kv_heads, head_dim, decode_rows, extend_rows, *_ = shape
        self._shape = (heads, kv_heads, head_dim)
        self.turns_queries = decode_rows > 0 and extend_rows == 0 and head_dim == 128

    def from_qkv(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        slots: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        scale: float,
        *,
        out: torch.Tensor | None = None,
        early: bool = True,
    ) -> torch.Tensor:
        """See `op.TurnsQueries`."""
        heads, _, head_dim = self._shape
        assert (q_norm is None) == (k_norm is None)
        assert self.turns_queries and cos_sin.shape[1] == head_dim and qkv.stride(-1) == 1
        assert block_tables.dtype is torch.int32 and cos_sin.dtype is torch.float32
        assert k_cache.is_contiguous() and v_cache.is_contiguous()
        if out is None:
            shape = (qkv.shape[-2], heads, head_dim)
            out = torch.empty(shape, dtype=torch.bfloat16, device=qkv.device)
        tensors = Tensors(qkv, k_cache, v_cache, block_tables, scale * math.log2(math.e), 1.0, out)
        (rows,) = self._kinds
        launch_ring(rows, tensors, early, Unturned(positions, cos_sin, slots, q_norm, k_norm, eps))
        rows.join(tensors, early)
        return out


def bind_hopper(
    *shape: Any, decode: Tiling | None = None, extend: Tiling = EXTEND_HOPPER, window: int = 0
) -> PagedAttentionTriton:
    """See `op.BoundPagedAttention`; a bfloat16 cache only. Behind a window few keys are met: that
    is left to Triton."""
    rest: dict[str, Any] = {"decode": decode}
    if window:
        rest["window"] = window
        return PagedAttentionTriton(*shape, **rest)
    decode = decode or ring_tiling(shape[3])
    if isinstance(decode, RingTiling):
        return PagedAttentionHopper(*shape, decode=decode, extend=extend)
    rest |= {"extend": extend, "launch_extend": launch_hopper}
    return PagedAttentionTriton(*shape, **rest)


# See `op.PagedAttention`.
paged_attention = functools.partial(triton_attention, bind=bind_hopper)
