"""The attention kernel itself and the combination of split rows, in Triton.

A program walks its share of the schedule (see schedule_triton): for each q tile of M = tokens *
heads-per-group rows it keeps a running maximum, sum and weighted values over the kv tiles of its
part. A whole q tile is written out at once; a part goes, unnormalised, to one of the two slots of
its program, and `_combine` joins the parts of each split q tile in the order of the tokens.

    s = scale q k^T,  m' = max(m, max s),  l' = l e^(m - m') + sum e^(s - m'),  and acc alike

A float8 value matrix in a decode tile is read as pairs of bytes: the matrix units want two tokens
of a dimension in one register, which the 16-bit transposing load gives and a load of bytes does
not. Even and odd dimensions then are products of their own, interleaved at the end.

Behind a window of w keys a query with `visible` keys in sight sees the last w of them: the walk
begins with the tile of the first of those, and what lies before it is never read. A sink is a
logit without a value: where a q tile begins, its rows begin with it as their maximum, and a sum
of 1.

The block id of the next kv tile is read one tile ahead and carried by the loop: with the read in
the same turn as the keys it points to, the compiler's pipeline is one stage shorter.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.attention.around_triton import facts, join, places, share
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.launch_triton import start_next, wait_for_producer

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _block_of(
    TABLE, tile, seq_len, BLOCK: tl.constexpr, N: tl.constexpr, lowest=0, WINDOW: tl.constexpr = 0
):
    """Block ids of the keys of a kv tile: one, or one per key where a tile spans several. Behind a
    window none is read of keys below `lowest`."""
    if N > BLOCK:
        index = tile * (N // BLOCK) + tl.arange(0, N) // BLOCK
        there = index * BLOCK < seq_len
        if WINDOW:
            there &= index * BLOCK + BLOCK > lowest
        block = tl.load(TABLE + index, mask=there, other=0)
    else:
        block = tl.load(TABLE + tile * N // BLOCK)
    return block


@triton.jit
def _widen_low(pairs, NATIVE: tl.constexpr):
    """float16 of the low byte, an e4m3, of each int16. NATIVE: by the instruction of sm_89 on."""
    if NATIVE:
        wide = tl.inline_asm_elementwise(
            "{ .reg .b32 b; .reg .b16 l, h; prmt.b32 b, $1, $1, 0x2020; mov.b32 {l, h}, b;"
            " cvt.rn.f16x2.e4m3x2 $0, l; }",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        wide = _widen_by_hand(pairs)
    return wide


@triton.jit
def _widen_high(pairs, NATIVE: tl.constexpr):
    """As `_widen_low`, of the high byte."""
    if NATIVE:
        wide = tl.inline_asm_elementwise(
            "{ .reg .b32 b; .reg .b16 l, h; prmt.b32 b, $1, $1, 0x3131; mov.b32 {l, h}, b;"
            " cvt.rn.f16x2.e4m3x2 $0, l; }",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        wide = _widen_by_hand(pairs >> 8)
    return wide


@triton.jit
def _widen_by_hand(pairs):
    # Exponent and mantissa lie at the top of float16's, whose exponent counts from 8 lower.
    bits = ((pairs & 0x7F) << 7) | ((pairs & 0x80) << 8)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def walk(
    q, acc, odd, top, total, K_CACHE, V_CACHE, TABLE, head, begin, end, visible, lowest, seq_len,
    scale, D: tl.constexpr, TOKEN: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr,
    WINDOW: tl.constexpr, MASKED: tl.constexpr, TMA: tl.constexpr, PAIRS: tl.constexpr,
    STAGES: tl.constexpr, SPECIALISE: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Folds kv tiles begin to end into (acc, odd, top, total). `visible` [M]: keys up to what each
    row sees; `lowest`: the first that any of them does. TOKEN: elements from one token of the
    cache to the next. `scale` is over log 2. With PAIRS `acc` holds the even dimensions and `odd`
    the others, else `acc` all of them."""
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    # The values' row in their own elements: as many as the keys', or half in pairs.
    VALUE: tl.constexpr = 2 if PAIRS else 1
    e = tl.arange(0, D // VALUE)
    block = _block_of(TABLE, begin, seq_len, BLOCK, N, lowest, WINDOW)
    for tile in tl.range(begin, end, num_stages=STAGES, warp_specialize=SPECIALISE):
        key = tile * N + n
        if TMA:
            first = block * BLOCK + tile * N % BLOCK
            k = K_CACHE.load([first, head * D])
            v = V_CACHE.load([first, head * D])
        else:
            if N > BLOCK:
                token = block.to(tl.int64) * BLOCK + n % BLOCK
                token = token[:, None] * TOKEN
            else:
                first = block.to(tl.int64) * BLOCK + tile * N % BLOCK
                token = first * TOKEN + n[:, None] * TOKEN
            k = tl.load(K_CACHE + token + (head * D + d)[None, :])
            values = V_CACHE + token // VALUE + (head * (D // VALUE) + e)[None, :]
            if MASKED:
                # Past the row's end may be anything, and 0 times nan is nan.
                there = key < seq_len
                if WINDOW:
                    there &= key >= lowest
                v = tl.load(values, mask=there[:, None], other=0 if PAIRS else 0.0)
            else:
                v = tl.load(values)
        block = _block_of(TABLE, tl.minimum(tile + 1, end - 1), seq_len, BLOCK, N, lowest, WINDOW)
        k = k.to(q.dtype)
        s = tl.dot(q, tl.trans(k))
        if MASKED:
            if TMA:
                there = key < seq_len
                if WINDOW:
                    there &= key >= lowest
                v = tl.where(there[:, None], v.to(q.dtype), 0.0)
            seen = key[None, :] < visible[:, None]
            if WINDOW:
                seen &= key[None, :] >= visible[:, None] - WINDOW
            s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        # A row may see none of these keys; its maximum stays -inf.
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        shift = finite * scale
        # Exactly 1 where the maximum stays: keys that a row does not see leave no trace.
        fade = tl.exp2((top - finite) * scale)
        # One instruction by name: what the compiler joins depends on what is around it.
        weight = tl.exp2(tl.fma(s, scale, -shift[:, None]))
        total = tl.fma(total, fade, tl.sum(weight, 1))
        weight = weight.to(q.dtype)
        if PAIRS:
            acc = tl.dot(weight, _widen_low(v, NATIVE), acc * fade[:, None])
            odd = tl.dot(weight, _widen_high(v, NATIVE), odd * fade[:, None])
        else:
            acc = tl.dot(weight, v.to(q.dtype), acc * fade[:, None])
        top = higher
    return acc, odd, top, total


@triton.jit
def _nothing(
    SINKS, head, begin, scale, G: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    HAS_SINKS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """(acc, odd, top, total) before the first key; a sink counts where `begin` is the row's."""
    acc = tl.zeros([M, D // 2 if PAIRS else D], tl.float32)
    odd = tl.zeros([M, D // 2 if PAIRS else 16], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    if HAS_SINKS:  # noqa: SIM102 (one is for the compiler, the other for the device)
        if begin == 0:
            # In the units of products that are yet to be scaled, as `scale` is over log 2.
            sink = tl.load(SINKS + head * G + tl.arange(0, M) % G).to(tl.float32)
            top, total = sink * (_LOG2_E / scale), total + 1.0
    return acc, odd, top, total


@triton.jit
def _keys(begin, end, first_visible, N: tl.constexpr, COST: tl.constexpr, WINDOW: tl.constexpr):
    """The first key that a row sees, and the kv tiles that units begin to end of a q tile are. The
    first COST units of a tile stand for what it costs to begin one."""
    first, last = tl.maximum(begin - COST, 0), tl.maximum(end - COST, 0)
    lowest = 0
    if WINDOW:
        lowest = tl.maximum(first_visible - WINDOW, 0)
        first, last = first + lowest // N, last + lowest // N
    return lowest, first, last


@triton.jit
def _within(unit, stop, line, before, count, REPEATS: tl.constexpr):
    """Of the q tile at `unit`: its kv head, beside the lane's, and its own units, first and end."""
    repeat = (unit // tl.maximum(line, 1)).to(tl.int32) if REPEATS > 1 else 0
    begin = (unit - repeat * line).to(tl.int32) - before
    return repeat, begin, tl.minimum(count, begin + (stop - unit).to(tl.int32))


@triton.jit
def write_part(PARTS, PART_SUMS, part, sums, top, total, live, D: tl.constexpr):
    tl.store(PARTS + part[:, None] * D + tl.arange(0, D)[None, :], sums, mask=live[:, None])
    tl.store(PART_SUMS + part * 2, top, mask=live)
    tl.store(PART_SUMS + part * 2 + 1, total, mask=live)


@triton.jit(do_not_specialize=["table_stride", "max_tiles"])
def _attend(
    Q, K_CACHE, V_CACHE, TABLES, SCHEDULE, SINKS, OUT, PARTS, PART_SUMS, COUNTS,
    table_stride, max_tiles, scale, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, REPEATS: tl.constexpr, COST: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, COMPUTE: tl.constexpr, SPLIT_LOOP: tl.constexpr,
    TMA: tl.constexpr, PAIRS: tl.constexpr, STAGES: tl.constexpr, SPECIALISE: tl.constexpr,
    JOIN_ROWS: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """EARLY: the schedule is complete once this starts. SPLIT_LOOP: whole tiles and masked ones in
    loops of their own, which pays where arithmetic is the limit. JOIN_ROWS: as many rows of a q
    tile are used, and this kernel joins its parts; 0: `_combine` does."""
    G: tl.constexpr = H // K
    LANES: tl.constexpr = K // REPEATS
    start_next(PDL)
    if not EARLY:
        wait_for_producer(PDL)
    columns, stride = SCHEDULE + HEADER + P + 1, max_tiles + 1
    p, lane = tl.program_id(0) // LANES, tl.program_id(0) % LANES
    tile, unit, stop, line, tiles, programs = share(SCHEDULE, columns, p, REPEATS)
    slot, m = 2 * p, tl.arange(0, M)
    if not SPLIT_LOOP:
        before, count, row, first_query, queries, first_visible = facts(columns, stride, tile)
    if EARLY:
        wait_for_producer(PDL)
    while unit < stop:
        # After the last q tile of a head comes the next head's first.
        following = tl.where(tile + 1 == tiles, 0, tile + 1)
        if SPLIT_LOOP:
            before, count, row, first_query, queries, first_visible = facts(columns, stride, tile)
        else:
            # While this one is walked, as registers are not short.
            then = facts(columns, stride, following)
        repeat, begin, end = _within(unit, stop, line, before, count, REPEATS)
        head, seq_len = lane + repeat, first_visible + queries - 1
        live, element = places(first_query, queries, head, H, G, D, M)
        q = tl.load(Q + element, mask=live[:, None], other=0.0).to(COMPUTE)
        visible = first_visible + m // G
        acc, odd, top, total = _nothing(SINKS, head, begin, scale, G, M, D, HAS_SINKS, PAIRS)
        table = TABLES + row * table_stride
        lowest, masked, last = _keys(begin, end, first_visible, N, COST, WINDOW)
        if SPLIT_LOOP and not WINDOW:
            whole = tl.minimum(last, first_visible // N)
            if masked < whole:
                acc, odd, top, total = walk(
                    q, acc, odd, top, total, K_CACHE, V_CACHE, table, head, masked, whole, visible,
                    lowest, seq_len, scale, D, K * D, BLOCK, N, WINDOW, False, TMA, PAIRS, STAGES,
                    SPECIALISE, PDL,
                )  # fmt: skip
            masked = tl.maximum(masked, whole)
        if masked < last:
            acc, odd, top, total = walk(
                q, acc, odd, top, total, K_CACHE, V_CACHE, table, head, masked, last, visible,
                lowest, seq_len, scale, D, K * D, BLOCK, N, WINDOW, True, TMA, PAIRS, STAGES,
                False, PDL,
            )  # fmt: skip
        sums = tl.reshape(tl.join(acc, odd), (M, D)) if PAIRS else acc
        if (begin == 0) & (end == count):
            out = sums * (v_scale / total)[:, None]
            tl.store(OUT + element, out.to(OUT.dtype.element_ty), mask=live[:, None])
        else:
            part = (slot * LANES + lane).to(tl.int64) * M + m
            write_part(PARTS, PART_SUMS, part, sums, top * scale, total, live, D)
            if JOIN_ROWS > 0:
                join(
                    OUT, PARTS, PART_SUMS, COUNTS, unit - begin, count, line * REPEATS, programs,
                    lane, first_query, queries, head, v_scale, H, G, D, M, LANES, JOIN_ROWS,
                )  # fmt: skip
        unit += end - begin
        slot = 2 * p + 1
        if end == count:
            tile = following
            if not SPLIT_LOOP:
                before, count, row, first_query, queries, first_visible = then


@triton.jit(do_not_specialize=["max_tiles"])
def _combine(
    SCHEDULE, OUT, PARTS, PART_SUMS, max_tiles, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    REPEATS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, BY_TILE: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per (q tile of each repeat, lane, ROWS rows of the q tile), or, not BY_TILE, per
    boundary of programs instead: the first one inside a q tile stands for that tile. Those without
    a split q tile return."""
    G: tl.constexpr = H // K
    LANES: tl.constexpr = K // REPEATS
    start_next(PDL)
    if not EARLY:
        wait_for_producer(PDL)
    columns = SCHEDULE + HEADER + P + 1
    stride = max_tiles + 1
    lane = tl.program_id(1)
    m = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    tiles = tl.load(SCHEDULE)
    programs = tl.load(SCHEDULE + 1)
    line = tl.load(columns + tiles).to(tl.int64)
    units = line * REPEATS
    p = tl.program_id(0) + 1
    if BY_TILE:
        tile, repeat = tl.program_id(0) % max_tiles, tl.program_id(0) // max_tiles
        here = (tile < tiles) & (programs > 1)
        tile = tl.minimum(tile, tl.maximum(tiles - 1, 0))
    else:
        tile = tl.load(SCHEDULE + HEADER + tl.minimum(p, tl.maximum(programs, 1) - 1))
        here = p < programs
        boundary = units * p // tl.maximum(programs, 1)
        repeat = (boundary // tl.maximum(line, 1)).to(tl.int32)
    before = tl.load(columns + tile)
    count = tl.maximum(tl.load(columns + tile + 1) - before, 1)
    queries = tl.load(columns + 3 * stride + tile)
    first_query = tl.load(columns + 2 * stride + tile).to(tl.int64)
    tile_begin = repeat * line + before
    first = (((tile_begin + 1) * programs - 1) // tl.maximum(units, 1)).to(tl.int32)
    last = (((tile_begin + count) * programs - 1) // tl.maximum(units, 1)).to(tl.int32)
    # The first program met the tile at its own start, or after other tiles.
    begins_before = units * first // tl.maximum(programs, 1) < tile_begin
    first_slot = 2 * first + begins_before.to(tl.int32)
    here &= last > first
    if not BY_TILE:
        here &= first == p - 1
    if EARLY:
        wait_for_producer(PDL)
    live = m < queries * G
    if here & (tl.program_id(2) * ROWS < queries * G):
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, D], tl.float32)
        for chunk in range(first, last + 1, SPLITS):
            split = chunk + tl.arange(0, SPLITS)
            slot = tl.where(split == first, first_slot, 2 * split)
            part = (slot * LANES + lane).to(tl.int64)[:, None] * M + m[None, :]
            there = (split <= last)[:, None] & live[None, :]
            tops = tl.load(PART_SUMS + part * 2, mask=there, other=float("-inf"))
            sums = tl.load(PART_SUMS + part * 2 + 1, mask=there, other=0.0)
            values = tl.load(
                PARTS + part[:, :, None] * D + d[None, None, :], mask=there[:, :, None], other=0.0
            )
            higher = tl.maximum(top, tl.max(tops, 0))
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            fade = tl.exp2(top - shift)
            weight = tl.exp2(tops - shift[None, :])
            total = total * fade + tl.sum(weight * sums, 0)
            acc = acc * fade[:, None] + tl.sum(weight[:, :, None] * values, 0)
            top = higher
        head = lane + repeat
        element = ((first_query + m // G) * H + head * G + m % G)[:, None] * D + d[None, :]
        out = acc * (v_scale / total)[:, None]
        tl.store(OUT + element, out.to(OUT.dtype.element_ty), mask=live[:, None])
