"""Decode attention on sm_90, in Gluon: one warp asks for keys and values, a warpgroup meets them.

The work (q tiles of one query, shares of programs, where parts go) is that of attend_triton. Few
rows share a key, so both products are turned round: with the heads of a group as columns, M of
them, the keys and values of a kv tile are the left operand of each and are read where the copy
engine put them, the values along the keys:

    s^T [64, M] = k q^T,    o^T [D, M] = o^T e^(m - m') + v^T p^T

The asking warp goes from row to row of its share without a pause. Keys of earlier steps are there
before the kernels ahead are done, so it fills the ring with them at once and waits only for the
tile that holds the newest key of a row, or for room.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from tokenspeed_kernels.attention.attend_hopper import LOG2_E, share_of
from tokenspeed_kernels.attention.schedule_triton import HEADER

# Tokens of a kv tile, which lie in one block.
KEYS = gl.constexpr(64)


@gluon.jit
def _part_of(SCHEDULE, tile, unit, stop, max_tiles, P: gl.constexpr, COST: gl.constexpr):
    """The part of the q tile that comes next: begin, end and count in units, first and last kv
    tile, row, query, and the keys that it sees. The first COST units of a tile stand for what it
    costs to begin one. Where nothing is left to do, of the first tile, for which there is room."""
    columns = SCHEDULE + HEADER + P + 1
    stride = max_tiles + 1
    tile = gl.where(unit < stop, tile, 0)
    before = gl.load(columns + tile)
    count = gl.load(columns + tile + 1) - before
    row = gl.load(columns + stride + tile)
    query = gl.load(columns + 2 * stride + tile)
    seq_len = gl.load(columns + 4 * stride + tile)
    begin = unit.to(gl.int32) - before
    end = gl.minimum(count, begin + (stop - unit).to(gl.int32))
    first, last = gl.maximum(begin - COST, 0), gl.maximum(end - COST, 0)
    return begin, end, count, first, last, row, query, seq_len


@gluon.jit
def _token_of(TABLE, tile, last, BLOCK: gl.constexpr):
    """The first token of a kv tile, or of the last there is."""
    key = gl.maximum(gl.minimum(tile, last - 1), 0) * KEYS
    return gl.load(TABLE + key // BLOCK) * BLOCK + key % BLOCK


@gluon.jit
def _produce(
    K_MAP, V_MAP, TABLES, SCHEDULE, table_stride, max_tiles, keys, values, full, empty,
    K: gl.constexpr, D: gl.constexpr, BLOCK: gl.constexpr, P: gl.constexpr, COST: gl.constexpr,
    STAGES: gl.constexpr, BEFORE: gl.constexpr, ROPE: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The warp that asks for kv tiles, as far ahead as shared memory has room, but for no more than
    BEFORE of them before the kernel ahead is done, nor, unless ROPE, for a row's last."""
    BYTES: gl.constexpr = 2 * K_MAP.block_type.nbytes
    column = gl.program_id(0) % K * D
    tile, unit, stop, _line, _tiles, _whole = share_of(SCHEDULE, P, 1, K)
    turn = 0
    while unit < stop:
        begin, end, count, first, last, row, _query, seq_len = _part_of(
            SCHEDULE, tile, unit, stop, max_tiles, P, COST
        )
        table = TABLES + row.to(gl.int64) * table_stride
        token = _token_of(table, first, last, BLOCK)
        newest = (seq_len - 1) // KEYS
        for kv in range(first, last):
            following = _token_of(table, kv + 1, last, BLOCK)
            if PDL:  # noqa: SIM102 (one is for the compiler, the other for the device)
                if (turn >= BEFORE) | ((kv == newest) & (not ROPE)):
                    tl.extra.cuda.gdc_wait()
            stage = turn % STAGES
            there = full.index(stage)
            # All were empty at the start: the phase before the first one counts as done.
            mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(there, BYTES)
            tma.async_copy_global_to_shared(K_MAP, [token, column], there, keys.index(stage))
            tma.async_copy_global_to_shared(V_MAP, [token, column], there, values.index(stage))
            token = following
            turn += 1
        unit += end - begin
        tile += (end == count).to(gl.int32)


@gluon.jit
def _clean(tile, key, seq_len, LOAD: gl.constexpr):
    """Zeroes the tokens of a kv tile from `seq_len` on: whatever they are, 0 times nan is nan."""
    n = key + gl.arange(0, KEYS, layout=gl.SliceLayout(1, LOAD))
    for part in gl.static_range(tile.shape[1] // 64):
        box = tile.slice(part * 64, 64, 1)
        held = box.load(LOAD)
        box.store(gl.where((n < seq_len)[:, None], held, gl.zeros_like(held)))
    fence_async_shared()


@gluon.jit
def _query_of(
    Q, query, head, there, H: gl.constexpr, G: gl.constexpr, D: gl.constexpr, M: gl.constexpr
):
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    m = gl.arange(0, M, layout=gl.SliceLayout(1, LOAD))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, LOAD))
    at = (query.to(gl.int64) * H + head * G + m) * D
    return gl.load(Q + at[:, None] + d[None, :], mask=((m < G) & there)[:, None], other=0.0)


@gluon.jit
def _value(QKV, at, mask, part_stride, PARTS: gl.constexpr):
    """Values of the product ahead, or the sum of their float32 parts."""
    x = gl.load(QKV + at, mask=mask, other=0.0)
    for part in gl.static_range(1, PARTS):
        x += gl.load(QKV + part * part_stride + at, mask=mask, other=0.0)
    return x.to(gl.bfloat16)


@gluon.constexpr_function
def _halves(D):
    """Of half a head of each of M rows, by one warpgroup."""
    return gl.BlockedLayout([1, 4], [32 * 8 // D, D // 8], [4, 1], [1, 0])


@gluon.jit
def _angles(POSITIONS, COS_SIN, query, there, D: gl.constexpr):
    i = gl.arange(0, D // 2, layout=gl.SliceLayout(0, _halves(D)))
    position = gl.load(POSITIONS + query, mask=there, other=0).to(gl.int64)
    cos = gl.load(COS_SIN + position * D + i)
    sin = gl.load(COS_SIN + position * D + D // 2 + i)
    return cos, sin


@gluon.jit
def _fresh(
    QKV, query, head, there, qkv_stride, part_stride, H: gl.constexpr, K: gl.constexpr,
    D: gl.constexpr, M: gl.constexpr, PARTS: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Of a query: both halves of its heads and of its key, as they are before they turn, and its
    value."""
    G: gl.constexpr = H // K
    m = gl.arange(0, M, layout=gl.SliceLayout(1, _halves(D)))
    i = gl.arange(0, D // 2, layout=gl.SliceLayout(0, _halves(D)))
    d = gl.arange(0, D, layout=gl.SliceLayout(1, S))
    start = query.to(gl.int64) * qkv_stride
    at = start + ((head * G + m) * D)[:, None] + i[None, :]
    mask = ((m < G) & there)[:, None] & (i >= 0)[None, :]
    qa = _value(QKV, at, mask, part_stride, PARTS)
    qb = _value(QKV, at + D // 2, mask, part_stride, PARTS)
    at = start + (H + head) * D + i
    ka = _value(QKV, at, (i >= 0) & there, part_stride, PARTS)
    kb = _value(QKV, at + D // 2, (i >= 0) & there, part_stride, PARTS)
    v = _value(QKV, start + (H + K + head) * D + d, (d >= 0) & there, part_stride, PARTS)
    return qa, qb, ka, kb, v


@gluon.jit
def _normed(x, scale, gain):
    # The norm rounds before and after its weight, and then the rotation starts.
    x = (x * scale).to(gl.bfloat16).to(gl.float32) * gain.to(gl.float32)
    return x.to(gl.bfloat16).to(gl.float32)


@gluon.jit
def _turn(a, b, cos, sin, GAIN, eps, D: gl.constexpr, NORM: gl.constexpr):
    """Both halves of heads [M, D / 2], of one [D / 2], rotated; NORM: times the GAIN of a norm of
    each head before."""
    wide, high = a.to(gl.float32), b.to(gl.float32)
    if NORM:
        AXIS: gl.constexpr = len(a.shape) - 1
        i = gl.arange(0, D // 2, layout=gl.SliceLayout(0, _halves(D)))
        scale = gl.rsqrt(gl.sum(wide * wide + high * high, AXIS) / D + eps)
        first, second = gl.load(GAIN + i), gl.load(GAIN + D // 2 + i)
        if AXIS:
            scale, first, second = scale[:, None], first[None, :], second[None, :]
        wide, high = _normed(wide, scale, first), _normed(high, scale, second)
    return (wide * cos - high * sin).to(gl.bfloat16), (high * cos + wide * sin).to(gl.bfloat16)


@gluon.jit
def _softmax(s, top, total, key, seq_len):
    """The scores of a kv tile to weights; by how much the sums before it fade; both sides of the
    columns' state. The sum over keys, which threads share, is left for the end."""
    s = gl.where((key < seq_len)[:, None], s, float("-inf"))
    higher = gl.maximum(top, gl.max(s, 0))
    fade = gl.exp2(top - higher)
    weight = gl.exp2(s - higher[None, :])
    return weight, fade, higher, total * fade[None, :] + weight


@gluon.jit
def _join(
    OUT, PARTS, PART_SUMS, COUNTS, tile_begin, count, units, programs, lane, query, v_scale,
    H: gl.constexpr, G: gl.constexpr, D: gl.constexpr, M: gl.constexpr, LANES: gl.constexpr,
    SPLITS: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """See `around_triton.join`."""
    BOX: gl.constexpr = gl.BlockedLayout([1, 1, D // 32], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    BY_PART: gl.constexpr = gl.SliceLayout(2, BOX)
    BY_ROW: gl.constexpr = gl.SliceLayout(0, BOX)
    ROW: gl.constexpr = gl.SliceLayout(1, BY_ROW)
    first = ((tile_begin + 1) * programs - 1) // units
    last = ((tile_begin + count) * programs - 1) // units
    # All threads have written before the one that counts says so.
    gl.thread_barrier()
    counted = COUNTS + first * LANES + lane
    if gl.atomic_add(counted, 1, sem="acq_rel", scope="gpu") == last - first:
        gl.store(counted, 0)
        m = gl.arange(0, ROWS, layout=gl.SliceLayout(0, BY_PART))
        d = gl.arange(0, D, layout=gl.SliceLayout(0, BY_ROW))
        # The first program met the tile at its own start, or after other tiles.
        first_slot = 2 * first + (units * first // programs < tile_begin).to(gl.int64)
        top = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(0, BY_PART))
        total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(0, BY_PART))
        acc = gl.zeros([ROWS, D], gl.float32, layout=BY_ROW)
        for chunk in range(first, last + 1, SPLITS):
            split = chunk + gl.arange(0, SPLITS, layout=gl.SliceLayout(1, BY_PART))
            slot = gl.where(split == first, first_slot, 2 * split)
            part = ((slot * LANES + lane) * M)[:, None] + m[None, :]
            there = (split <= last)[:, None] & (m < G)[None, :]
            # Past the multiprocessor's own cache, which may hold an older layer's.
            tops = gl.load(
                PART_SUMS + part * 2, mask=there, other=float("-inf"), cache_modifier=".cg"
            )
            sums = gl.load(PART_SUMS + part * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
            box = gl.expand_dims(part * D, 2) + gl.expand_dims(gl.expand_dims(d, 0), 0)
            inside = gl.expand_dims(there, 2) & gl.expand_dims(gl.expand_dims(d >= 0, 0), 0)
            parts = gl.load(PARTS + box, mask=inside, other=0.0, cache_modifier=".cg")
            higher = gl.maximum(top, gl.max(tops, 0))
            shift = gl.where(higher == float("-inf"), 0.0, higher)
            fade = gl.exp2(top - shift)
            weight = gl.exp2(tops - shift[None, :])
            total = total * fade + gl.sum(weight * sums, 0)
            faded = acc * gl.convert_layout(fade, ROW)[:, None]
            acc = faded + gl.sum(gl.expand_dims(weight, 2) * parts, 0)
            top = higher
        factor = gl.convert_layout(v_scale / total, ROW)
        row = gl.arange(0, ROWS, layout=ROW)
        place = ((query.to(gl.int64) * H + lane * G + row) * D)[:, None] + d[None, :]
        out = (acc * factor[:, None]).to(OUT.dtype.element_ty)
        gl.store(OUT + place, out, mask=(row < G)[:, None] & (d >= 0)[None, :])


@gluon.jit
def _put_turned(
    q_tile, qa, qb, ka, kb, v, cos, sin, Q_NORM, K_NORM, eps, SLOTS, K_CACHE, V_CACHE, query, head,
    mine, scale,
    K: gl.constexpr, D: gl.constexpr, M: gl.constexpr, NORM: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Puts turned queries into shared memory. Where the newest key is `mine` it is met right here,
    from registers, and kept for later steps: (acc, top, total) as they are then, or before any."""
    HALF: gl.constexpr = _halves(D)
    d = gl.arange(0, D, layout=gl.SliceLayout(1, S))
    n = gl.arange(0, KEYS, layout=gl.SliceLayout(1, S))
    i = gl.arange(0, D // 2, layout=gl.SliceLayout(0, HALF))
    ra, rb = _turn(qa, qb, cos[None, :], sin[None, :], Q_NORM, eps, D, NORM)
    ta, tb = _turn(ka, kb, cos, sin, K_NORM, eps, D, NORM)
    q_tile.slice(0, D // 2, 1).store(ra)
    q_tile.slice(D // 2, D // 2, 1).store(rb)
    score = ra.to(gl.float32) * ta.to(gl.float32)[None, :]
    score += rb.to(gl.float32) * tb.to(gl.float32)[None, :]
    score = gl.convert_layout(gl.sum(score, 1), gl.SliceLayout(0, S)) * scale
    place = (gl.load(SLOTS + query) * K + head) * D
    gl.store(K_CACHE + place + i, ta, mask=(i >= 0) & mine)
    gl.store(K_CACHE + place + D // 2 + i, tb, mask=(i >= 0) & mine)
    gl.store(V_CACHE + place + d, v, mask=(d >= 0) & mine)
    acc = gl.zeros([D, M], gl.float32, layout=S) + gl.where(mine, v.to(gl.float32), 0.0)[:, None]
    top = gl.where(mine, score, float("-inf"))
    total = gl.zeros([KEYS, M], gl.float32, layout=S)
    return acc, top, total + ((n == 0) & mine).to(gl.float32)[:, None]


@gluon.jit
def _put_query(
    q_tile, q, SINKS, head, begin, G: gl.constexpr, D: gl.constexpr, M: gl.constexpr,
    HAS_SINKS: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Puts queries into shared memory; (acc, top, total) before the first key."""
    q_tile.store(q)
    acc = gl.zeros([D, M], gl.float32, layout=S)
    top = gl.full([M], float("-inf"), gl.float32, layout=gl.SliceLayout(0, S))
    total = gl.zeros([KEYS, M], gl.float32, layout=S)
    if HAS_SINKS:  # noqa: SIM102 (one is for the compiler, the other for the device)
        if begin == 0:
            m = gl.arange(0, M, layout=gl.SliceLayout(0, S))
            n = gl.arange(0, KEYS, layout=gl.SliceLayout(1, S))
            top = gl.load(SINKS + head * G + m % G).to(gl.float32) * LOG2_E
            # Of the row's sum, which is all keys' together.
            total += (n == 0).to(gl.float32)[:, None]
    return acc, top, total


@gluon.jit
def _fold(
    acc, top, total, keys, values, q_tile, p_tile, full, empty, turn, key, seq_len, scale, follows,
    M: gl.constexpr, STAGES: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Folds the kv tile of a turn into (acc, top, total), of which `acc` is done with the next one;
    `follows`: on another one of the same part, whose slot is free then."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    stage = turn % STAGES
    mbarrier.wait(full.index(stage), turn // STAGES & 1)
    s = warpgroup_mma(
        keys.index(stage), q_tile.permute((1, 0)), gl.zeros([KEYS, M], gl.float32, layout=S),
        use_acc=False, is_async=True,
    )  # fmt: skip
    s, acc = warpgroup_mma_wait(0, deps=[s, acc])
    if key + KEYS > seq_len:
        _clean(values.index(stage), key, seq_len, LOAD)
    n = key + gl.arange(0, KEYS, layout=gl.SliceLayout(1, S))
    weight, fade, top, total = _softmax(s * scale, top, total, n, seq_len)
    if follows:
        mbarrier.arrive(empty.index((turn - 1) % STAGES), count=1)
    p_tile.permute((1, 0)).store(weight.to(p_tile.dtype))
    fence_async_shared()
    acc = warpgroup_mma(
        values.index(stage).permute((1, 0)), p_tile.permute((1, 0)), acc * fade[None, :],
        is_async=True,
    )  # fmt: skip
    return acc, top, total


@gluon.jit
def _leave(
    OUT, PARTS, PART_SUMS, acc, top, sums, query, head, slot, whole, v_scale,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, M: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """The rows of a whole q tile as they are, those of a part unnormalised in its slot."""
    G: gl.constexpr = H // K
    m = gl.arange(0, M, layout=gl.SliceLayout(0, S))
    d = gl.arange(0, D, layout=gl.SliceLayout(1, S))
    live = m < G
    there = live[None, :] & (d >= 0)[:, None]
    if whole:
        row = (query.to(gl.int64) * H + head * G + m) * D
        out = acc * (v_scale / sums)[None, :]
        gl.store(OUT + row[None, :] + d[:, None], out.to(OUT.dtype.element_ty), mask=there)
    else:
        part = (slot * K + head).to(gl.int64) * M + m
        gl.store(PARTS + (part * D)[None, :] + d[:, None], acc, mask=there)
        gl.store(PART_SUMS + part * 2, top, mask=live)
        gl.store(PART_SUMS + part * 2 + 1, sums, mask=live)


@gluon.jit
def _meet(
    Q, POSITIONS, COS_SIN, SLOTS, Q_NORM, K_NORM, K_CACHE, V_CACHE, SCHEDULE, SINKS, OUT, PARTS,
    PART_SUMS, COUNTS, qkv_stride, part_stride, eps, max_tiles, scale, v_scale, keys, values,
    q_tile, p_tile, full, empty,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, M: gl.constexpr, P: gl.constexpr,
    COST: gl.constexpr, STAGES: gl.constexpr, HAS_SINKS: gl.constexpr, JOIN_ROWS: gl.constexpr,
    ROPE: gl.constexpr, NORM: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The warpgroup of scores, weights and sums."""
    G: gl.constexpr = H // K
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])
    head = gl.program_id(0) % K
    slot = 2 * (gl.program_id(0) // K)
    tile, unit, stop, line, _tiles, _whole = share_of(SCHEDULE, P, 1, K)
    programs = gl.load(SCHEDULE + 1)
    begin, end, count, first, last, _row, query, seq_len = _part_of(
        SCHEDULE, tile, unit, stop, max_tiles, P, COST
    )
    if ROPE:
        cos, sin = _angles(POSITIONS, COS_SIN, query, unit < stop, D)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if ROPE:
        qa, qb, ka, kb, v = _fresh(
            Q, query, head, unit < stop, qkv_stride, part_stride, H, K, D, M, ROPE, S
        )
    else:
        q = _query_of(Q, query, head, unit < stop, H, G, D, M)
    turn = 0
    while unit < stop:
        if ROPE:
            acc, top, total = _put_turned(
                q_tile, qa, qb, ka, kb, v, cos, sin, Q_NORM, K_NORM, eps, SLOTS, K_CACHE, V_CACHE,
                query, head, end == count, scale, K, D, M, NORM, S,
            )  # fmt: skip
            seq_len -= 1
        else:
            acc, top, total = _put_query(q_tile, q, SINKS, head, begin, G, D, M, HAS_SINKS, S)
        fence_async_shared()
        # What comes after this part is on its way while this one is met.
        then = unit + end - begin
        tile += (end == count).to(gl.int32)
        next_begin, next_end, next_count, next_first, next_last, _row, next_query, next_len = (
            _part_of(SCHEDULE, tile, then, stop, max_tiles, P, COST)
        )
        if ROPE:
            cos, sin = _angles(POSITIONS, COS_SIN, next_query, then < stop, D)
            qa, qb, ka, kb, v = _fresh(
                Q, next_query, head, then < stop, qkv_stride, part_stride, H, K, D, M, ROPE, S
            )
        else:
            q = _query_of(Q, next_query, head, then < stop, H, G, D, M)
        acc = warpgroup_mma_init(acc)
        for kv in range(first, last):
            acc, top, total = _fold(
                acc, top, total, keys, values, q_tile, p_tile, full, empty, turn, kv * KEYS,
                seq_len, scale, kv > first, M, STAGES, S,
            )  # fmt: skip
            turn += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        if first < last:
            mbarrier.arrive(empty.index((turn - 1) % STAGES), count=1)
        whole = (begin == 0) & (end == count)
        _leave(
            OUT, PARTS, PART_SUMS, acc, top, gl.sum(total, 0), query, head, slot, whole, v_scale,
            H, K, D, M, S,
        )  # fmt: skip
        if JOIN_ROWS > 0:  # noqa: SIM102 (one is for the compiler, the other for the device)
            if not whole:
                _join(
                    OUT, PARTS, PART_SUMS, COUNTS, unit - begin, count, line, programs, head,
                    query, v_scale, H, G, D, M, K, 4, JOIN_ROWS,
                )  # fmt: skip
        slot = 2 * (gl.program_id(0) // K) + 1
        unit = then
        begin, end, count, first, last = next_begin, next_end, next_count, next_first, next_last
        query, seq_len = next_query, next_len


@gluon.jit
def _barriers(N: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for one in gl.static_range(N):
        mbarrier.init(barriers.index(one), count=1)
    return barriers


@gluon.jit(do_not_specialize=["table_stride", "max_tiles"])
def _attend_decode(
    Q, POSITIONS, COS_SIN, SLOTS, Q_NORM, K_NORM, K_CACHE, V_CACHE, K_MAP, V_MAP, TABLES, SCHEDULE,
    SINKS, OUT, PARTS, PART_SUMS, COUNTS, qkv_stride, part_stride, eps, table_stride, max_tiles,
    scale, v_scale,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, BLOCK: gl.constexpr, M: gl.constexpr,
    P: gl.constexpr, COST: gl.constexpr, STAGES: gl.constexpr, BEFORE: gl.constexpr,
    HAS_SINKS: gl.constexpr, JOIN_ROWS: gl.constexpr, ROPE: gl.constexpr, NORM: gl.constexpr,
    EARLY: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `attend_triton._attend`; q tiles are rows of one query. K_MAP, V_MAP: tensor maps over
    [tokens, K * D] in boxes of KEYS tokens of a head. JOIN_ROWS: as many rows of a q tile are used,
    and this kernel joins its parts; 0: `_combine` does. ROPE: Q holds queries, keys and values as
    the product ahead makes them, in so many parts, and this kernel turns and keeps them; NORM: with
    a norm of each head before."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if not EARLY:
            tl.extra.cuda.gdc_wait()
    weighed: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, KEYS], gl.bfloat16)
    asked: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, D], gl.bfloat16)
    keys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, D], K_MAP.layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, D], V_MAP.layout)
    q_tile = gl.allocate_shared_memory(gl.bfloat16, [M, D], asked)
    p_tile = gl.allocate_shared_memory(gl.bfloat16, [M, KEYS], weighed)
    full, empty = _barriers(STAGES), _barriers(STAGES)
    gl.warp_specialize(
        [
            (_meet, (Q, POSITIONS, COS_SIN, SLOTS, Q_NORM, K_NORM, K_CACHE, V_CACHE, SCHEDULE,
                     SINKS, OUT, PARTS, PART_SUMS, COUNTS, qkv_stride, part_stride, eps,
                     max_tiles, scale, v_scale, keys, values, q_tile, p_tile, full, empty, H, K,
                     D, M, P, COST, STAGES, HAS_SINKS, JOIN_ROWS, ROPE, NORM, PDL)),
            (_produce, (K_MAP, V_MAP, TABLES, SCHEDULE, table_stride, max_tiles, keys, values,
                        full, empty, K, D, BLOCK, P, COST, STAGES, BEFORE, ROPE, PDL)),
        ],
        [1], [40],
    )  # fmt: skip
