"""Attention over a chunk of keys and values that were made from latents, on sm_90, in Gluon.

What `extend_triton._attend_chunk` computes, by three warpgroups with the roles of
attention/walk_hopper.py, whose loop this is: the first two own 64 queries each of a q tile, the
third asks the copy engine for queries, keys, their rotated part and values. Keys lie dense and are
0 past a row's end, so a kv tile is a box of `N` tokens for every 64 dimensions. Programs are given
their work by the host (pieces.py).
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tokenspeed_kernels.attention.walk_hopper import BOX, ROWS, walk

# int32 words of a piece.
COLUMNS = gl.constexpr(13)


@gluon.jit
def _share(TABLE):
    """This program's first piece, and the one after its last."""
    share = TABLE + gl.program_id(0)
    return gl.load(share), gl.load(share + 1)


@gluon.jit
def _piece(PIECES, piece):
    """First query and queries of its q tile; head; first and last kv tile, counted from the first
    key of the row in the chunk; where that lies in the chunk; how many keys from there on the first
    query sees; the rows of sums that it goes on from and leaves, -1 for none and for the output."""
    at = PIECES + piece * COLUMNS
    return (
        gl.load(at), gl.load(at + 1), gl.load(at + 2), gl.load(at + 3), gl.load(at + 4),
        gl.load(at + 5), gl.load(at + 6), gl.load(at + 7), gl.load(at + 8),
    )  # fmt: skip


@gluon.jit
def _join(
    PIECES, piece, COUNTS, STATE, SUMS, OUT, token, queries, head, m, which, scale,
    H: gl.constexpr, VALUE: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """After a warpgroup left its sums: the output of its queries `m`, if it was the last to leave
    some. COUNTS are 0 between launches."""
    at = PIECES + piece * COLUMNS
    counter = gl.load(at + 9)
    if counter >= 0:
        # All threads have written before the one that counts says so.
        gl.thread_barrier()
        counted = COUNTS + counter + which
        if gl.atomic_add(counted, 1, sem="acq_rel", scope="gpu") == gl.load(at + 10) - 1:
            gl.store(counted, 0)
            live = m < queries
            v = gl.arange(0, VALUE, layout=gl.SliceLayout(0, L))
            row = gl.load(at + 11).to(gl.int64) + m
            top = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, L))
            total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, L))
            acc = gl.zeros([ROWS, VALUE], gl.float32, layout=L)
            for _ in range(gl.load(at + 12)):
                # Past the multiprocessor's own cache, which may hold an older layer's.
                tops = gl.load(SUMS + row * 2, mask=live, other=0.0, cache_modifier=".cg")
                sums = gl.load(SUMS + row * 2 + 1, mask=live, other=1.0, cache_modifier=".cg")
                part = gl.load(
                    STATE + row[:, None] * VALUE + v[None, :], mask=live[:, None], other=0.0,
                    cache_modifier=".cg",
                )  # fmt: skip
                higher = gl.maximum(top, tops)
                # A query may see no key of a piece.
                shift = gl.where(higher == float("-inf"), 0.0, higher) * scale
                fade = gl.exp2(top * scale - shift)
                weight = gl.exp2(tops * scale - shift)
                total = total * fade + weight * sums
                acc = acc * fade[:, None] + weight[:, None] * part
                top = higher
                row += queries
            _put(OUT, acc, total, token, queries, head, m, H, VALUE, L)


@gluon.jit
def _put(
    OUT, acc, total, token, queries, head, m,
    H: gl.constexpr, VALUE: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    v = gl.arange(0, VALUE, layout=gl.SliceLayout(0, L))
    to = OUT + ((token + m).to(gl.int64)[:, None] * H + head) * VALUE + v[None, :]
    out = acc * (1.0 / total)[:, None]
    gl.store(to, out.to(OUT.dtype.element_ty), mask=(m < queries)[:, None])


@gluon.jit
def _consume(
    which: gl.constexpr, CU_QUERY_LENS, TABLE, PIECES, OUT, STATE, SUMS, COUNTS, first_row, scale,
    q_tiles, turned_q_tiles, k_tiles, turned_tiles, v_tiles, k_full, v_full, k_empty, v_empty,
    orders, q_full, q_empty,
    H: gl.constexpr, NOPE: gl.constexpr, E: gl.constexpr, VALUE: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, VALUE, 16])
    W: gl.constexpr = gl.DotOperandLayout(0, L, 2)
    q, turned_q = q_tiles.index(which), turned_q_tiles.index(which)
    piece, stop = _share(TABLE)
    turn = 0
    fold = 0
    while piece < stop:
        _, queries, _, first, last, _, sees, taken, _ = _piece(PIECES, piece)
        m = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
        v = gl.arange(0, VALUE, layout=gl.SliceLayout(0, L))
        begun = (m < queries) & (taken >= 0)
        at = gl.maximum(taken, 0).to(gl.int64) + m
        acc = gl.load(STATE + at[:, None] * VALUE + v[None, :], mask=begun[:, None], other=0.0)
        top = gl.load(SUMS + at * 2, mask=begun, other=float("-inf"))
        total = gl.load(SUMS + at * 2 + 1, mask=begun, other=0.0)
        new_top = gl.convert_layout(top, gl.SliceLayout(1, S))
        new_total = gl.convert_layout(total, gl.SliceLayout(1, S))
        visible = sees + which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
        mbarrier.wait(q_full.index(which), (piece - _share(TABLE)[0]) & 1)
        whole = gl.maximum(first, gl.minimum(last - 1, sees // N))
        acc, new_top, new_total, turn, fold = walk(
            q, turned_q, acc, new_top, new_total, first, last, whole, turn, fold, which,
            k_tiles, turned_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
            scale, visible, N, STAGES, TURNS, L, W, S, q_empty.index(which),
        )  # fmt: skip
        top = gl.convert_layout(new_top, gl.SliceLayout(1, L))
        total = gl.convert_layout(new_total, gl.SliceLayout(1, L))
        # Read again, so that no register holds it meanwhile.
        first_query, queries, head, _, _, _, _, _, left = _piece(PIECES, piece)
        m = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
        token = gl.load(CU_QUERY_LENS + first_row) + first_query
        if left < 0:
            _put(OUT, acc, total, token, queries, head, m, H, VALUE, L)
        else:
            live = m < queries
            at = left.to(gl.int64) + m
            gl.store(STATE + at[:, None] * VALUE + v[None, :], acc, mask=live[:, None])
            gl.store(SUMS + at * 2, top, mask=live)
            gl.store(SUMS + at * 2 + 1, total, mask=live)
            _join(
                PIECES, piece, COUNTS, STATE, SUMS, OUT, token, queries, head, m, which, scale,
                H, VALUE, L,
            )  # fmt: skip
        piece += 1
        _, stop = _share(TABLE)


@gluon.jit
def _produce(
    QUERY, ROTATED, MADE, TURNED, CU_QUERY_LENS, TABLE, PIECES, query_head, rotated_head,
    first_row, q_boxes, turned_q_boxes, k_boxes, turned_boxes, v_boxes,
    k_full, v_full, k_empty, v_empty, q_full, q_empty,
    NOPE: gl.constexpr, E: gl.constexpr, VALUE: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    batch_first = gl.load(CU_QUERY_LENS + first_row)
    begin, stop = _share(TABLE)
    turn = 0
    before = 0
    column = 0
    for piece in range(begin, stop):
        first_query, _, head, first, last, origin, _, _, _ = _piece(PIECES, piece)
        for back in range(last - first):
            place = origin + (last - 1 - back) * N
            stage = turn % STAGES
            # All were empty at the start: the phase before the first one counts as done.
            mbarrier.wait(k_empty.index(stage), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(k_full.index(stage), N * (NOPE + E) * 2)
            for part in gl.static_range(NOPE // BOX):
                tma.async_copy_global_to_shared(
                    MADE, [place, head * (NOPE + VALUE) + part * BOX], k_full.index(stage),
                    k_boxes.index(stage * (NOPE // BOX) + part),
                )  # fmt: skip
            for part in gl.static_range(E // BOX):
                tma.async_copy_global_to_shared(
                    TURNED, [place, part * BOX], k_full.index(stage),
                    turned_boxes.index(stage * (E // BOX) + part),
                )  # fmt: skip
            # Values are read a product later than their keys.
            if turn > 0:
                _values(MADE, before, column, turn - 1, v_boxes, v_full, v_empty, VALUE, N, STAGES)
            before, column = place, head * (NOPE + VALUE) + NOPE
            turn += 1
            if back == 0:
                token = batch_first + first_query
                for which in gl.static_range(2):
                    mbarrier.wait(q_empty.index(which), (piece - begin & 1) ^ 1)
                    mbarrier.expect(q_full.index(which), ROWS * (NOPE + E) * 2)
                    for part in gl.static_range(NOPE // BOX):
                        tma.async_copy_global_to_shared(
                            QUERY, [token + which * ROWS, head * query_head + part * BOX],
                            q_full.index(which), q_boxes.index(which * (NOPE // BOX) + part),
                        )  # fmt: skip
                    for part in gl.static_range(E // BOX):
                        tma.async_copy_global_to_shared(
                            ROTATED, [token + which * ROWS, head * rotated_head + part * BOX],
                            q_full.index(which), turned_q_boxes.index(which * (E // BOX) + part),
                        )  # fmt: skip
    if turn > 0:
        _values(MADE, before, column, turn - 1, v_boxes, v_full, v_empty, VALUE, N, STAGES)


@gluon.jit
def _values(
    MADE, place, column, turn, v_boxes, v_full, v_empty,
    VALUE: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    stage = turn % STAGES
    mbarrier.wait(v_empty.index(stage), (turn // STAGES & 1) ^ 1)
    mbarrier.expect(v_full.index(stage), N * VALUE * 2)
    for part in gl.static_range(VALUE // BOX):
        tma.async_copy_global_to_shared(
            MADE, [place, column + part * BOX], v_full.index(stage),
            v_boxes.index(stage * (VALUE // BOX) + part),
        )  # fmt: skip


@gluon.jit(do_not_specialize=["first_row"])
def _attend_expanded(
    QUERY, ROTATED, MADE, TURNED, CU_QUERY_LENS, TABLE, PIECES, OUT, STATE, SUMS, COUNTS,
    query_head, rotated_head, first_row, scale,
    H: gl.constexpr, NOPE: gl.constexpr, E: gl.constexpr, VALUE: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr, TURNS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Each program meets the pieces of its share one after the other (pieces.py): TABLE [programs
    + 1], PIECES [.., COLUMNS]; queries are counted from those of `first_row` on. QUERY [T, H *
    query_head] and ROTATED are tensor maps with boxes of [ROWS, BOX]; MADE
    [chunk, H * (NOPE + VALUE)] and TURNED [chunk, E] with boxes of [N, BOX]. STATE [.., VALUE] and
    SUMS [.., 2] are rows of sums, COUNTS what counts them."""
    swizzled: gl.constexpr = MADE.layout
    q_boxes = gl.allocate_shared_memory(gl.bfloat16, [2 * (NOPE // BOX), ROWS, BOX], swizzled)
    turned_q_boxes = gl.allocate_shared_memory(gl.bfloat16, [2 * (E // BOX), ROWS, BOX], swizzled)
    q_tiles = q_boxes._reinterpret(gl.bfloat16, [2, ROWS, NOPE], swizzled)
    turned_q_tiles = turned_q_boxes._reinterpret(gl.bfloat16, [2, ROWS, E], swizzled)
    k_boxes = gl.allocate_shared_memory(gl.bfloat16, [STAGES * (NOPE // BOX), N, BOX], swizzled)
    turned_boxes = gl.allocate_shared_memory(gl.bfloat16, [STAGES * (E // BOX), N, BOX], swizzled)
    v_boxes = gl.allocate_shared_memory(gl.bfloat16, [STAGES * (VALUE // BOX), N, BOX], swizzled)
    k_tiles = k_boxes._reinterpret(gl.bfloat16, [STAGES, N, NOPE], swizzled)
    turned_tiles = turned_boxes._reinterpret(gl.bfloat16, [STAGES, N, E], swizzled)
    v_tiles = v_boxes._reinterpret(gl.bfloat16, [STAGES, N, VALUE], swizzled)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for which in gl.static_range(2):
        mbarrier.init(q_full.index(which), count=1)
        mbarrier.init(q_empty.index(which), count=1)
    # A barrier that nobody uses is not made: its room would be given away (grouped_hopper.py).
    orders = k_full
    if TURNS:
        orders = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(orders.index(0), count=1)
        mbarrier.init(orders.index(1), count=1)
    gl.warp_specialize(
        [
            (_consume, (0, CU_QUERY_LENS, TABLE, PIECES, OUT, STATE, SUMS, COUNTS, first_row, scale,
                        q_tiles, turned_q_tiles, k_tiles, turned_tiles, v_tiles,
                        k_full, v_full, k_empty, v_empty, orders, q_full, q_empty,
                        H, NOPE, E, VALUE, N, STAGES, TURNS)),
            (_consume, (1, CU_QUERY_LENS, TABLE, PIECES, OUT, STATE, SUMS, COUNTS, first_row, scale,
                        q_tiles, turned_q_tiles, k_tiles, turned_tiles, v_tiles,
                        k_full, v_full, k_empty, v_empty, orders, q_full, q_empty,
                        H, NOPE, E, VALUE, N, STAGES, TURNS)),
            (_produce, (QUERY, ROTATED, MADE, TURNED, CU_QUERY_LENS, TABLE, PIECES,
                        query_head, rotated_head, first_row,
                        q_boxes, turned_q_boxes, k_boxes, turned_boxes, v_boxes,
                        k_full, v_full, k_empty, v_empty, q_full, q_empty,
                        NOPE, E, VALUE, N, STAGES)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
