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

from tokenspeed_kernels.attention.around_triton import facts
from tokenspeed_kernels.attention.attend_triton import (
    _block_of,
    _widen_high,
    _widen_low,
)
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.launch_triton import after_producer


@triton.jit
def _walk_latent(
    q, other_q, t, acc, other, top, total, LATENT, ROPE, SCALES, TABLE, begin, end, visible,
    seq_len, scale, latent_stride, rope_stride, R: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, N: tl.constexpr, SCALED: tl.constexpr, PAIRS: tl.constexpr,
    STAGES: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Folds kv tiles begin to end into (acc, other, top, total). Strides: elements from one token
    to the next. `scale` is over log 2; `top` is scaled. A latent is two halves, `q` and `acc` of
    the first and `other_q` and `other` of the second: with PAIRS its even and its odd places."""
    n = tl.arange(0, N)
    half = tl.arange(0, R // 2)
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
        at = LATENT + token[:, None] * latent_stride + half[None, :]
        c = tl.load(at, mask=inside[:, None], other=0 if PAIRS else 0.0)
        if not PAIRS:
            d = tl.load(at + R // 2, mask=inside[:, None], other=0.0)
        turned = tl.load(ROPE + token[:, None] * rope_stride + e[None, :])
        size = scale
        if SCALED:
            stored = tl.load(SCALES + token, mask=inside, other=0.0)[None, :]
            size = stored * scale
        block = _block_of(TABLE, tl.minimum(tile + 1, end - 1), seq_len, BLOCK, N)
        # Three chains of products instead of a long one: each scaled, or they would be joined.
        if PAIRS:
            keys = tl.trans(c)
            s = tl.dot(q, _widen_low(keys, NATIVE)) * size
            s += tl.dot(other_q, _widen_high(keys, NATIVE)) * size
        else:
            s = tl.dot(q, tl.trans(c)) * size
            s += tl.dot(other_q, tl.trans(d)) * size
        s += tl.dot(t, tl.trans(turned.to(t.dtype))) * scale
        s = tl.where(key[None, :] < visible[:, None], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        # A row may see none of these keys; its maximum stays -inf.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(top - shift)
        weight = tl.exp2(s - shift[:, None])
        # Of few rows the sum over keys, which warps share, is left for the end.
        total = total * fade[:, None]
        total += weight if total.shape[1] == N else tl.sum(weight, 1)[:, None]
        if SCALED:
            weight = weight * stored
        weight = weight.to(q.dtype)
        if PAIRS:
            c, d = _widen_low(c, NATIVE), _widen_high(c, NATIVE)
        acc = tl.dot(weight, c, acc * fade[:, None])
        other = tl.dot(weight, d, other * fade[:, None])
        top = higher
    return acc, other, top, total


@triton.jit
def _store_latent(TO, acc, other, live, R: tl.constexpr, PAIRS: tl.constexpr):
    """Both halves of rows to where each row begins, TO [M]."""
    half = tl.arange(0, R // 2)[None, :]
    if PAIRS:
        whole = tl.reshape(tl.join(acc, other), (acc.shape[0], R))
        to = TO[:, None] + tl.arange(0, R)[None, :]
        tl.store(to, whole.to(TO.dtype.element_ty), mask=live[:, None])
    else:
        tl.store(TO[:, None] + half, acc.to(TO.dtype.element_ty), mask=live[:, None])
        tl.store(TO[:, None] + R // 2 + half, other.to(TO.dtype.element_ty), mask=live[:, None])


@triton.jit
def _attend_latent(
    Q, LATENT, ROPE, SCALES, TABLES, SCHEDULE, OUT, PARTS, PART_SUMS,
    latent_stride, rope_stride, table_stride, max_tiles, scale, value_scale,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr,
    COMPUTE: tl.constexpr, ROPE_COMPUTE: tl.constexpr, SCALED: tl.constexpr, PAIRS: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """K lanes share the heads: a program computes G = H / K of them. EARLY: the schedule was
    written two kernels back or earlier."""
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
    half = tl.arange(0, R // 2)
    e = tl.arange(0, E)
    while unit < stop:
        before, count, row, first_query, queries, first_visible = facts(columns, stride, tile)
        begin = (unit - before.to(tl.int64)).to(tl.int32)
        end = tl.minimum(count, begin + (stop - unit).to(tl.int32))
        live = m < queries * G
        # Rows of the tile: tokens, and within a token the heads of the lane.
        head = (first_query + m // G) * H + lane * G + m % G
        query = Q + head[:, None] * (R + E)
        if PAIRS:
            q = tl.load(query + r[None, :], mask=live[:, None], other=0.0).to(COMPUTE)
            q, other_q = tl.split(tl.reshape(q, (M, R // 2, 2)))
        else:
            q = tl.load(query + half[None, :], mask=live[:, None], other=0.0).to(COMPUTE)
            other_q = tl.load(query + R // 2 + half[None, :], mask=live[:, None], other=0.0)
            other_q = other_q.to(COMPUTE)
        t = tl.load(query + R + e[None, :], mask=live[:, None], other=0.0).to(ROPE_COMPUTE)
        visible = first_visible + m // G
        seq_len = first_visible + queries - 1
        acc = tl.zeros([M, R // 2], tl.float32)
        other = tl.zeros([M, R // 2], tl.float32)
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M, N if M <= 32 else 1], tl.float32)
        # The first units of a tile, as many as there are more than kv tiles, stand for nothing.
        spare = count - (seq_len + N - 1) // N
        first = tl.maximum(begin - spare, 0)
        last = tl.maximum(end - spare, 0)
        if first < last:
            acc, other, top, total = _walk_latent(
                q, other_q, t, acc, other, top, total, LATENT, ROPE, SCALES,
                TABLES + row * table_stride, first, last, visible, seq_len, scale, latent_stride,
                rope_stride, R, E, BLOCK, N, SCALED, PAIRS, STAGES, PDL,
            )  # fmt: skip
        sums = tl.sum(total, 1)
        if (begin == 0) & (end == count):
            factor = (value_scale / sums)[:, None]
            _store_latent(OUT + head * R, acc * factor, other * factor, live, R, PAIRS)
        else:
            part = (slot * K + lane).to(tl.int64) * M + m
            _store_latent(PARTS + part * R, acc, other, live, R, PAIRS)
            tl.store(PART_SUMS + part * 2, top, mask=live)
            tl.store(PART_SUMS + part * 2 + 1, sums, mask=live)
        unit += end - begin
        tile += (end == count).to(tl.int32)
        slot = 2 * p + 1
