"""The attention kernel for rows of many tokens on sm_90, in Gluon: three warpgroups with roles.

The first two warpgroups own 64 rows of the q tile each; the third asks the copy engine for kv
tiles, ahead by as many as shared memory holds, and never computes. Everything about the work
(q tiles, their parts, where parts go) is that of attend_triton: the same schedule, the same output,
combined by the same `_combine`.

A kv tile of a warpgroup, j counted from the end of its part, where the masked ones are:

    start     s_j = q k_j^T,  o += p_(j-1) v_(j-1)          both on the matrix units
    wait for s_j;  m' = max(m, max s_j),  p_j = e^(s_j - m'),  l' = l e^(m - m') + sum p_j
    wait for o;  o *= e^(m - m')

so the exponentials of one tile run beside the product of the one before it, and beside all products
of the other warpgroup.

A kv tile comes in boxes of 64 tokens, which lie in one block of the cache, by 64 dimensions, which
are a row of the swizzled layout that the matrix units read: put beside each other in the order of
dimensions, then tokens, boxes are that layout of the whole tile.

What lies past a row's end in its last block may be anything, and 0 times nan is nan: the third
warpgroup zeroes those values before it hands the tile over.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

HEADER = gl.constexpr(2)
# Rows of a warpgroup; tokens and dimensions of a box.
ROWS = gl.constexpr(64)
BOX = gl.constexpr(64)


@gluon.jit
def _share(SCHEDULE, P: gl.constexpr, REPEATS: gl.constexpr, LANES: gl.constexpr):
    """This program's first q tile, its units, first and end, and those of one kv head."""
    p = gl.program_id(0) // LANES
    tiles = gl.load(SCHEDULE)
    programs = gl.load(SCHEDULE + 1)
    tile = gl.load(SCHEDULE + HEADER + p)
    line = gl.load(SCHEDULE + HEADER + P + 1 + tiles).to(gl.int64)
    units = line * REPEATS
    divisor = gl.maximum(programs, 1)
    unit = units * p // divisor
    stop = gl.where(p < programs, units * (p + 1) // divisor, unit)
    return tile, unit, stop, line, tiles


@gluon.jit
def _part(
    SCHEDULE, tile, unit, stop, line, max_tiles, P: gl.constexpr, COST: gl.constexpr,
):  # fmt: skip
    """The part of the q tile that comes next: repeat, begin, end and count in units, first and
    last kv tile, row, first query, queries, keys that the first of them sees."""
    columns = SCHEDULE + HEADER + P + 1
    stride = max_tiles + 1
    before = gl.load(columns + tile)
    count = gl.load(columns + tile + 1) - before
    row = gl.load(columns + stride + tile)
    first_query = gl.load(columns + 2 * stride + tile)
    queries = gl.load(columns + 3 * stride + tile)
    first_visible = gl.load(columns + 4 * stride + tile)
    repeat = (unit // line).to(gl.int32)
    begin = (unit - repeat * line).to(gl.int32) - before
    end = gl.minimum(count, begin + (stop - unit).to(gl.int32))
    # The first COST units of a tile stand for what it costs to begin one.
    first = gl.maximum(begin - COST, 0)
    last = gl.maximum(end - COST, 0)
    return repeat, begin, end, count, first, last, row, first_query, queries, first_visible


@gluon.jit
def _softmax(
    s, top, total, scale, visible, first_key,
    N: gl.constexpr, MASKED: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """The scores of a kv tile to weights; also by how much the sums before it fade."""
    if MASKED:
        key = first_key + gl.arange(0, N, layout=gl.SliceLayout(0, L))
        s = gl.where(key[None, :] < visible[:, None], s, float("-inf"))
    higher = gl.maximum(top, gl.max(s, 1))
    shift = higher * scale
    if MASKED:
        # A row may see none of these keys; its maximum stays -inf.
        shift = gl.where(higher == float("-inf"), 0.0, shift)
    fade = gl.exp2(top * scale - shift)
    weight = gl.exp2(s * scale - shift[:, None])
    total = total * fade + gl.sum(weight, 1)
    return weight, fade, higher, total


@gluon.jit
def _fold(
    q, weight, acc, top, total, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, turn, more,
    which: gl.constexpr, orders, fold, scale, visible, first_key,
    N: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    L: gl.constexpr, W: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Starts the product of kv tile `turn`, whose keys are there, and that of the weights before
    it; folds both in. `turn` counts all kv tiles of the program, `fold` those that came here;
    `more`: another one follows."""
    stage = turn % STAGES
    previous = (turn - 1) % STAGES
    if TURNS:
        mbarrier.wait(orders.index(which), (fold ^ which ^ 1) & 1)
    s = warpgroup_mma(
        q, k_tiles.index(stage).permute((1, 0)),
        gl.zeros([ROWS, N], gl.float32, layout=S), use_acc=False, is_async=True,
    )  # fmt: skip
    mbarrier.wait(v_full.index(previous), (turn - 1) // STAGES & 1)
    sums = warpgroup_mma(weight, v_tiles.index(previous), acc, is_async=True)
    if TURNS:
        mbarrier.arrive(orders.index(1 - which), count=1)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)
    fresh, fade, top, total = _softmax(s, top, total, scale, visible, first_key, N, MASKED, S)
    # Between the exponentials and the end of the product: the assembler moves the end ahead of
    # them unless a branch stands in its way, and then they no longer run beside the product.
    mbarrier.wait(k_full.index((turn + 1) % STAGES), (turn + 1) // STAGES & 1, pred=more)
    acc = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(v_empty.index(previous), count=1)
    acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, L))[:, None]
    weight = gl.convert_layout(fresh.to(gl.bfloat16), W)
    return weight, acc, top, total


@gluon.jit
def _walk(
    q, acc, top, total, first, last, whole, turn, fold, which: gl.constexpr,
    k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders, scale, visible,
    N: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    L: gl.constexpr, W: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """Folds kv tiles last - 1 down to first, of which there is one at least: the last one alone,
    then those down to `whole` with a mask, then the others."""
    stage = turn % STAGES
    mbarrier.wait(k_full.index(stage), turn // STAGES & 1)
    s = warpgroup_mma(
        q, k_tiles.index(stage).permute((1, 0)),
        gl.zeros([ROWS, N], gl.float32, layout=S), use_acc=False, is_async=True,
    )  # fmt: skip
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)
    weights, _, top, total = _softmax(s, top, total, scale, visible, (last - 1) * N, N, True, S)
    weight = gl.convert_layout(weights.to(gl.bfloat16), W)
    turn += 1
    end_turn = turn + last - 1 - first
    mbarrier.wait(k_full.index(turn % STAGES), turn // STAGES & 1, pred=turn < end_turn)
    for back in range(last - 1 - whole):
        weight, acc, top, total = _fold(
            q, weight, acc, top, total, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty,
            turn, turn + 1 < end_turn, which, orders, fold, scale, visible, (last - 2 - back) * N,
            N, True, STAGES, TURNS, L, W, S,
        )  # fmt: skip
        turn += 1
        fold += 1
    for _ in range(whole - first):
        weight, acc, top, total = _fold(
            q, weight, acc, top, total, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty,
            turn, turn + 1 < end_turn, which, orders, fold, scale, visible, 0,
            N, False, STAGES, TURNS, L, W, S,
        )  # fmt: skip
        turn += 1
        fold += 1
    stage = (turn - 1) % STAGES
    mbarrier.wait(v_full.index(stage), (turn - 1) // STAGES & 1)
    sums = warpgroup_mma(weight, v_tiles.index(stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(v_empty.index(stage), count=1)
    return acc, top, total, turn, fold


@gluon.jit
def _consume(
    which: gl.constexpr, Q, SCHEDULE, OUT, PARTS, PART_SUMS, max_tiles, scale, v_scale,
    q_tiles, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    REPEATS: gl.constexpr, COST: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    G: gl.constexpr = H // K
    LANES: gl.constexpr = K // REPEATS
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    W: gl.constexpr = gl.DotOperandLayout(0, L, 2)
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    lane = gl.program_id(0) % LANES
    slot = 2 * (gl.program_id(0) // LANES)
    tile, unit, stop, line, tiles = _share(SCHEDULE, P, REPEATS, LANES)
    turn = 0
    fold = 0
    q = q_tiles.index(which)
    while unit < stop:
        repeat, begin, end, count, first, last, _, first_query, queries, first_visible = _part(
            SCHEDULE, tile, unit, stop, line, max_tiles, P, COST
        )
        head = lane + repeat
        # Rows of the tile: tokens, and within a token the heads of the group.
        m = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LOAD))
        element = ((first_query + m // G).to(gl.int64) * H + head * G + m % G)[:, None] * D
        d = gl.arange(0, D, layout=gl.SliceLayout(0, LOAD))
        live = m < queries * G
        q.store(gl.load(Q + element + d[None, :], mask=live[:, None], other=0.0))
        fence_async_shared()
        row = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
        acc = gl.zeros([ROWS, D], gl.float32, layout=L)
        top = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, S))
        total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, S))
        if first < last:
            whole = gl.maximum(first, gl.minimum(last - 1, first_visible // N))
            acc, top, total, turn, fold = _walk(
                q, acc, top, total, first, last, whole, turn, fold, which,
                k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders, scale,
                first_visible + row // G, N, STAGES, TURNS, L, W, S,
            )  # fmt: skip
        _write(
            which, OUT, PARTS, PART_SUMS, acc, gl.convert_layout(top, gl.SliceLayout(1, L)),
            gl.convert_layout(total, gl.SliceLayout(1, L)), scale, v_scale,
            first_query, queries, head, (slot * LANES + lane).to(gl.int64) * (2 * ROWS),
            (begin == 0) & (end == count), H, G, D, L,
        )  # fmt: skip
        unit += end - begin
        tile += (end == count).to(gl.int32)
        tile = gl.where(tile == tiles, 0, tile)
        slot = 2 * (gl.program_id(0) // LANES) + 1


@gluon.jit
def _write(
    which: gl.constexpr, OUT, PARTS, PART_SUMS, acc, top, total, scale, v_scale,
    first_query, queries, head, part, complete,
    H: gl.constexpr, G: gl.constexpr, D: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """The rows of a whole q tile as they are, those of a part unnormalised in its slot."""
    m = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, L))
    live = m < queries * G
    if complete:
        out = acc * (v_scale / total)[:, None]
        element = ((first_query + m // G).to(gl.int64) * H + head * G + m % G)[:, None] * D
        gl.store(OUT + element + d[None, :], out.to(OUT.dtype.element_ty), mask=live[:, None])
    else:
        gl.store(PARTS + (part + m)[:, None] * D + d[None, :], acc, mask=live[:, None])
        gl.store(PART_SUMS + (part + m) * 2, top * scale, mask=live)
        gl.store(PART_SUMS + (part + m) * 2 + 1, total, mask=live)


@gluon.jit
def _load(CACHE, table, key, seq_len, column, barrier, boxes, first_box,
          N: gl.constexpr, D: gl.constexpr, BLOCK: gl.constexpr):  # fmt: skip
    """Asks for a kv tile, box by box. Past the row's end: tokens of block 0."""
    for half in gl.static_range(N // BOX):
        token = key + half * BOX
        block = gl.load(table + token // BLOCK, mask=token < seq_len, other=0)
        place = block * BLOCK + token % BLOCK
        for part in gl.static_range(D // BOX):
            tma.async_copy_global_to_shared(
                CACHE, [place, column + part * BOX], barrier,
                boxes.index(first_box + part * (N // BOX) + half),
            )  # fmt: skip


@gluon.jit
def _clean(boxes, first_box, key, seq_len, N: gl.constexpr, D: gl.constexpr):
    """Zeroes the tokens of a kv tile from `seq_len` on."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    for half in gl.static_range(N // BOX):
        n = key + half * BOX + gl.arange(0, BOX, layout=gl.SliceLayout(1, LOAD))
        for part in gl.static_range(D // BOX):
            box = boxes.index(first_box + part * (N // BOX) + half)
            held = box.load(LOAD)
            box.store(gl.where((n < seq_len)[:, None], held, gl.zeros_like(held)))


@gluon.jit
def _produce(
    K_CACHE, V_CACHE, TABLES, SCHEDULE, table_stride, max_tiles,
    k_boxes, v_boxes, k_full, v_full, k_empty, v_empty, cleaned,
    K: gl.constexpr, D: gl.constexpr, N: gl.constexpr, BLOCK: gl.constexpr, P: gl.constexpr,
    REPEATS: gl.constexpr, COST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    LANES: gl.constexpr = K // REPEATS
    BYTES: gl.constexpr = N * D * 2
    BOXES: gl.constexpr = (N // BOX) * (D // BOX)
    lane = gl.program_id(0) % LANES
    tile, unit, stop, line, tiles = _share(SCHEDULE, P, REPEATS, LANES)
    turn = 0
    num_cleaned = 0
    while unit < stop:
        repeat, begin, end, count, first, last, row, _, queries, first_visible = _part(
            SCHEDULE, tile, unit, stop, line, max_tiles, P, COST
        )
        column = (lane + repeat) * D
        table = TABLES + row.to(gl.int64) * table_stride
        seq_len = first_visible + queries - 1
        for back in range(last - first):
            key = (last - 1 - back) * N
            stage = turn % STAGES
            box = stage * BOXES
            # Both were empty at the start: the phase before the first one counts as done.
            used = (turn // STAGES & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), used)
            mbarrier.expect(k_full.index(stage), BYTES)
            _load(
                K_CACHE, table, key, seq_len, column, k_full.index(stage), k_boxes, box,
                N, D, BLOCK,
            )  # fmt: skip
            mbarrier.wait(v_empty.index(stage), used)
            if key + N <= seq_len:
                mbarrier.expect(v_full.index(stage), BYTES)
                _load(
                    V_CACHE, table, key, seq_len, column, v_full.index(stage), v_boxes, box,
                    N, D, BLOCK,
                )  # fmt: skip
            else:
                mbarrier.expect(cleaned, BYTES)
                _load(V_CACHE, table, key, seq_len, column, cleaned, v_boxes, box, N, D, BLOCK)
                mbarrier.wait(cleaned, num_cleaned & 1)
                num_cleaned += 1
                _clean(v_boxes, box, key, seq_len, N, D)
                fence_async_shared()
                mbarrier.arrive(v_full.index(stage), count=1)
            turn += 1
        unit += end - begin
        tile += (end == count).to(gl.int32)
        tile = gl.where(tile == tiles, 0, tile)


@gluon.jit(do_not_specialize=["max_tiles"])
def _attend_hopper(
    Q, K_CACHE, V_CACHE, TABLES, SCHEDULE, OUT, PARTS, PART_SUMS,
    table_stride, max_tiles, scale, v_scale,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, N: gl.constexpr, BLOCK: gl.constexpr,
    P: gl.constexpr, REPEATS: gl.constexpr, COST: gl.constexpr, STAGES: gl.constexpr,
    TURNS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See `attend_triton._attend`; `scale` is over log 2. K_CACHE and V_CACHE are tensor maps over
    [tokens, K * D] with boxes of [BOX, BOX]. TURNS: the two warpgroups start products in turn."""
    swizzled: gl.constexpr = K_CACHE.layout
    BOXES: gl.constexpr = STAGES * (N // BOX) * (D // BOX)
    q_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, D], swizzled)
    k_boxes = gl.allocate_shared_memory(gl.bfloat16, [BOXES, BOX, BOX], swizzled)
    v_boxes = gl.allocate_shared_memory(gl.bfloat16, [BOXES, BOX, BOX], swizzled)
    k_tiles = k_boxes._reinterpret(gl.bfloat16, [STAGES, N, D], swizzled)
    v_tiles = v_boxes._reinterpret(gl.bfloat16, [STAGES, N, D], swizzled)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    orders = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    cleaned = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    mbarrier.init(cleaned, count=1)
    mbarrier.init(orders.index(0), count=1)
    mbarrier.init(orders.index(1), count=1)
    gl.warp_specialize(
        [
            (_consume, (0, Q, SCHEDULE, OUT, PARTS, PART_SUMS, max_tiles, scale, v_scale,
                        q_tiles, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
                        H, K, D, N, P, REPEATS, COST, STAGES, TURNS)),
            (_consume, (1, Q, SCHEDULE, OUT, PARTS, PART_SUMS, max_tiles, scale, v_scale,
                        q_tiles, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
                        H, K, D, N, P, REPEATS, COST, STAGES, TURNS)),
            (_produce, (K_CACHE, V_CACHE, TABLES, SCHEDULE, table_stride, max_tiles,
                        k_boxes, v_boxes, k_full, v_full, k_empty, v_empty, cleaned,
                        K, D, N, BLOCK, P, REPEATS, COST, STAGES)),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
