"""The kernels of latent attention over keys and values made from the latents, in Triton.

The tokens of all rows, cached and new, form a line, each row from a whole tile of `BT` tokens on.
A chunk of the line at a time, `_expand` makes the keys and values of every head from the latents,

    k_t = (K_h c_t, r_t),  v_t = V_h c_t

and `_attend_chunk` lets every query meet those that it sees,

    s = scale q k^T,  m' = max(m, max s),  l' = l e^(m - m') + sum e^(s - m'),  and acc alike.

Where a row goes on in the next chunk, (acc, m, l) wait in float32. Where there are fewer q tiles
than the device has room for, several programs share the keys of each in every chunk, with sums of
their own, which `_join_shares` adds up in the order of the tokens.

Keys and values lie by token, MADE [chunk, H, NOPE + VALUE], so that one product makes them all.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def _line(
    CU_QUERY_LENS, CONTEXT_LENS, LINE, first_row, num_rows,
    R_PAD: tl.constexpr, BT: tl.constexpr, M: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """LINE [2, R_PAD]: tiles of BT tokens, and q tiles of M queries, up to the end of each row.
    Rows without queries have none of either."""
    after_producer(PDL)
    r = tl.arange(0, R_PAD)
    live = r < num_rows
    begin = tl.load(CU_QUERY_LENS + first_row + r, mask=live, other=0)
    end = tl.load(CU_QUERY_LENS + first_row + r + 1, mask=live, other=0)
    context = tl.load(CONTEXT_LENS + first_row + r, mask=live, other=0)
    queries = end - begin
    tokens = tl.where(queries > 0, context + queries, 0)
    tl.store(LINE + r, tl.cumsum((tokens + BT - 1) // BT, 0))
    tl.store(LINE + R_PAD + r, tl.cumsum((queries + M - 1) // M, 0))


@triton.jit
def _row_of(through, tile):
    """The row that a tile belongs to, and the tiles before that row. `through` as in LINE."""
    before = through <= tile
    return tl.sum(before.to(tl.int32), 0), tl.max(tl.where(before, through, 0), 0)


@triton.jit(do_not_specialize=["first_row", "first_tile", "table_stride"])
def _expand(
    LATENT, ROPE, SCALES, TABLES, CU_QUERY_LENS, CONTEXT_LENS, LINE, KEY_UP, VALUE_UP,
    MADE, TURNED, latent_stride, rope_stride, table_stride, first_row, first_tile, scale,
    H: tl.constexpr, R: tl.constexpr, E: tl.constexpr, NOPE: tl.constexpr,
    NOPE_PAD: tl.constexpr, VALUE: tl.constexpr, VALUE_PAD: tl.constexpr, BLOCK: tl.constexpr,
    R_PAD: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, SCALED: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Keys and values MADE [chunk, H, NOPE_PAD + VALUE_PAD] and rotated parts [chunk, E] of the
    tiles of the line from `first_tile` on, one program a head and tile. Past a row's end 0."""
    after_producer(PDL)
    head = tl.program_id(0).to(tl.int64)
    through = tl.load(LINE + tl.arange(0, R_PAD))
    tile = first_tile + tl.program_id(1)
    if tile < tl.max(through, 0):
        row, before = _row_of(through, tile)
        row += first_row
        queries = tl.load(CU_QUERY_LENS + row + 1) - tl.load(CU_QUERY_LENS + row)
        seq_len = tl.load(CONTEXT_LENS + row) + queries
        key = (tile - before) * BT + tl.arange(0, BT)
        inside = key < seq_len
        entry = TABLES + row.to(tl.int64) * table_stride + key // BLOCK
        # What is not inside reads block 0, of which nothing is kept.
        block = tl.load(entry, mask=inside, other=0).to(tl.int64)
        token = block * BLOCK + key % BLOCK
        k = tl.arange(0, BK)
        n = tl.arange(0, NOPE_PAD)
        v = tl.arange(0, VALUE_PAD)
        latents = LATENT + token[:, None] * latent_stride + k[None, :]
        # Rows of the key matrix lie along the latent, those of the value matrix across it.
        key_up = KEY_UP + head * NOPE * R + n[:, None] * R + k[None, :]
        value_up = VALUE_UP + head * R * VALUE + k[:, None] * VALUE + v[None, :]
        keys = tl.zeros([BT, NOPE_PAD], tl.float32)
        values = tl.zeros([BT, VALUE_PAD], tl.float32)
        for begin in tl.range(0, R, BK, num_stages=STAGES):
            c = tl.load(latents + begin).to(MADE.dtype.element_ty)
            up = tl.load(key_up + begin, mask=(n < NOPE)[:, None], other=0.0)
            keys = tl.dot(c, tl.trans(up), keys)
            up = tl.load(value_up + begin * VALUE, mask=(v < VALUE)[None, :], other=0.0)
            values = tl.dot(c, up, values)
        size = tl.zeros([BT], tl.float32) + scale
        if SCALED:
            size *= tl.load(SCALES + token, mask=inside, other=0.0)
        first, t = (tl.program_id(1) * BT).to(tl.int64), tl.arange(0, BT)
        # 0 times what lies past the end may be nan.
        keys = tl.where(inside[:, None], keys * size[:, None], 0.0)
        values = tl.where(inside[:, None], values * size[:, None], 0.0)
        to = MADE + (first * H + head) * (NOPE_PAD + VALUE_PAD)
        to += t[:, None] * (H * (NOPE_PAD + VALUE_PAD))
        tl.store(to + n[None, :], keys.to(MADE.dtype.element_ty))
        tl.store(to + NOPE_PAD + v[None, :], values.to(MADE.dtype.element_ty))
        if head == 0:
            e = tl.arange(0, E)
            turned = tl.load(ROPE + token[:, None] * rope_stride + e[None, :]).to(tl.float32)
            if not SCALED:
                turned *= scale
            turned = tl.where(inside[:, None], turned, 0.0)
            at = TURNED + first * E + t[:, None] * E + e[None, :]
            tl.store(at, turned.to(TURNED.dtype.element_ty))


@triton.jit
def _join_matrices(
    KEY_UP, VALUE_UP, UP, part,
    R: tl.constexpr, NOPE: tl.constexpr, VALUE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    head = (part // (R // PART)).to(tl.int64)
    k = part % (R // PART) * PART + tl.arange(0, PART)
    n = tl.arange(0, NOPE)
    v = tl.arange(0, VALUE)
    up = UP + head * (NOPE + VALUE) * R + k[None, :]
    tl.store(up + n[:, None] * R, tl.load(KEY_UP + (head * NOPE + n[:, None]) * R + k[None, :]))
    values = tl.load(VALUE_UP + (head * R + k[:, None]) * VALUE + v[None, :])
    tl.store(up + (NOPE + v)[:, None] * R, tl.trans(values))


@triton.jit
def _lay_latents(
    LATENT, ROPE, SCALES, TABLES, CU_QUERY_LENS, CONTEXT_LENS, LINE, DENSE, TURNED,
    latent_stride, rope_stride, table_stride, first_row, first_tile, scale,
    R: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, R_PAD: tl.constexpr, BT: tl.constexpr,
    TOKENS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    through = tl.load(LINE + tl.arange(0, R_PAD))
    tile = first_tile + tl.program_id(0) // (BT // TOKENS)
    if tile < tl.max(through, 0):
        row, before = _row_of(through, tile)
        row += first_row
        queries = tl.load(CU_QUERY_LENS + row + 1) - tl.load(CU_QUERY_LENS + row)
        seq_len = tl.load(CONTEXT_LENS + row) + queries
        n = tl.arange(0, TOKENS)
        key = (tile - before) * BT + tl.program_id(0) % (BT // TOKENS) * TOKENS + n
        inside = key < seq_len
        entry = TABLES + row.to(tl.int64) * table_stride + key // BLOCK
        block = tl.load(entry, mask=inside, other=0).to(tl.int64)
        token = block * BLOCK + key % BLOCK
        size = tl.zeros([TOKENS], tl.float32) + scale
        if SCALED:
            size *= tl.load(SCALES + token, mask=inside, other=0.0)
        r = tl.arange(0, R)
        e = tl.arange(0, E)
        to = (tl.program_id(0) * TOKENS + n).to(tl.int64)
        latent = tl.load(LATENT + token[:, None] * latent_stride + r[None, :]).to(tl.float32)
        # 0 times what lies past the end may be nan.
        latent = tl.where(inside[:, None], latent * size[:, None], 0.0)
        tl.store(DENSE + to[:, None] * R + r[None, :], latent.to(DENSE.dtype.element_ty))
        turned = tl.load(ROPE + token[:, None] * rope_stride + e[None, :]).to(tl.float32)
        if not SCALED:
            turned *= scale
        turned = tl.where(inside[:, None], turned, 0.0)
        tl.store(TURNED + to[:, None] * E + e[None, :], turned.to(TURNED.dtype.element_ty))


@triton.jit(do_not_specialize=["first_row", "first_tile", "table_stride", "laid"])
def _lay_out(
    LATENT, ROPE, SCALES, TABLES, CU_QUERY_LENS, CONTEXT_LENS, LINE, KEY_UP, VALUE_UP, DENSE,
    TURNED, UP, latent_stride, rope_stride, table_stride, first_row, first_tile, laid, scale,
    R: tl.constexpr, E: tl.constexpr, NOPE: tl.constexpr, VALUE: tl.constexpr,
    BLOCK: tl.constexpr, R_PAD: tl.constexpr, BT: tl.constexpr, TOKENS: tl.constexpr,
    PART: tl.constexpr, SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Latents [chunk, R] and rotated parts [chunk, E] of the tiles of the line from `first_tile`
    on, in their own size, TOKENS of them a program. Past a row's end 0.

    Programs from `laid` on bring the matrices of keys and values together, UP [H, NOPE + VALUE, R],
    PART columns of a head each."""
    after_producer(PDL)
    if tl.program_id(0) >= laid:
        _join_matrices(KEY_UP, VALUE_UP, UP, tl.program_id(0) - laid, R, NOPE, VALUE, PART)
    else:
        _lay_latents(
            LATENT, ROPE, SCALES, TABLES, CU_QUERY_LENS, CONTEXT_LENS, LINE, DENSE, TURNED,
            latent_stride, rope_stride, table_stride, first_row, first_tile, scale, R, E, BLOCK,
            R_PAD, BT, TOKENS, SCALED,
        )  # fmt: skip


@triton.jit
def _walk_chunk(
    q, turned, acc, top, total, MADE, TURNED, begin, end, chunk_first, visible, scale,
    H: tl.constexpr, NOPE: tl.constexpr, VALUE: tl.constexpr, E: tl.constexpr, N: tl.constexpr,
    MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Folds keys begin to end, counted from the row's first, into (acc, top, total). `scale` is
    over log 2. `visible` [M]: keys that each query sees; without MASKED all of them."""
    n = tl.arange(0, N)
    d = tl.arange(0, NOPE)
    v = tl.arange(0, VALUE)
    e = tl.arange(0, E)
    for first in tl.range(begin, end, N, num_stages=STAGES):
        place = first - chunk_first + n
        made = MADE + place.to(tl.int64)[:, None] * (H * (NOPE + VALUE))
        keys = tl.load(made + d[None, :])
        rotated = tl.load(TURNED + place[:, None] * E + e[None, :])
        values = tl.load(made + NOPE + v[None, :])
        s = tl.dot(q, tl.trans(keys))
        s = tl.dot(turned, tl.trans(rotated), s)
        if MASKED:
            s = tl.where((first + n)[None, :] < visible[:, None], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        # A query may see none of these keys; its maximum stays -inf.
        shift = tl.where(higher == float("-inf"), 0.0, higher) * scale
        fade = tl.exp2(top * scale - shift)
        weight = tl.exp2(s * scale - shift[:, None])
        total = total * fade + tl.sum(weight, 1)
        acc = tl.dot(weight.to(values.dtype), values, acc * fade[:, None])
        top = higher
    return acc, top, total


@triton.jit(do_not_specialize=["first_row", "first_tile", "chunk_tiles", "shares", "share_stride"])
def _attend_chunk(
    QUERY, ROTATED, MADE, TURNED, CU_QUERY_LENS, CONTEXT_LENS, LINE, OUT, STATE, SUMS,
    query_stride, query_head, rotated_stride, rotated_head, first_row, first_tile, chunk_tiles,
    shares, share_stride, scale,
    H: tl.constexpr, NOPE: tl.constexpr, NOPE_PAD: tl.constexpr, VALUE: tl.constexpr,
    VALUE_PAD: tl.constexpr, E: tl.constexpr, R_PAD: tl.constexpr, BT: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per q tile, share of its keys in the chunk, and head. STATE [shares, tokens of
    these rows, H, VALUE_PAD] and SUMS [.., 2] keep what is not complete; with one share a q tile
    that has met its last key goes to OUT [T, H, VALUE]."""
    after_producer(PDL)
    r = tl.arange(0, R_PAD)
    through = tl.load(LINE + R_PAD + r)
    # The last q tiles of a row see most: they begin first.
    tile = tl.max(through, 0) - 1 - tl.program_id(0) // shares
    share = tl.program_id(0) % shares
    head = tl.program_id(1).to(tl.int64)
    if tile >= 0:
        place, tiles_before = _row_of(through, tile)
        lined = tl.load(LINE + r)
        row_tile = tl.max(tl.where(r < place, lined, 0), 0)
        row = place + first_row
        begin_query = tl.load(CU_QUERY_LENS + row)
        offset = (tile - tiles_before) * M
        queries = tl.minimum(tl.load(CU_QUERY_LENS + row + 1) - begin_query - offset, M)
        first_sees = tl.load(CONTEXT_LENS + row) + offset + 1
        sees = first_sees + queries - 1
        # Where the chunk begins and ends, counted from the row's first token.
        chunk_first = (first_tile - row_tile) * BT
        first = tl.maximum(chunk_first, 0)
        last = tl.minimum(chunk_first + chunk_tiles * BT, sees)
        if first < last:
            tiles = tl.cdiv(last - first, N)
            begin = first + tiles * share // shares * N
            end = tl.minimum(first + tiles * (share + 1) // shares * N, last)
            m = tl.arange(0, M)
            v = tl.arange(0, VALUE_PAD)
            live = m < queries
            token = (begin_query + offset + m).to(tl.int64)
            d = tl.arange(0, NOPE_PAD)
            source = QUERY + token[:, None] * query_stride + head * query_head + d[None, :]
            q = tl.load(source, mask=live[:, None] & (d < NOPE)[None, :], other=0.0)
            source = ROTATED + token[:, None] * rotated_stride + head * rotated_head
            turned = tl.load(source + tl.arange(0, E)[None, :], mask=live[:, None], other=0.0)
            from_first = token - tl.load(CU_QUERY_LENS + first_row)
            slot = (share * share_stride.to(tl.int64) + from_first) * H + head
            goes_on = live & (chunk_first > 0)
            acc = tl.load(
                STATE + slot[:, None] * VALUE_PAD + v[None, :], mask=goes_on[:, None], other=0.0
            )
            top = tl.load(SUMS + slot * 2, mask=goes_on, other=float("-inf"))
            total = tl.load(SUMS + slot * 2 + 1, mask=goes_on, other=0.0)
            made = MADE + head * (NOPE_PAD + VALUE_PAD)
            seen_by_all = tl.maximum(tl.minimum(end, first_sees) - begin, 0)
            whole = begin + seen_by_all // N * N
            visible = first_sees + m
            acc, top, total = _walk_chunk(
                q, turned, acc, top, total, made, TURNED, begin, whole, chunk_first, visible,
                scale, H, NOPE_PAD, VALUE_PAD, E, N, False, STAGES,
            )  # fmt: skip
            acc, top, total = _walk_chunk(
                q, turned, acc, top, total, made, TURNED, whole, end, chunk_first, visible,
                scale, H, NOPE_PAD, VALUE_PAD, E, N, True, STAGES,
            )  # fmt: skip
            if (shares == 1) & (last == sees):
                to = OUT + (token[:, None] * H + head) * VALUE + v[None, :]
                kept = live[:, None] & (v < VALUE)[None, :]
                tl.store(to, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=kept)
            else:
                tl.store(STATE + slot[:, None] * VALUE_PAD + v[None, :], acc, mask=live[:, None])
                tl.store(SUMS + slot * 2, top, mask=live)
                tl.store(SUMS + slot * 2 + 1, total, mask=live)


@triton.jit(do_not_specialize=["first_row", "num_rows", "shares", "share_stride"])
def _join_shares(
    CU_QUERY_LENS, STATE, SUMS, OUT, first_row, num_rows, shares, share_stride, scale,
    H: tl.constexpr, VALUE: tl.constexpr, VALUE_PAD: tl.constexpr, ROWS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The output of ROWS heads of tokens, from the sums of all shares."""
    after_producer(PDL)
    first = tl.load(CU_QUERY_LENS + first_row).to(tl.int64)
    end = tl.load(CU_QUERY_LENS + first_row + num_rows).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    v = tl.arange(0, VALUE_PAD)
    live = at < (end - first) * H
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, VALUE_PAD], tl.float32)
    for share in range(shares):
        slot = share * share_stride.to(tl.int64) * H + at
        tops = tl.load(SUMS + slot * 2, mask=live, other=float("-inf"))
        sums = tl.load(SUMS + slot * 2 + 1, mask=live, other=0.0)
        part = tl.load(
            STATE + slot[:, None] * VALUE_PAD + v[None, :], mask=live[:, None], other=0.0
        )
        higher = tl.maximum(top, tops)
        shift = tl.where(higher == float("-inf"), 0.0, higher) * scale
        fade = tl.exp2(top * scale - shift)
        weight = tl.exp2(tops * scale - shift)
        total = total * fade + weight * sums
        acc = acc * fade[:, None] + weight[:, None] * part
        top = higher
    kept = live[:, None] & (v < VALUE)[None, :]
    to = OUT + (first * H + at)[:, None] * VALUE + v[None, :]
    tl.store(to, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=kept)
