"""Latent attention in Triton: rows of few tokens (decode) and longer ones (extend) in one op.

Queries of a row and their heads fill the rows of a matrix tile together, 16 for rows of one token
and 32 or 64 for others; more heads than that are dealt out over lanes that read the same cache.
The value matrices follow in a product of each head; where one row of one token is all there is,
beginning in the kernel that joins its parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton.language as tl

from tokenspeed_kernels.attention.paged_attention_triton import (
    Attend,
    Launch,
    Tensors,
    Tiling,
)
from tokenspeed_kernels.latent.attend_latent_triton import _attend_latent
from tokenspeed_kernels.latent.head_product_triton import head_product
from tokenspeed_kernels.latent.join_parts_triton import join_one, join_parts
from tokenspeed_kernels.latent.op import LatentPool
from tokenspeed_kernels.launch_triton import dependent_launch

# Parts are joined by `join_parts`, which the launch ends with.
# 64 rows of 512 float32 sums are half of a multiprocessor's registers.
DECODE = Tiling(
    16, 64, 4, 3, 1, lanes=True, split_loop=False, tensor_maps=False, cost=1, joins=True,
    own_programs=True,
)  # fmt: skip
# Two programs of float8 hide each other's latencies; of few rows each part costs more than that.
FEW_FP8 = Tiling(
    16, 64, 8, 3, 1, lanes=True, split_loop=False, tensor_maps=False, cost=1, joins=True,
    own_programs=True,
)  # fmt: skip
MANY_FP8 = Tiling(
    16, 64, 4, 3, 2, lanes=True, split_loop=False, tensor_maps=False, cost=1, joins=True,
    own_programs=True,
)  # fmt: skip
_FEW = 8
WIDE = Tiling(64, 64, 8, 2, 1, lanes=True, split_loop=False, tensor_maps=False, cost=2, joins=True)
# Where a tile of 64 rows finds no room for its sums: beside widened values, and on other devices
# than the one that it was made for.
HALF = Tiling(32, 32, 8, 3, 1, lanes=True, split_loop=False, tensor_maps=False, cost=2, joins=True)


def _fits_wide(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) == (9, 0)


def decode_tiling(num_rows: int, kv_dtype: torch.dtype) -> Tiling:
    """The tiling for up to `num_rows` rows of one query and 16 heads or fewer."""
    if kv_dtype.itemsize == 1:
        return FEW_FP8 if num_rows <= _FEW else MANY_FP8
    return DECODE


@dataclass(frozen=True, slots=True)
class LatentTensors(Tensors):
    """`k_cache` the latents, `v_cache` the rotated parts; scales per token, if there are any.
    `joined`: the launch ends with `join_parts`, if there are parts."""

    scales: torch.Tensor | None = None
    joined: bool = True


def _launch(attend: Attend, tensors: Tensors, early: bool) -> None:
    assert isinstance(tensors, LatentTensors)
    tiling, layout = attend.tiling, attend.layout
    latent, rope, tables = tensors.k_cache, tensors.v_cache, tensors.block_tables
    fp8 = latent.dtype is torch.float8_e4m3fn
    pdl = dependent_launch(tensors.q.device)
    if fp8:
        latent = latent.view(torch.int16)
    _attend_latent[(layout.num_programs * attend.lanes,)](
        tensors.q, latent, rope, tensors.scales, tables, attend.schedule, tensors.out,
        attend.parts, attend.part_sums, latent.stride(1), rope.stride(1), tables.stride(0),
        layout.max_tiles, tensors.scale, tensors.v_scale, H=attend.heads, K=attend.lanes,
        R=attend.head_dim, E=rope.shape[2], BLOCK=rope.shape[1], M=attend.rows, N=tiling.keys,
        P=layout.num_programs, COMPUTE=tl.float16 if fp8 else tl.bfloat16,
        ROPE_COMPUTE=tl.float16 if fp8 and tensors.scales is None else tl.bfloat16,
        SCALED=tensors.scales is not None, PAIRS=fp8, STAGES=tiling.stages,
        EARLY=early, PDL=pdl, num_warps=tiling.warps,
        num_stages=tiling.stages, maxnreg=tiling.registers, launch_pdl=pdl,
    )  # fmt: skip
    if layout.num_programs > 1 and tensors.joined:
        join_parts(attend, tensors.out, tensors.v_scale, early)


class LatentAttentionTriton:
    """See `op.BoundLatentAttention`: one for each shape of batch, shared by all layers."""

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
        launch: Launch | None = None,
    ) -> None:
        wide = WIDE if kv_dtype.itemsize == 2 and _fits_wide(device) else HALF
        self._width = rank + rope_dim
        tokens = num_decode_rows + num_extend_tokens
        # Rows of padding, which nobody writes, hold numbers.
        self._latents = torch.zeros(tokens, num_heads, rank, dtype=torch.bfloat16, device=device)
        self._one = tokens == num_decode_rows == 1
        self._kinds: list[Attend] = []
        narrow = decode_tiling(num_decode_rows, kv_dtype)
        decode = decode or (narrow if num_heads <= narrow.rows else wide)
        extend = extend or wide
        for tiling, rows in (
            (decode, (0, num_decode_rows, num_decode_rows)),
            (extend, (num_decode_rows, num_extend_rows, num_extend_tokens)),
        ):
            if rows[1]:
                lanes = -(-num_heads // tiling.rows)
                assert num_heads % lanes == 0
                self._kinds.append(
                    Attend(tiling, num_heads, lanes, rank, *rows, device, launch or _launch)
                )

    def schedule(self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor) -> None:
        """See `op.BoundLatentAttention`."""
        for kind in self._kinds:
            kind.prepare(cu_query_lens, context_lens)

    def __call__(
        self,
        query: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        scale: float,
        value_up: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        early: bool = True,
    ) -> torch.Tensor:
        """See `op.BoundLatentAttention`. `early` as `paged_attention_triton.Attend` has it."""
        assert value_up.is_contiguous()
        shape = (*query.shape[:2], value_up.shape[2])
        if out is None:
            out = torch.empty(shape, dtype=query.dtype, device=query.device)
        assert out.is_contiguous() and out.shape == shape
        if self._one:
            tensors = self._tensors(query, pool, block_tables, scale, joined=False)
            self._kinds[0](tensors, early)
            join_one(self._kinds[0], tensors.out, value_up, out, tensors.v_scale, early)
        else:
            head_product(self.latents(query, pool, block_tables, scale, early), value_up, out)
        return out

    def latents(
        self,
        query: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        scale: float,
        early: bool = True,
    ) -> torch.Tensor:
        """The weighted latents [T, H, rank], before any value matrix; good until the next call."""
        tensors = self._tensors(query, pool, block_tables, scale)
        for kind in self._kinds:
            kind(tensors, early)
        return tensors.out

    def _tensors(
        self,
        query: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        scale: float,
        joined: bool = True,
    ) -> LatentTensors:
        assert query.is_contiguous() and query.shape[2] == self._width
        assert block_tables.dtype is torch.int32 and block_tables.stride(1) == 1
        return LatentTensors(
            query, pool.latent, pool.rope, block_tables, scale * pool.scale * math.log2(math.e),
            pool.scale, self._latents[: len(query)], pool.scales, joined,
        )  # fmt: skip


def latent_attention(
    query: torch.Tensor,
    pool: LatentPool,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    value_up: torch.Tensor,
    *,
    bind: Callable[..., LatentAttentionTriton] = LatentAttentionTriton,
) -> torch.Tensor:
    """See `op.LatentAttention`; every row goes the way of longer ones."""
    rows, (tokens, heads, width) = context_lens.shape[0], query.shape
    rank = pool.latent.shape[2]
    bound = bind(heads, rank, width - rank, 0, rows, tokens, pool.latent.dtype, query.device)
    bound.schedule(cu_query_lens, context_lens)
    return bound(query, pool, block_tables, scale, value_up, early=False)
