"""Both products of experts on sm_90, in Gluon: weights stream through a ring that never runs dry.

A program stays on its multiprocessor and goes from item to item: a block of pairs that share an
expert, by some rows of its weight. One role of it, four warps, asks for tiles ahead of the others,
across items: of the weight by the copy engine, of the pairs' rows one by one where they lie apart.
The other roles, a warpgroup each, multiply: the weight is the left operand, 64 rows high, and the
pairs are the short side. A warpgroup makes two such products of an item: of the gate and of up, or
of rows further down.

What all tokens pass beside their experts may be further blocks: parts as wide as an expert, of
matrices of their own. Which blocks those are is known before any choice is, so the first tiles of
them are on their way while it is made.

float8 rows meet float8 weights. Each tile's products are then added up in float32 with the scales
of both, and what the first product makes becomes float8 again, a scale for the rows of an item.

Tuples that go through the functions:
    blocks    PAIRS, EXPERTS, COUNT of `group_triton.Groups`
    ring      tiles of the weight and of the pairs' rows; barriers: either is there, a slot is free
    outputs   OUT, its scales, from one token to the next and from one of its pairs to the next
    PRODUCT   rows of an expert's weight; from the first half of an item's rows to the second, from
              an item's to the next one's; items of a block; tiles of an item; whether it is gated;
              parts of what all tokens pass
    MAPS      of all experts' weights; of what all tokens pass, or None
    CUT       pairs of a block, inputs of a tile, warpgroups that multiply, slots of the ring
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from tokenspeed_kernels.weight import E4M3_LARGEST, LEAST_SCALED, SQUARE

# Rows of a weight tile.
ROWS = gl.constexpr(64)
# Of a lane; 12 warps share 512 of them.
TAKER_REGISTERS = gl.constexpr(232)
MAKER_REGISTERS = gl.constexpr(40)
_SQUARE = gl.constexpr(SQUARE)
_LARGEST = gl.constexpr(E4M3_LARGEST)
_LEAST = gl.constexpr(LEAST_SCALED)


@gluon.jit
def _copy(MAP, tiles, barrier, row, half, column, slot, TAKERS: gl.constexpr):
    """Has the tiles at `row` and so much further down, `half`, copied."""
    for taker in gl.static_range(TAKERS):
        at = row + taker * ROWS
        first, second = slot * 2 * TAKERS + taker, (slot * 2 + 1) * TAKERS + taker
        tma.async_copy_global_to_shared(MAP, [at, column], barrier, tiles.index(first))
        tma.async_copy_global_to_shared(MAP, [at + half, column], barrier, tiles.index(second))


@gluon.jit
def _begin(expert, item, PRODUCT: gl.constexpr, CUT: gl.constexpr):
    """The first row and input of an item's weight, in the matrix that has it."""
    HEIGHT, HALF, STRIDE, ITEMS, TURNS, GATED, PASSED = PRODUCT
    row = item % ITEMS * STRIDE
    column = 0
    if PASSED:
        part = expert + PASSED
        if GATED:
            row += gl.where(expert < 0, part * HALF, expert * HEIGHT)
        else:
            row += gl.where(expert < 0, 0, expert * HEIGHT)
            column = gl.where(expert < 0, part * (TURNS * CUT[1]), 0)
    else:
        row += expert * HEIGHT
    return row, column


@gluon.jit
def _ask(MAPS, tiles, barrier, expert, row, column, slot, PRODUCT: gl.constexpr, CUT: gl.constexpr):
    """Asks for both halves of the weight's tiles of a turn."""
    HALF: gl.constexpr = PRODUCT[1]
    PASSED: gl.constexpr = PRODUCT[6]
    if PASSED:
        if expert < 0:
            half: gl.constexpr = HALF * PASSED if PRODUCT[5] else HALF
            _copy(MAPS[1], tiles, barrier, row, half, column, slot, CUT[2])
        else:
            _copy(MAPS[0], tiles, barrier, row, HALF, column, slot, CUT[2])
    else:
        _copy(MAPS[0], tiles, barrier, row, HALF, column, slot, CUT[2])


@gluon.jit
def _make(
    MAPS, X_MAP, X, blocks, passed_blocks, ring,
    TOP: gl.constexpr, D: gl.constexpr, PRODUCT: gl.constexpr, CUT: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """Asks for the tiles of all items, as slots come free. The pairs' rows of a gated product lie
    apart, those of the other one beside each other. EARLY: the first weights before the wait, of a
    gated product those of the `passed_blocks` first blocks of each part that all tokens pass."""
    ITEMS: gl.constexpr = PRODUCT[3]
    TURNS: gl.constexpr = PRODUCT[4]
    GATED: gl.constexpr = PRODUCT[5]
    PASSED: gl.constexpr = PRODUCT[6]
    W_MAP = MAPS[0]
    M, K, TAKERS, STAGES = CUT
    PAIRS, EXPERTS, COUNT = blocks
    w_tiles, x_tiles, w_full, x_full, empty = ring
    EACH: gl.constexpr = 128 // W_MAP.dtype.primitive_bitwidth
    LANES: gl.constexpr = K // EACH
    LOAD: gl.constexpr = gl.BlockedLayout([1, EACH], [32 // LANES, LANES], [4, 1], [1, 0])
    W_BYTES: gl.constexpr = 2 * TAKERS * W_MAP.block_type.nbytes
    BYTES: gl.constexpr = W_BYTES if GATED else W_BYTES + X_MAP.block_type.nbytes
    AHEAD: gl.constexpr = min(STAGES, TURNS) if EARLY else 0
    # Of a gated product blocks are counted while this waits.
    LATE: gl.constexpr = EARLY and GATED
    if not LATE:
        items = gl.load(COUNT) * ITEMS
    item = gl.program_id(0)
    ahead = AHEAD
    if EARLY:
        if LATE:
            known = item // ITEMS < PASSED * passed_blocks
            ahead = gl.where(known, AHEAD, 0)
        else:
            known = item < items
        if known:
            if LATE:
                expert = item // ITEMS // passed_blocks - PASSED
            else:
                expert = gl.load(EXPERTS + item // ITEMS)
            row, column = _begin(expert, item, PRODUCT, CUT)
            for turn in gl.static_range(AHEAD):
                full, at = w_full.index(turn), column + turn * K
                mbarrier.expect(full, BYTES)
                _ask(MAPS, w_tiles, full, expert, row, at, turn, PRODUCT, CUT)
        tl.extra.cuda.gdc_wait()
    if LATE:
        items = gl.load(COUNT) * ITEMS
    m = gl.arange(0, M, gl.SliceLayout(1, LOAD))
    k = gl.arange(0, K, gl.SliceLayout(0, LOAD))
    turn = 0
    while item < items:
        place = item // ITEMS * M
        expert = gl.load(EXPERTS + item // ITEMS)
        row, column = _begin(expert, item, PRODUCT, CUT)
        if GATED:
            pair = gl.load(PAIRS + place + m)
            at = X + (gl.maximum(pair, 0) // TOP).to(gl.int64)[:, None] * D + k[None, :]
            live = (pair >= 0)[:, None]
        for step in range(TURNS):
            slot = turn % STAGES
            # All were empty at the start: the phase before the first one counts as done.
            mbarrier.wait(empty.index(slot), (turn // STAGES & 1) ^ 1)
            if turn >= ahead:
                full = w_full.index(slot)
                mbarrier.expect(full, BYTES)
                _ask(MAPS, w_tiles, full, expert, row, column + step * K, slot, PRODUCT, CUT)
            if GATED:
                tile = x_tiles.index(slot)
                async_copy.async_copy_global_to_shared(tile, at + step * K, mask=live)
                async_copy.mbarrier_arrive(x_full.index(slot), increment_count=False)
            else:
                tma.async_copy_global_to_shared(
                    X_MAP, [place, step * K], w_full.index(slot), x_tiles.index(slot)
                )
            turn += 1
        item += gl.num_programs(0)


@gluon.jit
def _tile(ring, turn, M: gl.constexpr, CUT: gl.constexpr, GATED: gl.constexpr):
    """Waits for the tiles of a turn; the first M of the pairs' rows as the right operand."""
    _, x_tiles, w_full, x_full, _ = ring
    STAGES: gl.constexpr = CUT[3]
    slot = turn % STAGES
    phase = turn // STAGES & 1
    mbarrier.wait(w_full.index(slot), phase)
    if GATED:
        mbarrier.wait(x_full.index(slot), phase)
        # Written by lanes, read by the matrix units.
        fence_async_shared()
    tile = x_tiles.index(slot)
    if CUT[0] != M:
        tile = tile.slice(0, M)
    return tile.permute((1, 0))


@gluon.jit
def _multiply(
    which: gl.constexpr, turn, ring, M: gl.constexpr, PRODUCT: gl.constexpr, CUT: gl.constexpr,
    L: gl.constexpr,
):  # fmt: skip
    """Both products [ROWS, M] of an item, whose tiles are `turn` on."""
    w_tiles, _, _, _, empty = ring
    TURNS: gl.constexpr = PRODUCT[4]
    TAKERS: gl.constexpr = CUT[2]
    STAGES: gl.constexpr = CUT[3]
    first = warpgroup_mma_init(gl.zeros([ROWS, M], gl.float32, L))
    second = warpgroup_mma_init(gl.zeros([ROWS, M], gl.float32, L))
    for step in range(TURNS):
        tile = turn % STAGES * 2 * TAKERS + which
        x = _tile(ring, turn, M, CUT, PRODUCT[5])
        # The products before these are done with their slot.
        first, second = warpgroup_mma_wait(num_outstanding=0, deps=[first, second])
        mbarrier.arrive(empty.index((turn - 1 + STAGES) % STAGES), count=1, pred=step > 0)
        first = warpgroup_mma(w_tiles.index(tile), x, first, is_async=True)
        second = warpgroup_mma(w_tiles.index(tile + TAKERS), x, second, is_async=True)
        turn += 1
    first, second = warpgroup_mma_wait(num_outstanding=0, deps=[first, second])
    mbarrier.arrive(empty.index((turn - 1) % STAGES), count=1)
    return first, second, turn


@gluon.jit
def _multiply_scaled(
    which: gl.constexpr, turn, ring, W_SCALES, X_SCALES, row, x_row, live,
    M: gl.constexpr, PRODUCT: gl.constexpr, CUT: gl.constexpr, SQUARES: gl.constexpr,
    L: gl.constexpr,
):  # fmt: skip
    """As `_multiply`, of float8, from the weight's rows `row` on with the rows `x_row` [M]. A row
    of the weight has one scale, or one for each tile's inputs and SQUARE rows; `x_row` has one for
    each tile's inputs."""
    w_tiles, _, _, _, empty = ring
    HALF: gl.constexpr = PRODUCT[1]
    TURNS: gl.constexpr = PRODUCT[4]
    TAKERS: gl.constexpr = CUT[2]
    STAGES: gl.constexpr = CUT[3]
    first = gl.zeros([ROWS, M], gl.float32, L)
    second = gl.zeros([ROWS, M], gl.float32, L)
    none = gl.zeros([ROWS, M], gl.float32, L)
    for step in range(TURNS):
        tile = turn % STAGES * 2 * TAKERS + which
        # On their way while the tiles are.
        scale = gl.load(X_SCALES + x_row * TURNS + step, mask=live, other=0.0)
        first_scale = scale
        second_scale = scale
        if SQUARES:
            first_scale *= gl.load(W_SCALES + row // _SQUARE * TURNS + step)
            second_scale *= gl.load(W_SCALES + (row + HALF) // _SQUARE * TURNS + step)
        x = _tile(ring, turn, M, CUT, PRODUCT[5])
        a = warpgroup_mma(w_tiles.index(tile), x, none, use_acc=False, is_async=True)
        b = warpgroup_mma(w_tiles.index(tile + TAKERS), x, none, use_acc=False, is_async=True)
        a, b = warpgroup_mma_wait(num_outstanding=0, deps=[a, b])
        mbarrier.arrive(empty.index(turn % STAGES), count=1)
        first += a * first_scale[None, :]
        second += b * second_scale[None, :]
        turn += 1
    if not SQUARES:
        r = row + gl.arange(0, ROWS, gl.SliceLayout(1, L))
        first *= gl.load(W_SCALES + r)[:, None]
        second *= gl.load(W_SCALES + r + HALF)[:, None]
    return first, second, turn


@gluon.jit
def _largest(made, which: gl.constexpr, count, meeting, L: gl.constexpr):
    """The largest of `made` [ROWS, M] down each column, and of the other warpgroup's. `meeting`:
    room for two items' worth, and a barrier."""
    largest, barrier = meeting
    mine = gl.max(gl.abs(made), 0)
    parity = count & 1
    largest.index(parity * 2 + which).store(mine)
    gl.thread_barrier()
    mbarrier.arrive(barrier, count=1)
    mbarrier.wait(barrier, parity)
    return gl.maximum(mine, largest.index(parity * 2 + 1 - which).load(gl.SliceLayout(0, L)))


@gluon.jit
def _item(
    which: gl.constexpr, item, turn, count, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES,
    outputs, M: gl.constexpr, TOP: gl.constexpr, WIDTH: gl.constexpr, PRODUCT: gl.constexpr,
    CUT: gl.constexpr, SCALE: gl.constexpr,
):  # fmt: skip
    """One item, of whose pairs the first M are all there are. A gated product has a row of WIDTH
    for each place, the other one for each pair. SCALE: 0 none, 1 one of a weight's row, 2 one of a
    square. What all tokens pass has the weight 1."""
    PAIRS, EXPERTS, _ = blocks
    OUT, OUT_SCALES, token_stride, nth_stride = outputs
    HEIGHT, HALF, STRIDE, ITEMS, _, GATED, PASSED = PRODUCT
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 32 if SCALE else 16])
    kind: gl.constexpr = OUT.dtype.element_ty
    # 16 bytes of a thread along the outputs, as they lie in memory.
    EACH: gl.constexpr = 128 // kind.primitive_bitwidth
    LANES: gl.constexpr = ROWS // EACH
    STORED: gl.constexpr = gl.BlockedLayout([EACH, 1], [LANES, 32 // LANES], [1, 4], [0, 1])
    begin = item // ITEMS * CUT[0]
    column = item % ITEMS * STRIDE + which * ROWS
    place = begin + gl.arange(0, M, gl.SliceLayout(0, L))
    if SCALE:
        pair = gl.load(PAIRS + place)
        first, second, turn = _multiply_scaled(
            which, turn, ring, W_SCALES, X_SCALES,
            gl.load(EXPERTS + item // ITEMS) * HEIGHT + column,
            gl.maximum(pair, 0) // TOP if GATED else place, pair >= 0, M, PRODUCT, CUT, SCALE == 2,
            L,
        )  # fmt: skip
    else:
        first, second, turn = _multiply(which, turn, ring, M, PRODUCT, CUT, L)
        pair = gl.load(PAIRS + place)
    n = column + gl.arange(0, ROWS, gl.SliceLayout(1, STORED))
    to = gl.convert_layout(pair, gl.SliceLayout(0, STORED))
    live = (to >= 0)[None, :]
    if GATED:
        made = first / (1.0 + gl.exp(-first)) * second
        if SCALE:
            most = gl.maximum(_largest(made, which, count, meeting, L), _LEAST)
            made = made * (_LARGEST / most)[None, :]
            if which == 0:
                at = OUT_SCALES + place * ITEMS + item % ITEMS
                gl.store(at, most / _LARGEST, mask=pair >= 0)
        m = begin + gl.arange(0, M, gl.SliceLayout(0, STORED))
        at = OUT + m.to(gl.int64)[None, :] * WIDTH + n[:, None]
        gl.store(at, gl.convert_layout(made.to(kind), STORED), mask=live)
    else:
        chosen = pair >= 0
        given = pair
        if PASSED:
            chosen &= pair % TOP < TOP - PASSED
            given = pair // TOP * (TOP - PASSED) + pair % TOP
        weight = gl.load(WEIGHTS + given, mask=chosen, other=1.0 if PASSED else 0.0)[None, :]
        to = gl.maximum(to, 0)
        row = (to % TOP).to(gl.int64) * nth_stride + to // TOP * token_stride
        at = OUT + row[None, :] * WIDTH + n[:, None]
        gl.store(at, gl.convert_layout((first * weight).to(kind), STORED), mask=live)
        gl.store(at + HALF, gl.convert_layout((second * weight).to(kind), STORED), mask=live)
    return turn


@gluon.jit
def _take(
    which: gl.constexpr, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES, outputs,
    TOP: gl.constexpr, WIDTH: gl.constexpr, PRODUCT: gl.constexpr, CUT: gl.constexpr,
    SCALE: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Multiplies all items. Large blocks that are at most half full, as half a block."""
    PAIRS, _, COUNT = blocks
    ITEMS: gl.constexpr = PRODUCT[3]
    M: gl.constexpr = CUT[0]
    LESS: gl.constexpr = M // 2
    if EARLY:
        tl.extra.cuda.gdc_wait()
        # The second product's weights are on their way as soon as there is room. What follows that
        # one is small, and would all crowd onto the first multiprocessor that is done.
        if PRODUCT[5] and which == 0:
            tl.extra.cuda.gdc_launch_dependents()
    turn = 0
    count = 0  # of items so far
    for item in range(gl.program_id(0), gl.load(COUNT) * ITEMS, gl.num_programs(0)):
        if M < 128:
            turn = _item(
                which, item, turn, count, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES,
                outputs, M, TOP, WIDTH, PRODUCT, CUT, SCALE,
            )  # fmt: skip
        elif gl.load(PAIRS + item // ITEMS * M + LESS) < 0:
            turn = _item(
                which, item, turn, count, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES,
                outputs, LESS, TOP, WIDTH, PRODUCT, CUT, SCALE,
            )  # fmt: skip
        else:
            turn = _item(
                which, item, turn, count, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES,
                outputs, M, TOP, WIDTH, PRODUCT, CUT, SCALE,
            )  # fmt: skip
        count += 1  # noqa: SIM113


@gluon.jit(do_not_specialize=["passed_blocks"])
def _grouped(
    W_MAP, PASSED_MAP, X_MAP, X, PAIRS, EXPERTS, COUNT, WEIGHTS, W_SCALES, X_SCALES, OUT,
    OUT_SCALES, token_stride, nth_stride, passed_blocks,
    HEIGHT: gl.constexpr, HALF: gl.constexpr, STRIDE: gl.constexpr, ITEMS: gl.constexpr,
    TURNS: gl.constexpr, D: gl.constexpr, WIDTH: gl.constexpr, TOP: gl.constexpr,
    M: gl.constexpr, K: gl.constexpr, TAKERS: gl.constexpr, STAGES: gl.constexpr,
    GATED: gl.constexpr, PASSED: gl.constexpr, SCALE: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """W_MAP: the weights of all experts in tiles [ROWS, K]. GATED: the first product; otherwise the
    second one, whose blocks were known before the kernel ahead of it began (`launch_triton`).
    PASSED: so many of a token's TOP pairs, the last ones, are parts of what all tokens pass, whose
    weights PASSED_MAP has, and which are the first blocks, `passed_blocks` each. Bfloat16 alone."""
    gl.static_assert(PASSED == 0 or SCALE == 0)
    EARLY: gl.constexpr = PDL and (PASSED > 0 or not GATED)
    X_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, K], W_MAP.dtype)
    w_tiles = gl.allocate_shared_memory(W_MAP.dtype, [STAGES * 2 * TAKERS, ROWS, K], W_MAP.layout)
    x_tiles = gl.allocate_shared_memory(W_MAP.dtype, [STAGES, M, K], X_LAYOUT)
    w_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(w_full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=TAKERS)
    # Barriers that nobody uses are not made: the compiler would give their room away, and what
    # lies where a barrier still is may be lost.
    x_full = w_full
    meeting = (w_full, w_full)
    if GATED:
        x_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for slot in gl.static_range(STAGES):
            # Each lane that copies says when its copies are there.
            mbarrier.init(x_full.index(slot), count=128)
        if SCALE:
            flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
            largest = gl.allocate_shared_memory(gl.float32, [4, M], flat)
            met = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
            mbarrier.init(met, count=2)
            meeting = (largest, met)
    if PDL and not EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    blocks = (PAIRS, EXPERTS, COUNT)
    ring = (w_tiles, x_tiles, w_full, x_full, empty)
    outputs = (OUT, OUT_SCALES, token_stride, nth_stride)
    maps = (W_MAP, PASSED_MAP)
    PRODUCT: gl.constexpr = (HEIGHT, HALF, STRIDE, ITEMS, TURNS, GATED, PASSED)
    CUT: gl.constexpr = (M, K, TAKERS, STAGES)
    if TAKERS == 2:
        gl.warp_specialize(
            [
                (_take, (0, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES, outputs, TOP,
                         WIDTH, PRODUCT, CUT, SCALE, EARLY)),
                (_take, (1, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES, outputs, TOP,
                         WIDTH, PRODUCT, CUT, SCALE, EARLY)),
                (_make, (maps, X_MAP, X, blocks, passed_blocks, ring, TOP, D, PRODUCT, CUT, EARLY)),
            ],
            [4, 4],
            [TAKER_REGISTERS, MAKER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_take, (0, blocks, ring, meeting, WEIGHTS, W_SCALES, X_SCALES, outputs, TOP,
                         WIDTH, PRODUCT, CUT, SCALE, EARLY)),
                (_make, (maps, X_MAP, X, blocks, passed_blocks, ring, TOP, D, PRODUCT, CUT, EARLY)),
            ],
            [4],
            [MAKER_REGISTERS],
        )  # fmt: skip
