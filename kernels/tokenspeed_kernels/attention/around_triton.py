"""What decode attention does around its walk over a part: looks up its share, joins parts.

The parts of a split q tile are added up, in the order of the tokens, by whichever program comes
last: each counts itself in, and the one that finds all others counted reads what they wrote. A sum
so never depends on who that is. It costs some microseconds where many programs share a tile and
nothing where none is split: then `_combine`, in a launch of its own, is the better or the worse.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.attention.schedule_triton import HEADER


@triton.jit
def share(SCHEDULE, columns, p, REPEATS: tl.constexpr):
    """Of program p: its first q tile, its units, first and end; units of one kv head, q tiles and
    programs of all."""
    tiles = tl.load(SCHEDULE)
    programs = tl.load(SCHEDULE + 1)
    # A program without work has no tile either.
    tile = tl.load(SCHEDULE + HEADER + p, mask=p < programs, other=0)
    line = tl.load(columns + tiles).to(tl.int64)
    units = line * REPEATS
    divisor = tl.maximum(programs, 1)
    unit = units * p // divisor
    stop = tl.where(p < programs, units * (p + 1) // divisor, unit)
    return tile, unit, stop, line, tiles, programs


@triton.jit
def facts(columns, stride, tile):
    """Of a q tile: units before it, its units, row, first query, queries, keys that the first of
    them sees."""
    before = tl.load(columns + tile)
    count = tl.load(columns + tile + 1) - before
    row = tl.load(columns + stride + tile).to(tl.int64)
    first_query = tl.load(columns + 2 * stride + tile).to(tl.int64)
    queries = tl.load(columns + 3 * stride + tile)
    first_visible = tl.load(columns + 4 * stride + tile)
    return before, count, row, first_query, queries, first_visible


@triton.jit
def places(
    first_query, queries, head, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr
):
    """Which of the M rows of a q tile are in use, and where they lie in [T, H, D]. Rows are tokens,
    and within a token the heads of the group."""
    m = tl.arange(0, M)
    row = (first_query + m // G) * H + head * G + m % G
    return m < queries * G, row[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def join(
    OUT, PARTS, PART_SUMS, COUNTS, tile_begin, count, units, programs, lane,
    first_query, queries, head, v_scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """After a program wrote its part of the q tile whose units begin at `tile_begin`: the tile's
    output, if this part was the last to come. COUNTS [P, LANES] are 0 between launches."""
    SPLITS: tl.constexpr = max(8192 // (ROWS * D), 2)
    first = ((tile_begin + 1) * programs - 1) // units
    last = ((tile_begin + count) * programs - 1) // units
    # All threads have written before the one that counts says so.
    tl.debug_barrier()
    counted = COUNTS + first * LANES + lane
    if tl.atomic_add(counted, 1, sem="acq_rel", scope="gpu") == last - first:
        tl.store(counted, 0)
        m = tl.arange(0, ROWS)
        d = tl.arange(0, D)
        live, element = places(first_query, queries, head, H, G, D, ROWS)
        # The first program met the tile at its own start, or after other tiles.
        first_slot = 2 * first + (units * first // programs < tile_begin).to(tl.int64)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, D], tl.float32)
        for chunk in range(first, last + 1, SPLITS):
            split = chunk + tl.arange(0, SPLITS)
            slot = tl.where(split == first, first_slot, 2 * split)
            part = (slot * LANES + lane)[:, None] * M + m[None, :]
            there = (split <= last)[:, None] & live[None, :]
            # Past the multiprocessor's own cache, which may hold an older layer's.
            tops = tl.load(
                PART_SUMS + part * 2, mask=there, other=float("-inf"), cache_modifier=".cg"
            )
            sums = tl.load(PART_SUMS + part * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
            values = tl.load(
                PARTS + part[:, :, None] * D + d[None, None, :], mask=there[:, :, None], other=0.0,
                cache_modifier=".cg",
            )  # fmt: skip
            higher = tl.maximum(top, tl.max(tops, 0))
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            fade = tl.exp2(top - shift)
            weight = tl.exp2(tops - shift[None, :])
            total = total * fade + tl.sum(weight * sums, 0)
            acc = acc * fade[:, None] + tl.sum(weight[:, :, None] * values, 0)
            top = higher
        out = acc * (v_scale / total)[:, None]
        tl.store(OUT + element, out.to(OUT.dtype.element_ty), mask=live[:, None])
