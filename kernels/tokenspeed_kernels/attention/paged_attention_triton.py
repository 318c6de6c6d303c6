"""Paged attention in Triton: rows of one token (decode) and longer ones (extend) in one op.

The rows that decode go through small query tiles, many programs and deep loads: their limit is
memory. The others go through large tiles on the matrix units. Both walk schedules of
schedule_triton, so that any mix of lengths spreads evenly over the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tokenspeed_kernels.attention.attend_triton import _attend, _combine
from tokenspeed_kernels.attention.attend_window_triton import _attend_window
from tokenspeed_kernels.attention.op import BoundPagedAttention
from tokenspeed_kernels.attention.schedule_triton import MOST_OWNERS, Layout, write_schedule
from tokenspeed_kernels.launch_triton import (
    cdiv,
    dependent_launch,
    next_power_of_2,
    num_multiprocessors,
)

COMPUTE = {
    torch.bfloat16: triton.language.bfloat16,
    # e4m3 widens to float16 in one instruction, and to bfloat16 in several.
    torch.float8_e4m3fn: triton.language.float16,
}


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kind of row is computed. `rows`: tokens times heads of a group in a q tile; `keys`:
    tokens in a kv tile; `lanes`: kv heads beside each other, on programs of their own, instead
    of one after the other. `joins`: programs join the parts of a split q tile themselves.
    `draws`: they draw whole q tiles where there are many. `whole`: a program has a row's whole
    window, by the kernel of `attend_window_triton`. `own_programs`: see `Layout`. `rounded`: a
    power of two programs where that is nearly all of them: numbers of rows are such, and equal rows
    are then split evenly, or not at all."""

    rows: int
    keys: int
    warps: int
    stages: int
    programs_per_multiprocessor: int
    lanes: bool
    split_loop: bool
    tensor_maps: bool  # where a kv tile lies within a block
    cost: int = 0
    specialise: bool = False
    registers: int | None = None
    joins: bool = False
    draws: bool = False
    own_programs: bool = False
    producer_warps: int = 4
    whole: bool = False
    rounded: bool = False


# Few rows: wide tiles and one program per multiprocessor reach full rate soonest. Many short rows:
# two programs, one of which loads while the other begins a row.
DECODE_FEW = Tiling(16, 128, 8, 3, 1, lanes=True, split_loop=False, tensor_maps=False)
DECODE_MANY = Tiling(
    16, 64, 4, 3, 2, lanes=True, split_loop=False, tensor_maps=False, cost=1, joins=True
)
DECODE_FP8 = Tiling(16, 128, 4, 4, 2, lanes=True, split_loop=False, tensor_maps=False)
# Behind a window that a tile holds, however many rows there are.
DECODE_WINDOW = Tiling(
    16, 128, 8, 1, 1, lanes=True, split_loop=False, tensor_maps=False, joins=True, whole=True
)
EXTEND = Tiling(128, 64, 8, 3, 1, lanes=False, split_loop=True, tensor_maps=True, cost=4)
_FEW = 8


def decode_tiling(num_rows: int, kv_dtype: torch.dtype, window: int = 0) -> Tiling:
    """The tiling for up to `num_rows` rows of one query."""
    if 0 < window <= DECODE_WINDOW.keys:
        return DECODE_WINDOW
    if kv_dtype.itemsize == 1:
        return DECODE_FP8
    return DECODE_FEW if num_rows <= _FEW else DECODE_MANY


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a launch reads, and `out`, which it writes; scales and shapes as in `op`."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    scale: float  # with that of k, over log 2
    v_scale: float
    out: torch.Tensor
    sinks: torch.Tensor | None = field(default=None, kw_only=True)


def _programs(most: int, rounded: bool) -> int:
    power = 1 << (most.bit_length() - 1)
    return power if rounded and 16 * power >= 15 * most else most


# Launches the main kernel of an `Attend`; the flag is its `early`.
Launch = Callable[["Attend", Tensors, bool], None]


class Attend:
    """Rows first_row to first_row + num_rows of a batch, computed with one tiling by one kernel.

    Bound to head counts and the largest number of rows and tokens; owns its schedule and the
    partial sums. `prepare` once per step, then a call per layer.
    """

    def __init__(
        self,
        tiling: Tiling,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        first_row: int,
        num_rows: int,
        num_tokens: int,
        device: torch.device,
        launch: Launch | None = None,
        most_queries: int | None = None,
        window: int = 0,
    ) -> None:
        group = num_heads // num_kv_heads
        self._launch_one = launch or launch_triton
        self.rows = max(tiling.rows, next_power_of_2(group))
        lanes = num_kv_heads if tiling.lanes else 1
        room = num_multiprocessors(device) * tiling.programs_per_multiprocessor
        self.tiling, self.lanes, self.head_dim = tiling, lanes, head_dim
        self.heads, self.kv_heads = num_heads, num_kv_heads
        self._first_row, self._num_rows = first_row, num_rows
        tile_tokens = self.rows // group
        # What a q tile may hold: `most_queries` of a row, where that is known to be few.
        self.used_rows = group * min(tile_tokens, most_queries or tile_tokens)
        programs = 1 if tiling.whole else _programs(max(room // lanes, 1), tiling.rounded)
        max_tiles = min(num_tokens // tile_tokens + num_rows, max(num_tokens, 1))
        self.layout = Layout(
            num_programs=programs,
            max_tiles=max_tiles,
            tile_tokens=tile_tokens,
            tile_keys=tiling.keys,
            repeats=num_kv_heads // lanes,
            tile_cost=tiling.cost,
            window=window,
            whole_tiles=tiling.draws,
            own_programs=tiling.own_programs and max_tiles <= MOST_OWNERS,
        )
        slots = 2 * self.layout.num_programs * lanes * self.rows
        self.schedule = torch.empty(self.layout.size, dtype=torch.int32, device=device)
        self.parts = torch.empty(slots * head_dim, dtype=torch.float32, device=device)
        self.part_sums = torch.empty(slots * 2, dtype=torch.float32, device=device)
        # How many parts of a split q tile are there, by its first program; or how many whole ones
        # were drawn.
        self.counts = torch.zeros(
            self.layout.num_programs * lanes, dtype=torch.int32, device=device
        )

    def prepare(self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor) -> None:
        """Divides the work of one step. On the device; no lengths are read on the host."""
        write_schedule(
            self.layout, cu_query_lens, context_lens,
            self._first_row, self._num_rows, self.schedule,
        )  # fmt: skip

    def __call__(self, tensors: Tensors, early: bool) -> None:
        """Writes the rows' part of `out`. `early`: see `op.BoundPagedAttention`; the schedule is
        then read before the producer of `q` is done."""
        self._launch_one(self, tensors, early)
        self.join(tensors, early)

    def join(self, tensors: Tensors, early: bool) -> None:
        """Joins the parts of split q tiles, where the kernel does not."""
        layout = self.layout
        if layout.num_programs > 1 and not self.tiling.joins:
            pdl = dependent_launch(tensors.q.device)
            # One row per program keeps a batch of one parallel, and as few warps as hold its parts
            # keep all programs there beside those that attend; large tiles split seldom.
            few = (1, self.head_dim // 4, self.head_dim // 32)
            rows, splits, warps = few if self.rows <= 16 else (8, 4, 4)
            blocks = cdiv(self.used_rows, rows)
            # Programs without a tile to join are in the way of the others.
            boundaries, tiles = layout.num_programs - 1, layout.max_tiles * layout.repeats
            _combine[(min(boundaries, tiles), self.lanes, blocks)](
                self.schedule, tensors.out, self.parts, self.part_sums, layout.max_tiles,
                tensors.v_scale, H=self.heads, K=self.kv_heads, D=self.head_dim, M=self.rows,
                P=layout.num_programs, REPEATS=layout.repeats, ROWS=rows, SPLITS=splits,
                BY_TILE=tiles <= boundaries, EARLY=early, PDL=pdl, num_warps=warps, launch_pdl=pdl,
            )  # fmt: skip


def launch_window(attend: Attend, tensors: Tensors, early: bool) -> None:
    """See `Launch`; rows of one query, behind a window that a tile holds."""
    q, tables, layout = tensors.q, tensors.block_tables, attend.layout
    pdl = dependent_launch(q.device)
    _attend_window[(layout.max_tiles * attend.kv_heads,)](
        q, tensors.k_cache, tensors.v_cache, tables, attend.schedule, tensors.sinks, tensors.out,
        tables.stride(0), layout.max_tiles, tensors.scale, tensors.v_scale,
        H=attend.heads, K=attend.kv_heads, D=attend.head_dim, BLOCK=tensors.k_cache.shape[1],
        M=attend.rows, N=next_power_of_2(max(layout.window, 16)), WINDOW=layout.window,
        HAS_SINKS=tensors.sinks is not None, COMPUTE=COMPUTE[tensors.k_cache.dtype],
        EARLY=early, PDL=pdl, num_warps=attend.tiling.warps, launch_pdl=pdl,
    )  # fmt: skip


def launch_triton(attend: Attend, tensors: Tensors, early: bool) -> None:
    """See `Launch`; any tiling, any dtype of the cache."""
    tiling, layout = attend.tiling, attend.layout
    q, tables, out = tensors.q, tensors.block_tables, tensors.out
    block_size = tensors.k_cache.shape[1]
    keys, values = tensors.k_cache, tensors.v_cache
    # A box of a tensor map lies within one block.
    mapped = tiling.tensor_maps and block_size % tiling.keys == 0
    if mapped:
        shape = [tiling.keys, attend.head_dim]
        keys = TensorDescriptor.from_tensor(flat_tokens(keys), shape)
        values = TensorDescriptor.from_tensor(flat_tokens(values), shape)
    pdl = dependent_launch(q.device)
    pairs = tensors.k_cache.dtype.itemsize == 1 and attend.rows < 64
    if pairs:
        values = tensors.v_cache.view(torch.int16)
    _attend[(layout.num_programs * attend.lanes,)](
        q, keys, values, tables, attend.schedule, tensors.sinks, out,
        attend.parts, attend.part_sums, attend.counts,
        tables.stride(0), layout.max_tiles, tensors.scale, tensors.v_scale,
        H=attend.heads, K=attend.kv_heads, D=attend.head_dim, BLOCK=block_size,
        M=attend.rows, N=tiling.keys, P=layout.num_programs, REPEATS=layout.repeats,
        COST=tiling.cost, WINDOW=layout.window, HAS_SINKS=tensors.sinks is not None,
        COMPUTE=COMPUTE[tensors.k_cache.dtype], SPLIT_LOOP=tiling.split_loop,
        TMA=mapped, PAIRS=pairs, STAGES=tiling.stages,
        SPECIALISE=tiling.specialise,
        JOIN_ROWS=next_power_of_2(attend.used_rows) if tiling.joins else 0,
        EARLY=early, PDL=pdl, num_warps=tiling.warps,
        num_stages=tiling.stages, maxnreg=tiling.registers, launch_pdl=pdl,
    )  # fmt: skip


def flat_tokens(cache: torch.Tensor) -> torch.Tensor:
    """[num_blocks, block_size, K, d] as [tokens, K * d]."""
    return cache.view(cache.shape[0] * cache.shape[1], -1)


class PagedAttentionTriton:
    """See `op.BoundPagedAttention`: one for each shape of batch, shared by all layers."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_decode_rows: int,
        num_extend_rows: int,
        num_extend_tokens: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        decode: Tiling | None = None,
        extend: Tiling = EXTEND,
        launch_extend: Launch | None = None,
        window: int = 0,
        launch_decode: Launch | None = None,
    ) -> None:
        assert num_heads % num_kv_heads == 0
        assert not window or launch_extend is None, "that kernel sees everything"
        shape = (num_heads, num_kv_heads, head_dim)
        self._kinds: list[Attend] = []
        decode = decode or decode_tiling(num_decode_rows, kv_dtype, window)
        if num_decode_rows:
            rows = (0, num_decode_rows, num_decode_rows)
            launch = launch_window if decode.whole else launch_decode
            self._kinds.append(
                Attend(decode, *shape, *rows, device, launch, most_queries=1, window=window)
            )
        if num_extend_rows:
            rows = (num_decode_rows, num_extend_rows, num_extend_tokens)
            self._kinds.append(Attend(extend, *shape, *rows, device, launch_extend, window=window))

    def schedule(self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor) -> None:
        """See `op.BoundPagedAttention`."""
        assert cu_query_lens.dtype is torch.int32 and context_lens.dtype is torch.int32
        for kind in self._kinds:
            kind.prepare(cu_query_lens, context_lens)

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        scale: float,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        sinks: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        early: bool = True,
    ) -> torch.Tensor:
        """See `op.BoundPagedAttention`."""
        assert q.is_contiguous() and block_tables.dtype is torch.int32
        assert k_cache.is_contiguous() and v_cache.is_contiguous()
        if out is None:
            out = torch.empty_like(q)
        assert out.is_contiguous()
        scale *= k_scale * math.log2(math.e)
        tensors = Tensors(q, k_cache, v_cache, block_tables, scale, v_scale, out, sinks=sinks)
        for kind in self._kinds:
            kind(tensors, early)
        return out


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    num_decode_rows: int = 0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    bind: Callable[..., BoundPagedAttention] = PagedAttentionTriton,
) -> torch.Tensor:
    """See `op.PagedAttention`. Binds, schedules and runs; a step of many layers binds once."""
    rows, (tokens, heads, head_dim) = context_lens.shape[0], q.shape
    bound = bind(
        heads, k_cache.shape[2], head_dim, num_decode_rows, rows - num_decode_rows,
        tokens, k_cache.dtype, q.device, window=window,
    )  # fmt: skip
    bound.schedule(cu_query_lens, context_lens)
    return bound(
        q, k_cache, v_cache, block_tables, scale, k_scale, v_scale, sinks, out=out, early=False
    )
