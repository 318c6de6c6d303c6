"""Latent attention of rows of many tokens over keys and values made from the latents, in Triton."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from tokenspeed_kernels.latent.extend_triton import (
    _attend_chunk,
    _expand,
    _join_shares,
    _lay_out,
    _line,
)
from tokenspeed_kernels.latent.op import LatentPool, LatentShape, Lengths
from tokenspeed_kernels.launch_triton import (
    cdiv,
    dependent_launch,
    next_power_of_2,
    num_multiprocessors,
)


@dataclass(frozen=True, slots=True)
class ExtendTiling:
    """`queries` of a q tile and `keys` of a kv tile of attention; `tokens` and `inputs` of a tile
    of the products that make keys and values. Sizes of a chunk are whole `tokens`."""

    queries: int = 128
    keys: int = 64
    warps: int = 8
    stages: int = 3
    tokens: int = 128
    inputs: int = 64
    expand_warps: int = 8
    expand_stages: int = 3


EXTEND = ExtendTiling()
# Rows of `_join_shares`; tokens and columns of `_lay_out`.
_ROWS, _LAID, _PART = 16, 16, 64


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: its first row, tiles of the line, q tiles, tokens."""

    first_row: int
    tiles: int
    q_tiles: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """Queries of a step and a chunk of `tiles` tiles of the line, from `first_tile` on: what
    attention over it reads, and `out`, which it writes. `scale` is over log 2."""

    query: torch.Tensor
    rotated: torch.Tensor
    made: torch.Tensor
    turned: torch.Tensor
    cu_query_lens: torch.Tensor
    context_lens: torch.Tensor
    lines: torch.Tensor
    scale: float
    out: torch.Tensor
    shape: LatentShape
    tiling: ExtendTiling
    plan: Plan
    first_tile: int
    tiles: int


class Attend(Protocol):
    """Attention over chunks, for up to so many rows and so many tokens of them. `schedule` once a
    step, then for each layer a call for each chunk, and `finish` with the last of them."""

    def __init__(
        self,
        shape: LatentShape,
        tiling: ExtendTiling,
        num_rows: int,
        num_tokens: int,
        chunk_tokens: int,
        multiprocessors: int,
        device: torch.device,
    ) -> None: ...

    def schedule(
        self,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        first_row: int,
        lengths: Lengths,
    ) -> None: ...

    def __call__(self, meeting: Meeting) -> None: ...

    def finish(self, meeting: Meeting) -> None: ...


class AttendTriton:
    """See `Attend`; any tiling."""

    def __init__(
        self,
        shape: LatentShape,
        tiling: ExtendTiling,
        num_rows: int,
        num_tokens: int,
        chunk_tokens: int,
        multiprocessors: int,
        device: torch.device,
    ) -> None:
        self._heads, self._queries = shape.num_heads, tiling.queries
        self._num_rows, self._room, self._shares = num_rows, multiprocessors, 1
        # Several shares are no more than a q tile on each multiprocessor.
        slots = max(num_tokens * shape.num_heads, self._room * tiling.queries)
        width = next_power_of_2(shape.value_dim)
        self.state = torch.empty(slots, width, dtype=torch.float32, device=device)
        self.sums = torch.empty(slots, 2, dtype=torch.float32, device=device)

    def schedule(
        self,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        first_row: int,
        lengths: Lengths,
    ) -> None:
        """Programs find their work in the line; how many share a q tile the host says."""
        q_tiles = sum(-(-new // self._queries) for new in lengths.query_lens)
        self._shares = max(1, self._room // max(1, q_tiles * self._heads))

    def __call__(self, meeting: Meeting) -> None:
        """See `Attend`."""
        shape, tiling, plan = meeting.shape, meeting.tiling, meeting.plan
        query, rotated = meeting.query, meeting.rotated
        pdl = dependent_launch(query.device)
        value = 1 << (shape.value_dim - 1).bit_length()
        nope = meeting.made.shape[2] - value
        _attend_chunk[(plan.q_tiles * self._shares, shape.num_heads)](
            query, rotated, meeting.made, meeting.turned, meeting.cu_query_lens,
            meeting.context_lens, meeting.lines, meeting.out, self.state, self.sums,
            query.stride(0), query.stride(1), rotated.stride(0), rotated.stride(1),
            plan.first_row, meeting.first_tile, meeting.tiles, self._shares, plan.tokens,
            meeting.scale, H=shape.num_heads, NOPE=shape.nope_dim, NOPE_PAD=nope,
            VALUE=shape.value_dim, VALUE_PAD=value, E=shape.rope_dim,
            R_PAD=meeting.lines.shape[1], BT=tiling.tokens, M=tiling.queries, N=tiling.keys,
            STAGES=tiling.stages, PDL=pdl, num_warps=tiling.warps, num_stages=tiling.stages,
            launch_pdl=pdl,
        )  # fmt: skip

    def finish(self, meeting: Meeting) -> None:
        """Joins the shares, if there are several."""
        if self._shares == 1:
            return
        plan, shape, pdl = meeting.plan, meeting.shape, dependent_launch(meeting.out.device)
        _join_shares[(cdiv(plan.tokens * shape.num_heads, _ROWS),)](
            meeting.cu_query_lens, self.state, self.sums, meeting.out, plan.first_row,
            self._num_rows, self._shares, plan.tokens, meeting.scale, H=shape.num_heads,
            VALUE=shape.value_dim, VALUE_PAD=self.state.shape[1], ROWS=_ROWS, PDL=pdl,
            num_warps=4, launch_pdl=pdl,
        )  # fmt: skip


class LatentExtendTriton:
    """See `op.BoundLatentExtend`: one for the largest step, shared by all layers."""

    def __init__(
        self,
        shape: LatentShape,
        num_rows: int,
        num_tokens: int,
        chunk_tokens: int,
        device: torch.device,
        tiling: ExtendTiling = EXTEND,
        multiprocessors: int | None = None,
        attend: type[Attend] = AttendTriton,
        by_torch: bool = False,
    ) -> None:
        assert chunk_tokens % tiling.tokens == 0 and tiling.tokens % tiling.keys == 0
        self._shape, self._tiling, self._device = shape, tiling, device
        self._num_rows, self._chunk = num_rows, chunk_tokens
        self._nope, self._value = map(next_power_of_2, (shape.nope_dim, shape.value_dim))
        assert not by_torch or (self._nope, self._value) == (shape.nope_dim, shape.value_dim)
        heads = shape.num_heads
        empty = functools.partial(torch.empty, device=device)
        width = self._nope + self._value
        self._made = empty(chunk_tokens, heads, width, dtype=torch.bfloat16)
        self._turned = empty(chunk_tokens, shape.rope_dim, dtype=torch.bfloat16)
        self._dense: tuple[torch.Tensor, torch.Tensor] | None = None
        if by_torch:
            # Latents of a chunk; matrices of all heads, of keys and values in turn.
            self._dense = (
                empty(chunk_tokens, shape.rank, dtype=torch.bfloat16),
                empty(heads, width, shape.rank, dtype=torch.bfloat16),
            )
        self._padded_rows = next_power_of_2(max(num_rows, 1))
        self._lines = empty(2, self._padded_rows, dtype=torch.int32)
        self._plan = Plan(0, 0, 0, 0)
        self._attend = attend(
            shape, tiling, num_rows, num_tokens, chunk_tokens,
            multiprocessors or num_multiprocessors(device), device,
        )  # fmt: skip

    def schedule(
        self,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        first_row: int,
        lengths: Lengths,
    ) -> None:
        """See `op.BoundLatentExtend`."""
        self._cu_query_lens, self._context_lens = cu_query_lens, context_lens
        self._plan = self._planned(first_row, lengths)
        pdl = dependent_launch(self._device)
        _line[(1,)](
            cu_query_lens, context_lens, self._lines, first_row, self._num_rows,
            R_PAD=self._padded_rows, BT=self._tiling.tokens, M=self._tiling.queries, PDL=pdl,
            num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
        self._attend.schedule(cu_query_lens, context_lens, first_row, lengths)

    def _planned(self, first_row: int, lengths: Lengths) -> Plan:
        tiling, tokens = self._tiling, sum(lengths.query_lens)
        q_tiles = sum(-(-new // tiling.queries) for new in lengths.query_lens)
        rows = zip(lengths.query_lens, lengths.context_lens, strict=True)
        tiles = sum(-(-(new + cached) // tiling.tokens) for new, cached in rows if new)
        return Plan(first_row, tiles, q_tiles, tokens)

    def __call__(
        self,
        query: torch.Tensor,
        rotated: torch.Tensor,
        pool: LatentPool,
        block_tables: torch.Tensor,
        scale: float,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
        *,
        out: torch.Tensor,
    ) -> None:
        """See `op.BoundLatentExtend`."""
        assert key_up.is_contiguous() and value_up.is_contiguous() and out.is_contiguous()
        assert query.stride(2) == rotated.stride(2) == 1
        assert block_tables.dtype is torch.int32 and block_tables.stride(1) == 1
        scale *= math.log2(math.e)
        for first_tile, tiles in self._chunks():
            if self._dense is None:
                self._expanded(first_tile, tiles, pool, block_tables, key_up, value_up)
            else:
                self._multiplied(
                    *self._dense, first_tile, tiles, pool, block_tables, key_up, value_up
                )
            meeting = Meeting(
                query, rotated, self._made, self._turned, self._cu_query_lens, self._context_lens,
                self._lines, scale, out, self._shape, self._tiling, self._plan, first_tile, tiles,
            )  # fmt: skip
            self._attend(meeting)
            if first_tile + tiles == self._plan.tiles:
                self._attend.finish(meeting)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """The first tile of each chunk, and how many it has."""
        size = self._chunk // self._tiling.tokens
        for first in range(0, self._plan.tiles, size):
            yield first, min(size, self._plan.tiles - first)

    def _expanded(
        self,
        first_tile: int,
        tiles: int,
        pool: LatentPool,
        block_tables: torch.Tensor,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
    ) -> None:
        shape, tiling, pdl = self._shape, self._tiling, dependent_launch(self._device)
        _expand[(shape.num_heads, tiles)](
            pool.latent, pool.rope, pool.scales, block_tables, self._cu_query_lens,
            self._context_lens, self._lines, key_up, value_up, self._made, self._turned,
            pool.latent.stride(1), pool.rope.stride(1), block_tables.stride(0),
            self._plan.first_row, first_tile, pool.scale, H=shape.num_heads, R=shape.rank,
            E=shape.rope_dim, NOPE=shape.nope_dim, NOPE_PAD=self._nope, VALUE=shape.value_dim,
            VALUE_PAD=self._value, BLOCK=pool.latent.shape[1], R_PAD=self._padded_rows,
            BT=tiling.tokens, BK=min(tiling.inputs, shape.rank), SCALED=pool.scales is not None,
            STAGES=tiling.expand_stages, PDL=pdl, num_warps=tiling.expand_warps,
            num_stages=tiling.expand_stages, launch_pdl=pdl,
        )  # fmt: skip

    def _multiplied(
        self,
        dense: torch.Tensor,
        up: torch.Tensor,
        first_tile: int,
        tiles: int,
        pool: LatentPool,
        block_tables: torch.Tensor,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
    ) -> None:
        shape, tiling, pdl = self._shape, self._tiling, dependent_launch(self._device)
        part, laid = min(_PART, shape.rank), tiles * (tiling.tokens // _LAID)
        # The matrices are those of the layer: they stay for its other chunks.
        joined = 0 if first_tile else shape.num_heads * (shape.rank // part)
        _lay_out[(laid + joined,)](
            pool.latent, pool.rope, pool.scales, block_tables, self._cu_query_lens,
            self._context_lens, self._lines, key_up, value_up, dense, self._turned, up,
            pool.latent.stride(1), pool.rope.stride(1), block_tables.stride(0),
            self._plan.first_row, first_tile, laid, pool.scale, R=shape.rank, E=shape.rope_dim,
            NOPE=shape.nope_dim, VALUE=shape.value_dim, BLOCK=pool.latent.shape[1],
            R_PAD=self._padded_rows, BT=tiling.tokens, TOKENS=_LAID, PART=part,
            SCALED=pool.scales is not None, PDL=pdl, num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
        count = tiles * tiling.tokens
        torch.mm(dense[:count], up.flatten(0, 1).t(), out=self._made[:count].flatten(1))


def latent_extend(
    query: torch.Tensor,
    rotated: torch.Tensor,
    pool: LatentPool,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    chunk_tokens: int,
    bind: Callable[..., LatentExtendTriton] = LatentExtendTriton,
) -> torch.Tensor:
    """See `op.LatentExtend`. Reads the lengths on the host."""
    (tokens, heads, nope), value = query.shape, value_up.shape[2]
    shape = LatentShape(heads, pool.latent.shape[2], nope, rotated.shape[2], value)
    out = torch.empty(tokens, heads, value, dtype=query.dtype, device=query.device)
    rows = len(context_lens)
    bound = bind(shape, rows, tokens, chunk_tokens, query.device)
    query_lens = cu_query_lens.diff().tolist()
    bound.schedule(cu_query_lens, context_lens, 0, Lengths(query_lens, context_lens.tolist()))
    bound(query, rotated, pool, block_tables, scale, key_up, value_up, out=out)
    return out
