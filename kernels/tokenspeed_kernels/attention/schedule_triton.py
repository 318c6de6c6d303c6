"""Splits the work of paged attention evenly over a fixed number of programs, on the device.

A q tile is `tile_tokens` consecutive queries of one row, all heads of a group together. A kv tile
is `tile_keys` tokens of the row's cache. A unit is one kv tile met by one q tile, which behind a
window begins with the tile of the first key that its first query sees; the units of all q tiles,
row after row, form a line. Kv heads that share programs follow each other, a line each,
so that programs at work at once read the same keys; program p of P takes units W p / P to
W (p + 1) / P of the W there are. Where as many equal q tiles as programs lie beside each other,
each takes one, and none is split.

Beginning a q tile costs time too: it counts as `tile_cost` units more, ahead of the others. A
program may so begin or end inside a q tile; such parts are combined afterwards. Where q tiles may
have programs of their own (`own_programs`) and those then have little more to do, no program meets
two of them: units that stand for nothing fill each q tile up, ahead of the others, to a multiple of
what a program takes. With P fixed, the
grid and every buffer are fixed too, whatever the lengths: a captured graph stays valid. The
schedule depends on the lengths alone, so all layers of a step share one.

Layout of the schedule, int32:
    [0]                     number of q tiles
    [1]                     programs with work, P' <= min(P, W); negative where q tiles are many and
                            programs draw whole ones
    [2 : 2 + P + 1]         first q tile of each program
    then 5 columns of `max_tiles + 1`: units before the q tile, row, first query (an index of the
    batch), number of queries, keys that the first of them sees
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch, next_power_of_2

HEADER = tl.constexpr(2)
# Where a program has so many times the longest q tile to do, none is idle for long at the end.
_MANY = 6
# A second q tile costs a program about as many units.
_SECOND = 2
MOST_OWNERS = 128


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a schedule. `repeats`: kv heads that follow each other on the line (the others
    run beside it, on programs of their own). `window`: keys that a query sees at most, 0 for all.
    `whole_tiles`: none need be split where there are many, as the kernel draws them one by one.
    `own_programs`: whatever a q tile's units are more than its kv tiles, the kernel takes for
    units that stand for nothing. Of one repeat, and at most MOST_OWNERS q tiles.
    """

    num_programs: int
    max_tiles: int
    tile_tokens: int
    tile_keys: int
    repeats: int
    tile_cost: int
    window: int = 0
    whole_tiles: bool = False
    own_programs: bool = False

    @property
    def size(self) -> int:
        """int32 words."""
        return 2 + self.num_programs + 1 + 5 * (self.max_tiles + 1)


@triton.jit
def _own_share(kv_tiles, P: tl.constexpr, SECOND: tl.constexpr):
    """The fewest units of a program with which P are enough though none meets two q tiles; 0 if
    they are more than SECOND more than all would have of an equal share."""
    NONE: tl.constexpr = 2**31 - 1
    least = tl.maximum(tl.cdiv(tl.sum(kv_tiles, 0), P), 1)
    more = tl.arange(0, 2 * SECOND)
    guess = least + more
    programs = tl.sum(tl.cdiv(kv_tiles[:, None], guess[None, :]), 0)
    share = tl.min(tl.where((programs <= P) & (more <= SECOND), guess, NONE), 0)
    return tl.where(share == NONE, 0, share)


@triton.jit(do_not_specialize=["first_row", "num_rows", "max_tiles"])
def _schedule(
    CU_QUERY_LENS, CONTEXT_LENS, SCHEDULE, first_row, num_rows, max_tiles,
    P: tl.constexpr, P_PAD: tl.constexpr, R_PAD: tl.constexpr, STEPS: tl.constexpr,
    TOKENS: tl.constexpr, KEYS: tl.constexpr, REPEATS: tl.constexpr, COST: tl.constexpr,
    WINDOW: tl.constexpr, MANY: tl.constexpr, OWN: tl.constexpr, SECOND: tl.constexpr,
    CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """MANY: q tiles are drawn whole where the longest is no more than such a part of a program's
    share, 0 for never. OWN: they have programs of their own if it costs little."""
    after_producer(PDL)
    columns = SCHEDULE + HEADER + P + 1
    stride = max_tiles + 1
    r = tl.arange(0, R_PAD)
    begin = tl.load(CU_QUERY_LENS + first_row + r, mask=r < num_rows, other=0)
    end = tl.load(CU_QUERY_LENS + first_row + r + 1, mask=r < num_rows, other=0)
    tiles = (end - begin + TOKENS - 1) // TOKENS
    tiles_through = tl.cumsum(tiles, 0)
    num_tiles = tl.sum(tiles, 0)

    total = tl.zeros([], tl.int32)
    longest = tl.zeros([], tl.int32)
    own_share = tl.zeros([], tl.int32)
    for chunk in range(tl.cdiv(num_tiles, CHUNK)):
        i = chunk * CHUNK + tl.arange(0, CHUNK)
        live = i < num_tiles
        # The row of a q tile: as many rows end at or before it.
        row = tl.sum((tiles_through[None, :] <= i[:, None]).to(tl.int32), 1)
        row = tl.where(live, row, 0)
        before = tl.sum(tl.where(r[None, :] < row[:, None], tiles[None, :], 0), 1)
        row_begin = tl.load(CU_QUERY_LENS + first_row + row, mask=live, other=0)
        row_end = tl.load(CU_QUERY_LENS + first_row + row + 1, mask=live, other=0)
        context = tl.load(CONTEXT_LENS + first_row + row, mask=live, other=0)
        offset = (i - before) * TOKENS
        queries = tl.minimum(row_end - row_begin - offset, TOKENS)
        visible = context + offset + 1
        kv_tiles = (visible + queries - 1 + KEYS - 1) // KEYS
        if WINDOW:
            kv_tiles -= tl.maximum(visible - WINDOW, 0) // KEYS
        if OWN:
            own_share = _own_share(tl.where(live, kv_tiles, 0), P, SECOND)
            filled = tl.cdiv(kv_tiles, tl.maximum(own_share, 1)) * own_share
            kv_tiles = tl.where(own_share > 0, filled - COST, kv_tiles)
        kv_tiles = tl.where(live, kv_tiles + COST, 0)
        tl.store(columns + i, total + tl.cumsum(kv_tiles, 0) - kv_tiles, mask=live)
        tl.store(columns + stride + i, first_row + row, mask=live)
        tl.store(columns + 2 * stride + i, row_begin + offset, mask=live)
        tl.store(columns + 3 * stride + i, queries, mask=live)
        tl.store(columns + 4 * stride + i, visible, mask=live)
        total += tl.sum(kv_tiles, 0)
        longest = tl.maximum(longest, tl.max(kv_tiles, 0))
    tl.store(columns + num_tiles, total)
    units = total.to(tl.int64) * REPEATS
    programs = tl.minimum(units, P).to(tl.int32)
    if REPEATS == 1:
        # One program a q tile, where none has much more to do than its share of all programs.
        even = longest.to(tl.int64) * P * 16 <= units * 17
        programs = tl.where((num_tiles <= P) & even, num_tiles, programs)
    if MANY:
        many = (units > 0) & (longest.to(tl.int64) * MANY * P <= units)
        programs = tl.where(many, -1, programs)
    if OWN:
        programs = tl.where(own_share > 0, total // tl.maximum(own_share, 1), programs)
    tl.store(SCHEDULE, num_tiles)
    tl.store(SCHEDULE + 1, programs)

    # The q tile that holds each program's first unit, by bisection in what was just written.
    tl.debug_barrier()
    p = tl.arange(0, P_PAD)
    working = p < programs
    unit = (units * p // tl.maximum(programs, 1) % tl.maximum(total, 1)).to(tl.int32)
    low = tl.zeros([P_PAD], tl.int32)
    high = tl.zeros([P_PAD], tl.int32) + num_tiles
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        at = tl.load(columns + middle, mask=working, other=0)
        right = (at <= unit) & (high - low > 1)
        low = tl.where(right, middle, low)
        high = tl.where(right | (high - low <= 1), high, middle)
    # Program 0 has one even if there is no work: `_combine` looks there.
    tl.store(SCHEDULE + HEADER + p, low, mask=working | (p == 0))


def write_schedule(
    layout: Layout,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    first_row: int,
    num_rows: int,
    out: torch.Tensor,
) -> None:
    """Writes the schedule of rows first_row to first_row + num_rows to `out`, int32 [size]."""
    assert out.numel() >= layout.size and out.dtype is torch.int32 and out.is_contiguous()
    chunk = min(MOST_OWNERS, max(16, next_power_of_2(layout.max_tiles)))
    assert not layout.own_programs or (layout.repeats == 1 and layout.max_tiles <= chunk)
    padded_rows = next_power_of_2(max(num_rows, 1))
    pdl = dependent_launch(out.device)
    _schedule[(1,)](
        cu_query_lens, context_lens, out, first_row, num_rows, layout.max_tiles,
        P=layout.num_programs, P_PAD=next_power_of_2(layout.num_programs),
        R_PAD=padded_rows, STEPS=max(layout.max_tiles, 1).bit_length() + 1,
        TOKENS=layout.tile_tokens, KEYS=layout.tile_keys, REPEATS=layout.repeats,
        COST=layout.tile_cost, WINDOW=layout.window, MANY=_MANY if layout.whole_tiles else 0,
        OWN=layout.own_programs, SECOND=_SECOND, CHUNK=chunk, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
