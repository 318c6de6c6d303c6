"""Attention whose sums keep one order whatever else is in the batch, in Triton.

The keys of a row are cut into parts of fixed length, counted from its first token. A part is walked
as `attend_triton` walks (64 rows of a q tile or more, so that the matrix units do the same for one
query as for many), and parts are folded in the order of the tokens:

    m' = max(m, m_p),  l' = l e^(m - m') + l_p e^(m_p - m'),  and acc alike

Who computes a part and who folds it does not matter: both places fold by the same instructions, in
float32. So a query's output depends on its row's tokens alone, whether it came in a prompt, in any
chunk of it, or was decoded. Keys that a query does not see, of which a q tile walks more or fewer
as it begins here or there, add exact zeros and fade by exactly 1.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.attention.around_triton import facts, places, share
from tokenspeed_kernels.attention.attend_triton import walk, write_part
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.launch_triton import after_producer, start_next, wait_for_producer


@triton.jit
def _fold(acc, top, total, part, part_top, part_total, scale):
    """Rows [M, D], [M], [M] joined to those of the part behind them; maxima as products, yet to be
    scaled. Multiply and add are one instruction by name: left to the compiler they might be so in
    one place only."""
    higher = tl.maximum(top, part_top)
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    fade, weight = tl.exp2((top - finite) * scale), tl.exp2((part_top - finite) * scale)
    total = tl.fma(total, fade, weight * part_total)
    faded = tl.broadcast_to(fade[:, None], acc.shape)
    acc = tl.fma(acc, faded, tl.broadcast_to(weight[:, None], acc.shape) * part)
    return acc, higher, total


@triton.jit(do_not_specialize=["table_stride", "max_tiles", "part_tiles"])
def _attend_ordered(
    Q, K_CACHE, V_CACHE, TABLES, SCHEDULE, OUT, PARTS, PART_SUMS,
    table_stride, max_tiles, part_tiles, scale, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, USED: tl.constexpr,
    MOST: tl.constexpr, COMPUTE: tl.constexpr, APART: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """APART: a unit of the schedule is a part, of `part_tiles` kv tiles; parts of q tiles that
    several programs share go to PARTS, float32 [programs, MOST, K, USED, D], where the first of
    those programs has its place, and their maxima and sums alike. Else a unit is a kv tile, and a q
    tile is its program's in whose share it begins."""
    G: tl.constexpr = H // K
    start_next(PDL)
    if not EARLY:
        wait_for_producer(PDL)
    columns, stride = SCHEDULE + HEADER + P + 1, max_tiles + 1
    p, head = tl.program_id(0) // K, tl.program_id(0) % K
    tile, unit, stop, units, _tiles, programs = share(SCHEDULE, columns, p, 1)
    if EARLY:
        wait_for_producer(PDL)
    if not APART:
        before, count, _row, _query, _queries, _visible = facts(columns, stride, tile)
        late = (unit - before > 0) & (unit < stop)
        unit = tl.where(late, (before + count).to(tl.int64), unit)
        tile = tl.where(late, tile + 1, tile)
    m = tl.arange(0, M)
    while unit < stop:
        before, count, row, first_query, queries, first_visible = facts(columns, stride, tile)
        seq_len = first_visible + queries - 1
        kv_tiles = tl.cdiv(seq_len, N)
        begin, end = 0, tl.cdiv(kv_tiles, part_tiles)
        if APART:
            begin = (unit - before).to(tl.int32)
            end = tl.minimum(count, begin + (stop - unit).to(tl.int32))
        alone = (begin == 0) & (end == count) if APART else True
        live, element = places(first_query, queries, head, H, G, D, M)
        q = tl.load(Q + element, mask=live[:, None], other=0.0).to(COMPUTE)
        visible = first_visible + m // G
        table = TABLES + row * table_stride
        acc = tl.zeros([M, D], tl.float32)
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        for part in tl.range(begin, end, num_stages=1):
            sums, _, part_top, part_total = walk(
                q, tl.zeros([M, D], tl.float32), tl.zeros([M, 16], tl.float32),
                tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32),
                K_CACHE, V_CACHE, table, head, part * part_tiles,
                tl.minimum((part + 1) * part_tiles, kv_tiles), visible, 0, seq_len, scale,
                D, K * D, BLOCK, N, 0, True, False, False, STAGES, False, PDL,
            )  # fmt: skip
            if alone:
                acc, top, total = _fold(acc, top, total, sums, part_top, part_total, scale)
            else:
                first = ((before + 1).to(tl.int64) * programs - 1) // units
                place = ((first * MOST + part) * K + head) * USED + m
                write_part(PARTS, PART_SUMS, place, sums, part_top, part_total, live, D)
        if alone:
            out = acc * (v_scale / total)[:, None]
            tl.store(OUT + element, out.to(OUT.dtype.element_ty), mask=live[:, None])
        unit = unit + (end - begin) if APART else (before + count).to(tl.int64)
        tile += 1


@triton.jit(do_not_specialize=["max_tiles"])
def _fold_parts(
    SCHEDULE, OUT, PARTS, PART_SUMS, max_tiles, scale, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr, USED: tl.constexpr,
    MOST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per (q tile, head): folds the parts that `_attend_ordered` left apart."""
    G: tl.constexpr = H // K
    after_producer(PDL)
    columns, stride = SCHEDULE + HEADER + P + 1, max_tiles + 1
    tile, head = tl.program_id(0), tl.program_id(1)
    lane, m = head // G, head % G
    tiles, programs = tl.load(SCHEDULE), tl.load(SCHEDULE + 1)
    if tile < tiles:
        before, count, _row, first_query, _queries, _visible = facts(columns, stride, tile)
        units = tl.load(columns + tiles).to(tl.int64)
        first = ((before + 1).to(tl.int64) * programs - 1) // units
        last = ((before + count).to(tl.int64) * programs - 1) // units
        if first < last:
            d = tl.arange(0, D)
            acc = tl.zeros([1, D], tl.float32)
            top = tl.full([1], float("-inf"), tl.float32)
            total = tl.zeros([1], tl.float32)
            for part in tl.range(0, count, loop_unroll_factor=16):
                place = ((first * MOST + part) * K + lane) * USED + m + tl.arange(0, 1)
                values = tl.load(PARTS + place[:, None] * D + d[None, :])
                tops = tl.load(PART_SUMS + place * 2)
                sums = tl.load(PART_SUMS + place * 2 + 1)
                acc, top, total = _fold(acc, top, total, values, tops, sums, scale)
            out = acc * (v_scale / total)[:, None]
            place = OUT + (first_query * H + head) * D + d[None, :]
            tl.store(place, out.to(OUT.dtype.element_ty))
