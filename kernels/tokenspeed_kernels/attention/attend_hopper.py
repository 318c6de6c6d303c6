"""The attention kernel for rows of many tokens on sm_90, in Gluon: three warpgroups with roles.

The first two warpgroups own 64 rows of the q tile each; a warp of the third asks the copy engine
for kv tiles, ahead by as many as shared memory holds, and never computes. Everything about the work
(q tiles, their parts, where parts go) is that of attend_triton: the same schedule, the same output,
combined by the same `_combine`. Where q tiles are many, programs do not take shares of the schedule
but draw whole tiles from a counter, the longest of a head first: all of them read the keys of one
head at a time, and none is split.

The loop over kv tiles is walk_hopper's.

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
)

from tokenspeed_kernels.attention.walk_hopper import BOX, ROWS, walk

HEADER = gl.constexpr(2)
LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def share_of(SCHEDULE, P: gl.constexpr, REPEATS: gl.constexpr, LANES: gl.constexpr):
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
    return tile, unit, stop, line, tiles, programs < 0


@gluon.jit
def _taken(SCHEDULE, ticket, line, tiles, P: gl.constexpr, REPEATS: gl.constexpr):
    """The whole q tile of a ticket, its first unit, and the one after its last; the same where no
    tile is left. The last tiles of a row see most keys and come first, head after head, so that
    programs at work at once read the keys of one head."""
    columns = SCHEDULE + HEADER + P + 1
    left = ticket < tiles * REPEATS
    repeat = gl.where(left, ticket // tiles, 0)
    tile = gl.where(left, tiles - 1 - (ticket - repeat * tiles), 0)
    begin = repeat * line
    unit = begin + gl.load(columns + tile)
    stop = gl.where(left, begin + gl.load(columns + tile + 1), unit)
    return tile, unit, stop


@gluon.jit
def _read_ticket(tickets, ticket_full, ticket_empty, taken):
    slot = taken % 2
    mbarrier.wait(ticket_full.index(slot), taken // 2 & 1)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    ticket = gl.max(tickets.index(slot).load(layout), 0)
    mbarrier.arrive(ticket_empty.index(slot), count=1)
    return ticket


@gluon.jit
def _draw_ticket(COUNTER, tickets, ticket_full, ticket_empty, taken, most):
    """The next one, told to the other warpgroups. Whoever draws the last resets the counter: each
    program draws one that is no more than a sign to end."""
    WARPS: gl.constexpr = gl.num_warps()
    slot = taken % 2
    mbarrier.wait(ticket_empty.index(slot), (taken // 2 & 1) ^ 1)
    ticket = gl.atomic_add(COUNTER, 1)
    if ticket == most + gl.num_programs(0) - 1:
        gl.store(COUNTER, 0)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    tickets.index(slot).store(gl.full([1], ticket, gl.int32, layout))
    mbarrier.arrive(ticket_full.index(slot), count=1)
    return ticket


@gluon.jit
def part_of(
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
def _consume(
    which: gl.constexpr, Q, SCHEDULE, SINKS, OUT, PARTS, PART_SUMS, max_tiles, scale, v_scale,
    q_tiles, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
    tickets, ticket_full, ticket_empty,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    REPEATS: gl.constexpr, COST: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    HAS_SINKS: gl.constexpr,
):  # fmt: skip
    G: gl.constexpr = H // K
    LANES: gl.constexpr = K // REPEATS
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    W: gl.constexpr = gl.DotOperandLayout(0, L, 2)
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    lane = gl.program_id(0) % LANES
    slot = 2 * (gl.program_id(0) // LANES)
    tile, unit, stop, line, tiles, whole_tiles = share_of(SCHEDULE, P, REPEATS, LANES)
    turn = 0
    fold = 0
    taken = 0
    if whole_tiles:
        ticket = _read_ticket(tickets, ticket_full, ticket_empty, taken)
        tile, unit, stop = _taken(SCHEDULE, ticket, line, tiles, P, REPEATS)
    q = q_tiles.index(which)
    while unit < stop:
        repeat, begin, end, count, first, last, _, first_query, queries, first_visible = part_of(
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
        if HAS_SINKS:  # noqa: SIM102 (one is for the compiler, the other for the device)
            if begin == 0:
                # In the units of products that are yet to be scaled, as `scale` is over log 2.
                sink = gl.load(SINKS + head * G + row % G).to(gl.float32)
                top, total = sink * (LOG2_E / scale), total + 1.0
        if first < last:
            whole = gl.maximum(first, gl.minimum(last - 1, first_visible // N))
            acc, top, total, turn, fold = walk(
                q, None, acc, top, total, first, last, whole, turn, fold, which,
                k_tiles, None, v_tiles, k_full, v_full, k_empty, v_empty, orders, scale,
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
        if whole_tiles:
            taken += 1
            ticket = _read_ticket(tickets, ticket_full, ticket_empty, taken)
            tile, unit, stop = _taken(SCHEDULE, ticket, line, tiles, P, REPEATS)


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
    WARPS: gl.constexpr = gl.num_warps()
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    # Few rows at once: this warpgroup has few registers.
    AT_ONCE: gl.constexpr = 16
    for half in gl.static_range(N // BOX):
        for part in gl.static_range(D // BOX):
            box = boxes.index(first_box + part * (N // BOX) + half)
            for first in gl.static_range(0, BOX, AT_ONCE):
                n = key + half * BOX + first
                n += gl.arange(0, AT_ONCE, layout=gl.SliceLayout(1, LOAD))
                rows = box.slice(first, AT_ONCE)
                held = rows.load(LOAD)
                rows.store(gl.where((n < seq_len)[:, None], held, gl.zeros_like(held)))


@gluon.jit
def _produce(
    K_CACHE, V_CACHE, TABLES, SCHEDULE, table_stride, max_tiles,
    k_boxes, v_boxes, k_full, v_full, k_empty, v_empty, cleaned,
    COUNTER, tickets, ticket_full, ticket_empty,
    K: gl.constexpr, D: gl.constexpr, N: gl.constexpr, BLOCK: gl.constexpr, P: gl.constexpr,
    REPEATS: gl.constexpr, COST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    LANES: gl.constexpr = K // REPEATS
    BYTES: gl.constexpr = N * D * 2
    BOXES: gl.constexpr = (N // BOX) * (D // BOX)
    lane = gl.program_id(0) % LANES
    tile, unit, stop, line, tiles, whole_tiles = share_of(SCHEDULE, P, REPEATS, LANES)
    turn = 0
    num_cleaned = 0
    taken = 0
    if whole_tiles:
        most = tiles * REPEATS
        ticket = _draw_ticket(COUNTER, tickets, ticket_full, ticket_empty, taken, most)
        tile, unit, stop = _taken(SCHEDULE, ticket, line, tiles, P, REPEATS)
    while unit < stop:
        repeat, begin, end, count, first, last, row, _, queries, first_visible = part_of(
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
        if whole_tiles:
            taken += 1
            most = tiles * REPEATS
            ticket = _draw_ticket(COUNTER, tickets, ticket_full, ticket_empty, taken, most)
            tile, unit, stop = _taken(SCHEDULE, ticket, line, tiles, P, REPEATS)


@gluon.jit(do_not_specialize=["max_tiles"])
def _attend_hopper(
    Q, K_CACHE, V_CACHE, TABLES, SCHEDULE, COUNTER, SINKS, OUT, PARTS, PART_SUMS,
    table_stride, max_tiles, scale, v_scale,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, N: gl.constexpr, BLOCK: gl.constexpr,
    P: gl.constexpr, REPEATS: gl.constexpr, COST: gl.constexpr, STAGES: gl.constexpr,
    TURNS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_WARPS: gl.constexpr, HAS_SINKS: gl.constexpr,
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
    cleaned = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    mbarrier.init(cleaned, count=1)
    tickets = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ticket_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    ticket_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2):
        mbarrier.init(ticket_full.index(slot), count=1)
        mbarrier.init(ticket_empty.index(slot), count=2)
    # A barrier that nobody uses is not made: its room would be given away (grouped_hopper.py).
    orders = k_full
    if TURNS:
        orders = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(orders.index(0), count=1)
        mbarrier.init(orders.index(1), count=1)
    gl.warp_specialize(
        [
            (_consume, (0, Q, SCHEDULE, SINKS, OUT, PARTS, PART_SUMS, max_tiles, scale, v_scale,
                        q_tiles, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
                        tickets, ticket_full, ticket_empty,
                        H, K, D, N, P, REPEATS, COST, STAGES, TURNS, HAS_SINKS)),
            (_consume, (1, Q, SCHEDULE, SINKS, OUT, PARTS, PART_SUMS, max_tiles, scale, v_scale,
                        q_tiles, k_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
                        tickets, ticket_full, ticket_empty,
                        H, K, D, N, P, REPEATS, COST, STAGES, TURNS, HAS_SINKS)),
            (_produce, (K_CACHE, V_CACHE, TABLES, SCHEDULE, table_stride, max_tiles,
                        k_boxes, v_boxes, k_full, v_full, k_empty, v_empty, cleaned,
                        COUNTER, tickets, ticket_full, ticket_empty,
                        K, D, N, BLOCK, P, REPEATS, COST, STAGES)),
        ],
        [4, PRODUCER_WARPS],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
