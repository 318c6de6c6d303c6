"""Attention over a chunk of keys and values that were made from latents, on sm_90, in Gluon.

What `extend_triton._attend_chunk` computes, by three warpgroups with the roles of
attention/attend_hopper.py, whose loop over kv tiles this is: the first two own 64 queries each of a
q tile, the third asks the copy engine for keys, their rotated part and values. These lie dense and
are 0 past a row's end, so a kv tile is a box of `N` tokens for every 64 dimensions.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tokenspeed_kernels.attention.attend_hopper import BOX, HEADER, ROWS, walk


@gluon.jit
def _work(
    SCHEDULE, LINE, first_row, first_tile, chunk_tiles, shares, max_tiles,
    P: gl.constexpr, BT: gl.constexpr, N: gl.constexpr,
):  # fmt: skip
    """This program's share of a q tile: the tile's first query, queries and keys that the first of
    them sees; from where on in the row, and from where on in the chunk, kv tiles are counted; the
    first and last of the share; whether the tile went on from an earlier chunk, and whether it is
    complete with this one; whether it meets any key of the chunk."""
    columns = SCHEDULE + HEADER + P + 1
    stride = max_tiles + 1
    # The last q tiles of a row see most: they begin first.
    tile = gl.load(SCHEDULE) - 1 - gl.program_id(0) // shares
    share = gl.program_id(0) % shares
    there = tile >= 0
    tile = gl.maximum(tile, 0)
    row = gl.load(columns + stride + tile) - first_row
    first_query = gl.load(columns + 2 * stride + tile)
    queries = gl.load(columns + 3 * stride + tile)
    first_sees = gl.load(columns + 4 * stride + tile)
    sees = first_sees + queries - 1
    tiles_before = gl.load(LINE + row - 1, mask=row > 0, other=0)
    # Where the chunk begins and ends, counted from the row's first token.
    chunk_first = (first_tile - tiles_before) * BT
    first = gl.maximum(chunk_first, 0)
    last = gl.minimum(chunk_first + chunk_tiles * BT, sees)
    meets = there & (first < last)
    tiles = gl.where(meets, (last - first + N - 1) // N, 0)
    begin = tiles * share // shares
    end = tiles * (share + 1) // shares
    return (
        first_query, queries, first_sees, first, first - chunk_first, begin, end,
        chunk_first > 0, last == sees, meets,
    )  # fmt: skip


@gluon.jit
def _consume(
    which: gl.constexpr, QUERY, ROTATED, CU_QUERY_LENS, SCHEDULE, LINE, OUT, STATE, SUMS,
    query_stride, query_head, rotated_stride, rotated_head, first_row, first_tile, chunk_tiles,
    shares, share_stride, max_tiles, scale,
    q_tiles, turned_q_tiles, k_tiles, turned_tiles, v_tiles, k_full, v_full, k_empty, v_empty,
    orders,
    H: gl.constexpr, NOPE: gl.constexpr, E: gl.constexpr, VALUE: gl.constexpr, N: gl.constexpr,
    P: gl.constexpr, BT: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, VALUE, 16])
    W: gl.constexpr = gl.DotOperandLayout(0, L, 2)
    head = gl.program_id(1)
    first_query, queries, first_sees, first, _, begin, end, goes_on, ends, meets = _work(
        SCHEDULE, LINE, first_row, first_tile, chunk_tiles, shares, max_tiles, P, BT, N
    )
    if meets:
        q, turned_q = q_tiles.index(which), turned_q_tiles.index(which)
        _bring(q, QUERY, which, first_query, queries, query_stride, head * query_head, NOPE)
        _bring(
            turned_q, ROTATED, which, first_query, queries, rotated_stride, head * rotated_head, E
        )
        fence_async_shared()
        # Sums of these queries before this chunk, and after it where they are not complete.
        m = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
        v = gl.arange(0, VALUE, layout=gl.SliceLayout(0, L))
        live = m < queries
        begun = live & goes_on
        slot = _slot(CU_QUERY_LENS, first_row, first_query, shares, share_stride, head, H, L, which)
        at = STATE + slot[:, None] * VALUE + v[None, :]
        acc = gl.load(at, mask=begun[:, None], other=0.0)
        top = gl.load(SUMS + slot * 2, mask=begun, other=float("-inf"))
        total = gl.load(SUMS + slot * 2 + 1, mask=begun, other=0.0)
        if begin < end:
            whole = gl.maximum(begin, gl.minimum(end - 1, (first_sees - first) // N))
            row = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
            none = gl.to_tensor(0)
            acc, new_top, new_total, _, _ = walk(
                q, turned_q, acc, gl.convert_layout(top, gl.SliceLayout(1, S)),
                gl.convert_layout(total, gl.SliceLayout(1, S)), begin, end, whole, none, none,
                which, k_tiles, turned_tiles, v_tiles, k_full, v_full, k_empty, v_empty, orders,
                scale, first_sees - first + row, N, STAGES, TURNS, L, W, S,
            )  # fmt: skip
            top = gl.convert_layout(new_top, gl.SliceLayout(1, L))
            total = gl.convert_layout(new_total, gl.SliceLayout(1, L))
        if ends & (shares == 1):
            token = (first_query + m).to(gl.int64)
            to = OUT + (token[:, None] * H + head) * VALUE + v[None, :]
            out = acc * (1.0 / total)[:, None]
            gl.store(to, out.to(OUT.dtype.element_ty), mask=live[:, None])
        else:
            # Read again, so that no register holds the places meanwhile.
            slot = _slot(
                CU_QUERY_LENS, first_row, first_query, shares, share_stride, head, H, L, which
            )
            gl.store(STATE + slot[:, None] * VALUE + v[None, :], acc, mask=live[:, None])
            gl.store(SUMS + slot * 2, top, mask=live)
            gl.store(SUMS + slot * 2 + 1, total, mask=live)


@gluon.jit
def _slot(
    CU_QUERY_LENS, first_row, first_query, shares, share_stride, head,
    H: gl.constexpr, L: gl.constexpr, which: gl.constexpr,
):  # fmt: skip
    """Where this program's sums of its queries wait."""
    m = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    from_first = (first_query + m - gl.load(CU_QUERY_LENS + first_row)).to(gl.int64)
    share = (gl.program_id(0) % shares).to(gl.int64)
    return (share * share_stride + from_first) * H + head


@gluon.jit
def _bring(
    to, FROM, which: gl.constexpr, first_query, queries, stride, offset, D: gl.constexpr,
):  # fmt: skip
    """The queries of this warpgroup; 0 where there are none."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    m = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LOAD))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, LOAD))
    source = FROM + (first_query + m).to(gl.int64)[:, None] * stride + offset + d[None, :]
    to.store(gl.load(source, mask=(m < queries)[:, None], other=0.0))


@gluon.jit
def _produce(
    MADE, TURNED, SCHEDULE, LINE, first_row, first_tile, chunk_tiles, shares, max_tiles, k_boxes,
    turned_boxes, v_boxes, k_full, v_full, k_empty, v_empty,
    NOPE: gl.constexpr, E: gl.constexpr, VALUE: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    BT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    head = gl.program_id(1)
    _, _, _, _, from_chunk, begin, end, _, _, _ = _work(
        SCHEDULE, LINE, first_row, first_tile, chunk_tiles, shares, max_tiles, P, BT, N
    )
    for turn in range(end - begin):
        place = from_chunk + (end - 1 - turn) * N
        stage = turn % STAGES
        # Both were empty at the start: the phase before the first one counts as done.
        used = (turn // STAGES & 1) ^ 1
        mbarrier.wait(k_empty.index(stage), used)
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
        mbarrier.wait(v_empty.index(stage), used)
        mbarrier.expect(v_full.index(stage), N * VALUE * 2)
        for part in gl.static_range(VALUE // BOX):
            tma.async_copy_global_to_shared(
                MADE, [place, head * (NOPE + VALUE) + NOPE + part * BOX], v_full.index(stage),
                v_boxes.index(stage * (VALUE // BOX) + part),
            )  # fmt: skip


@gluon.jit(
    do_not_specialize=["first_row", "first_tile", "chunk_tiles", "shares", "share_stride",
                       "max_tiles"]
)  # fmt: skip
def _attend_expanded(
    QUERY, ROTATED, MADE, TURNED, CU_QUERY_LENS, SCHEDULE, LINE, OUT, STATE, SUMS,
    query_stride, query_head, rotated_stride, rotated_head, first_row, first_tile, chunk_tiles,
    shares, share_stride, max_tiles, scale,
    H: gl.constexpr, NOPE: gl.constexpr, E: gl.constexpr, VALUE: gl.constexpr, N: gl.constexpr,
    P: gl.constexpr, BT: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """One program per q tile, share of its keys in the chunk, and head: see `_attend_chunk`.
    MADE [chunk, H * (NOPE + VALUE)] and TURNED [chunk, E] are tensor maps with boxes of [N, BOX];
    SCHEDULE as schedule_triton.py writes it, for its q tiles alone."""
    swizzled: gl.constexpr = MADE.layout
    q_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, NOPE], swizzled)
    turned_q_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, E], swizzled)
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
    # A barrier that nobody uses is not made: its room would be given away (grouped_hopper.py).
    orders = k_full
    if TURNS:
        orders = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(orders.index(0), count=1)
        mbarrier.init(orders.index(1), count=1)
    gl.warp_specialize(
        [
            (_consume, (0, QUERY, ROTATED, CU_QUERY_LENS, SCHEDULE, LINE, OUT, STATE, SUMS,
                        query_stride, query_head, rotated_stride, rotated_head, first_row,
                        first_tile, chunk_tiles, shares, share_stride, max_tiles, scale,
                        q_tiles, turned_q_tiles, k_tiles, turned_tiles, v_tiles,
                        k_full, v_full, k_empty, v_empty, orders,
                        H, NOPE, E, VALUE, N, P, BT, STAGES, TURNS)),
            (_consume, (1, QUERY, ROTATED, CU_QUERY_LENS, SCHEDULE, LINE, OUT, STATE, SUMS,
                        query_stride, query_head, rotated_stride, rotated_head, first_row,
                        first_tile, chunk_tiles, shares, share_stride, max_tiles, scale,
                        q_tiles, turned_q_tiles, k_tiles, turned_tiles, v_tiles,
                        k_full, v_full, k_empty, v_empty, orders,
                        H, NOPE, E, VALUE, N, P, BT, STAGES, TURNS)),
            (_produce, (MADE, TURNED, SCHEDULE, LINE, first_row, first_tile, chunk_tiles, shares,
                        max_tiles, k_boxes, turned_boxes, v_boxes,
                        k_full, v_full, k_empty, v_empty,
                        NOPE, E, VALUE, N, P, BT, STAGES)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
