"""The kernel of latent attention, in Triton.

As `attention.attend_triton`, whose schedule and combination it shares, with one cache for keys
and values: a kv tile is N latents [N, R] and rotated parts [N, E], read once for both products.

    s = scale (c q^T + r t^T) for a query (q, t),  acc = acc e^(m - m') + e^(s - m') c

Latents with a scale per token keep it outside of the products: s takes it per key, and the weight
of a value too. Their products run in float16, into which e4m3 widens in one instruction.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.attention.attend_triton import (
    _block_of,
    _widen_high,
    _widen_low,
    _write_part,
)
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.launch_triton import after_producer


@triton.jit
def _walk_latent(
    q, odd_q, t, acc, odd, top, total, LATENT, ROPE, SCALES, TABLE, begin, end, visible, seq_len,
    scale, latent_stride, rope_stride, R: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr,
    N: tl.constexpr, SCALED: tl.constexpr, PAIRS: tl.constexpr, STAGES: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Folds kv tiles begin to end into (acc, odd, top, total). Strides: elements from one token to
    the next. `scale` is over log 2. With PAIRS `q` and `acc` hold the even places of a latent and
    `odd_q` and `odd` the others, else `q` and `acc` all of them."""
    n = tl.arange(0, N)
    # The latent's row in its own elements: all, or half in pairs.
    r = tl.arange(0, R // 2 if PAIRS else R)
    e = tl.arange(0, E)
    block = _block_of(TABLE, begin, seq_len, BLOCK, N)
    for tile in tl.range(begin, end, num_stages=STAGES):
        key = tile * N + n
        inside = key < seq_len
        if N > BLOCK:
            token = block.to(tl.int64) * BLOCK + n % BLOCK
        else:
            token = block.to(tl.int64) * BLOCK + tile * N % BLOCK + n
        # Past the row's end may be anything, and 0 times nan is nan.
        c = tl.load(
            LATENT + token[:, None] * latent_stride + r[None, :], mask=inside[:, None],
            other=0 if PAIRS else 0.0,
        )  # fmt: skip
        turned = tl.load(ROPE + token[:, None] * rope_stride + e[None, :])
        if SCALED:
            size = tl.load(SCALES + token, mask=inside, other=0.0)
        block = _block_of(TABLE, tl.minimum(tile + 1, end - 1), seq_len, BLOCK, N)
        if PAIRS:
            keys = tl.trans(c)
            s = tl.dot(q, _widen_low(keys, NATIVE))
            s = tl.dot(odd_q, _widen_high(keys, NATIVE), s)
        else:
            c = c.to(q.dtype)
            s = tl.dot(q, tl.trans(c))
        if SCALED:
            s = s * size[None, :]
        s = tl.dot(t, tl.trans(turned.to(t.dtype)), s)
        s = tl.where(key[None, :] < visible[:, None], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        # A row may see none of these keys; its maximum stays -inf.
        shift = tl.where(higher == float("-inf"), 0.0, higher) * scale
        fade = tl.exp2(top * scale - shift)
        weight = tl.exp2(s * scale - shift[:, None])
        total = total * fade + tl.sum(weight, 1)
        if SCALED:
            weight = weight * size[None, :]
        weight = weight.to(q.dtype)
        if PAIRS:
            acc = tl.dot(weight, _widen_low(c, NATIVE), acc * fade[:, None])
            odd = tl.dot(weight, _widen_high(c, NATIVE), odd * fade[:, None])
        else:
            acc = tl.dot(weight, c, acc * fade[:, None])
        top = higher
    return acc, odd, top, total


@triton.jit
def _attend_latent(
    Q, LATENT, ROPE, SCALES, TABLES, SCHEDULE, OUT, PARTS, PART_SUMS,
    latent_stride, rope_stride, table_stride, max_tiles, scale, value_scale,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, COST: tl.constexpr,
    COMPUTE: tl.constexpr, ROPE_COMPUTE: tl.constexpr, SCALED: tl.constexpr, PAIRS: tl.constexpr,
    STAGES: tl.constexpr, IN_PARTS: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """K lanes share the heads: a program computes G = H / K of them. EARLY: the schedule was
    written two kernels back or earlier. IN_PARTS: a tile is left as parts even if it is whole."""
    G: tl.constexpr = H // K
    if not EARLY:
        after_producer(PDL)
    columns = SCHEDULE + HEADER + P + 1
    stride = max_tiles + 1
    p = tl.program_id(0) // K
    lane = tl.program_id(0) % K
    tiles = tl.load(SCHEDULE)
    programs = tl.load(SCHEDULE + 1)
    tile = tl.load(SCHEDULE + HEADER + p)
    units = tl.load(columns + tiles).to(tl.int64)
    if EARLY:
        after_producer(PDL)
    divisor = tl.maximum(programs, 1)
    unit = units * p // divisor
    stop = tl.where(p < programs, units * (p + 1) // divisor, unit)
    slot = 2 * p
    m = tl.arange(0, M)
    r = tl.arange(0, R)
    e = tl.arange(0, E)
    while unit < stop:
        before = tl.load(columns + tile)
        count = tl.load(columns + tile + 1) - before
        row = tl.load(columns + stride + tile).to(tl.int64)
        first_query = tl.load(columns + 2 * stride + tile).to(tl.int64)
        queries = tl.load(columns + 3 * stride + tile)
        first_visible = tl.load(columns + 4 * stride + tile)
        begin = (unit - before.to(tl.int64)).to(tl.int32)
        end = tl.minimum(count, begin + (stop - unit).to(tl.int32))
        live = m < queries * G
        # Rows of the tile: tokens, and within a token the heads of the lane.
        head = (first_query + m // G) * H + lane * G + m % G
        query = Q + head[:, None] * (R + E)
        q = tl.load(query + r[None, :], mask=live[:, None], other=0.0).to(COMPUTE)
        t = tl.load(query + R + e[None, :], mask=live[:, None], other=0.0).to(ROPE_COMPUTE)
        visible = first_visible + m // G
        seq_len = first_visible + queries - 1
        odd_q = q
        if PAIRS:
            q, odd_q = tl.split(tl.reshape(q, (M, R // 2, 2)))
        acc = tl.zeros([M, R // 2 if PAIRS else R], tl.float32)
        odd = tl.zeros([M, R // 2 if PAIRS else 16], tl.float32)
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        # The first COST units of a tile stand for what it costs to begin one.
        first = tl.maximum(begin - COST, 0)
        last = tl.maximum(end - COST, 0)
        if first < last:
            acc, odd, top, total = _walk_latent(
                q, odd_q, t, acc, odd, top, total, LATENT, ROPE, SCALES,
                TABLES + row * table_stride, first, last, visible, seq_len, scale, latent_stride,
                rope_stride, R, E, BLOCK, N, SCALED, PAIRS, STAGES, PDL,
            )  # fmt: skip
        sums = tl.reshape(tl.join(acc, odd), (M, R)) if PAIRS else acc
        part = (slot * K + lane).to(tl.int64) * M + m
        if (begin == 0) & (end == count) & (not IN_PARTS):
            out = sums * (value_scale / total)[:, None]
            to = OUT + head[:, None] * R + r[None, :]
            tl.store(to, out.to(OUT.dtype.element_ty), mask=live[:, None])
        else:
            _write_part(PARTS, PART_SUMS, part, sums, top * scale, total, live, R)
        unit += end - begin
        tile += (end == count).to(tl.int32)
        slot = 2 * p + 1


@triton.jit
def _combine_one(
    SCHEDULE, PARTS, PART_SUMS, VALUE_UP, OUT, value_scale,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, V: tl.constexpr, M: tl.constexpr,
    BN: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of one row of one query: joins the parts of a head, one of each program with work, and
    multiplies BN columns of the head's value matrix."""
    G: tl.constexpr = H // K
    if not EARLY:
        after_producer(PDL)
    head = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    r = tl.arange(0, R)
    programs = tl.load(SCHEDULE + 1)
    at = VALUE_UP + head.to(tl.int64) * R * V + r[:, None] * V + n[None, :]
    w = tl.load(at, mask=(n < V)[None, :], other=0.0)
    if EARLY:
        after_producer(PDL)
    top = float("-inf")
    total = 0.0
    acc = tl.zeros([R], tl.float32)
    for chunk in range(0, programs, SPLITS):
        split = chunk + tl.arange(0, SPLITS)
        there = split < programs
        part = (2 * split * K + head // G).to(tl.int64) * M + head % G
        tops = tl.load(PART_SUMS + part * 2, mask=there, other=float("-inf"))
        sums = tl.load(PART_SUMS + part * 2 + 1, mask=there, other=0.0)
        values = tl.load(PARTS + part[:, None] * R + r[None, :], mask=there[:, None], other=0.0)
        higher = tl.maximum(top, tl.max(tops, 0))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(top - shift)
        weight = tl.exp2(tops - shift)
        total = total * fade + tl.sum(weight * sums, 0)
        acc = acc * fade + tl.sum(weight[:, None] * values, 0)
        top = higher
    latent = (acc * (value_scale / total)).to(VALUE_UP.dtype.element_ty).to(tl.float32)
    made = tl.sum(latent[:, None] * w.to(tl.float32), 0)
    tl.store(OUT + head * V + n, made.to(OUT.dtype.element_ty), mask=n < V)
