"""Products of packed e2m1 weights with few tokens on Hopper, in Gluon: programs of one warp, each
with a ring of its own.

A program goes from item to item: two tiles of rows (see `packed_triton`) by the tokens of
one block, along all inputs. It asks for another chunk as soon as it has read the one that lay
there, across items. Nobody else reads its ring or has part of its sums: no warp waits for another,
and while one waits for memory the others of its multiprocessor compute. Inputs come through the
ring too: a multiprocessor answers loads in the order in which they were asked for, so that one of
inputs takes as long as the weights ahead of it, whichever warp wants those.

Tensors of [1, 8, 4] have an element for each lane. Of a product of 16 rows by 8 tokens a lane
4 g + c holds the tokens 2 c and 2 c + 1 of the rows g and g + 8, and reads the inputs 8 c to
8 c + 7 of each piece: of those rows' weights, and of token g.
"""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tokenspeed_kernels.moe.packed_triton import E2M1, _piece, narrow, power
from tokenspeed_kernels.moe.pairs_triton import activate

# Tokens of a block.
PAIRS = gl.constexpr(8)
_LANES = gl.constexpr(gl.BlockedLayout([1, 1, 1], [1, 8, 4], [1, 1, 1], [2, 1, 0]))
_ASKED = gl.constexpr(gl.BlockedLayout([1, 1, 4], [1, 8, 4], [1, 1, 1], [2, 1, 0]))
# Both products of a piece: 16 rows by 16 inputs by 8 tokens each.
_PRODUCTS = gl.constexpr("""{
.reg .f32 zero;
mov.f32 zero, 0f00000000;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7},
    {$12, $13}, {zero, zero, zero, zero};
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$8, $9, $10, $11},
    {$14, $15}, {$0, $1, $2, $3};
}""")


@gluon.jit
def _four(words):
    """[.., 4] as four of [..]."""
    shape: gl.constexpr = words.shape[:-1]
    even, odd = gl.split(gl.reshape(words, shape + [2, 2]))  # noqa: RUF005
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return first, second, third, fourth


@gluon.jit
def _two(words):
    """[1, 2, 8, 4] as two of [1, 8, 4]."""
    low, high = gl.split(gl.permute(words, (0, 2, 3, 1)))
    return gl.convert_layout(low, _LANES, True), gl.convert_layout(high, _LANES, True)


@gluon.jit
def _words(tile):
    """What a lane has of a chunk, the four words of row g, then those of row 8 + g."""
    LOADED: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, 1], [1, 0])
    w0, w1, w2, w3 = _four(gl.reshape(tile.load(LOADED), [1, 2, 8, 4, 4]))
    w00, w10 = _two(w0)
    w01, w11 = _two(w1)
    w02, w12 = _two(w2)
    w03, w13 = _two(w3)
    return w00, w01, w02, w03, w10, w11, w12, w13


@gluon.jit
def _scales(tile):
    """The exponents of a chunk's four pieces for the lane's two rows, [1, 8, 1] each."""
    BY_LANE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 8]], [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]], [], [], [1, 16]
    )
    low, high = gl.split(gl.permute(gl.reshape(tile.load(BY_LANE), [1, 2, 8]), (0, 2, 1)))
    SLICE: gl.constexpr = gl.SliceLayout(2, _LANES)
    low, high = gl.convert_layout(low, SLICE, True), gl.convert_layout(high, SLICE, True)
    return low[:, :, None], high[:, :, None]


@gluon.jit
def _add(acc, words, x, low, high, PIECE: gl.constexpr):
    """The four sums of a lane and what a piece of `words` makes of `x`."""
    a0, a1, a2, a3, b0, b1, b2, b3 = words
    x0, x1, x2, x3 = x
    c0, c1, c2, c3 = gl.inline_asm_elementwise(
        _PRODUCTS, "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,r,r,r",
        [_piece(a0, PIECE, E2M1), _piece(b0, PIECE, E2M1), _piece(a1, PIECE, E2M1),
         _piece(b1, PIECE, E2M1), _piece(a2, PIECE, E2M1), _piece(b2, PIECE, E2M1),
         _piece(a3, PIECE, E2M1), _piece(b3, PIECE, E2M1), x0, x1, x2, x3],
        (gl.float32, gl.float32, gl.float32, gl.float32), True, 1,
    )  # fmt: skip
    s0, s1 = power(low, PIECE), power(high, PIECE)
    return acc[0] + c0 * s0, acc[1] + c1 * s0, acc[2] + c2 * s1, acc[3] + c3 * s1


@gluon.jit
def _add_chunk(acc, words, scales, x0, x1, x2, x3):
    """As `_add`, of all pieces of a chunk."""
    low, high = scales
    acc = _add(acc, words, x0, low, high, 0)
    acc = _add(acc, words, x1, low, high, 1)
    acc = _add(acc, words, x2, low, high, 2)
    return _add(acc, words, x3, low, high, 3)


@gluon.jit
def _inputs(tile):
    """What a lane has of a piece of 8 tokens [8, 16], two inputs each, as four. Of one token
    [1, 16] each of the eight columns of a product has the same."""
    LOADED: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [1, 1], [1, 0])
    x0, x1, x2, x3 = _four(gl.reshape(tile.load(LOADED), [1, tile.shape[0], 4, 4]))
    return (
        gl.convert_layout(x0, _LANES, True), gl.convert_layout(x1, _LANES, True),
        gl.convert_layout(x2, _LANES, True), gl.convert_layout(x3, _LANES, True),
    )  # fmt: skip


@gluon.jit
def _copy(DATA, stage, at, there, APART: gl.constexpr, SIZE: gl.constexpr):
    """Asks for chunk `at` of DATA [chunks, SIZE], and for the one that is APART from it."""
    LANES: gl.constexpr = min(SIZE // 4, 32)
    LOAD: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 32 // LANES, LANES], [1, 1, 1], [2, 1, 0])
    half = gl.arange(0, 2, gl.SliceLayout(1, gl.SliceLayout(2, LOAD)))
    one = gl.arange(0, 1, gl.SliceLayout(0, gl.SliceLayout(2, LOAD)))
    k = gl.arange(0, SIZE, gl.SliceLayout(0, gl.SliceLayout(1, LOAD)))
    # Of distances that the compiler knows, the last ones become part of the instruction.
    from_here = (DATA + at.to(gl.int64) * SIZE) + (one[None, :, None] + k[None, None, :])
    to = from_here + (half * (APART * SIZE))[:, None, None]
    async_copy.async_copy_global_to_shared(stage, to, mask=there)


@gluon.jit
def _ask_weights(tensors, ring, slot, at, there, APART: gl.constexpr):
    """Asks for the chunks `at` of an item's tiles, if they are `there`."""
    _copy(tensors[0], ring[0].index(slot), at, there, APART, 256)
    _copy(tensors[1], ring[1].index(slot), at, there, APART, 16)


@gluon.jit
def _ask_inputs(X, stage, at, behind):
    """Asks for the pieces [4, 8, 16] of a chunk of 8 tokens, two inputs each, that begin at `at`
    [8]; below 0: of nobody, 0. The last two are `behind` the others; where their weights are 0,
    they may be any of the same row."""
    piece = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, _ASKED)))
    k = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, _ASKED)))
    wide = piece.to(gl.int64) * 16
    from_here = gl.where(piece < 2, wide, wide - 32 + behind)
    to = (X + (at[None, :, None] + k[None, None, :])) + from_here[:, None, None]
    there = (at >= 0)[None, :, None]
    async_copy.async_copy_global_to_shared(stage, to, mask=there)


@gluon.jit
def _choice(CHOSEN, EXPERTS, item, last, EACH: gl.constexpr):
    """The block of an item, or of the `last` one, its expert, and the pairs at its places: those
    whose inputs a lane asks for, and those of its sums, even and odd ones."""
    block = gl.minimum(item, gl.maximum(last, 0)) // EACH
    m = gl.arange(0, PAIRS, gl.SliceLayout(0, gl.SliceLayout(2, _ASKED)))
    token = 2 * gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, _LANES)))[None, None, :]
    at = CHOSEN + block * PAIRS
    even, odd = gl.load(at + token), gl.load(at + token + 1)
    return block, gl.load(EXPERTS + block), gl.load(at + m), even, odd


@gluon.jit
def _rows(wanted, block, TOP: gl.constexpr, WIDTH: gl.constexpr, GATED: gl.constexpr):
    """Where the inputs of the pairs `wanted` [8] begin, in pairs of two: those of a token, or of a
    place. Far below 0 for a place without a pair."""
    m = gl.arange(0, PAIRS, gl.SliceLayout(0, gl.SliceLayout(2, _ASKED)))
    row = wanted // TOP if GATED else block * PAIRS + m
    return gl.where(wanted >= 0, row * (WIDTH // 2), -(1 << 30))


@gluon.jit
def _bias(BIAS, at, HAS_BIAS: gl.constexpr):
    """Of the outputs `at` [1, 8, 1] and those 8 behind; 0 where there is none."""
    if HAS_BIAS:
        low, high = gl.load(BIAS + at), gl.load(BIAS + at + 8)
    else:
        low = gl.zeros([1, 8, 1], gl.bfloat16, _LANES)
        high = low
    return low, high


@gluon.jit
def _finish_gated(
    gate, up, gate_bias, up_bias, block, even, odd, n, OUT, left, clamp, OUTPUTS: gl.constexpr,
    CLAMP: gl.constexpr,
):  # fmt: skip
    """Stores the outputs `n` [1, 8, 1] and those 8 behind, of sums of the gate and of up."""
    token = 2 * gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, _LANES)))[None, None, :]
    place = (block * PAIRS + token).to(gl.int64) * OUTPUTS
    for half in gl.static_range(2):
        for second in gl.static_range(2):
            one = gate[2 * half + second] * left + gate_bias[half].to(gl.float32)
            other = up[2 * half + second] * left + up_bias[half].to(gl.float32)
            # Rounded as an activation is before it is narrowed.
            inner = narrow(activate(one, other, clamp, CLAMP).to(gl.bfloat16))
            to = OUT + place + (n + (8 * half + second * OUTPUTS))
            gl.store(to, inner, mask=(odd if second else even) >= 0)


@gluon.jit
def _finish(
    acc, bias, pairs, weights, n, OUT, left, tokens, OUTPUTS: gl.constexpr, TOP: gl.constexpr
):  # fmt: skip
    """Stores what the `pairs` make of the outputs `n` [1, 8, 1] and those 8 behind, with their
    `weights`; even ones, and odd ones."""
    for second in gl.static_range(2):
        pair = pairs[second]
        place = gl.maximum(pair % TOP * tokens + pair // TOP, 0).to(gl.int64) * OUTPUTS
        for half in gl.static_range(2):
            made = (acc[2 * half + second] * left + bias[half].to(gl.float32)) * weights[second]
            at = n + 8 * half
            gl.store(OUT + place + at, made, mask=(pair >= 0) & (at >= 0))


@gluon.jit
def _multiply(
    tensors, ring, X, slot, begins, rows, there, APART: gl.constexpr, WIDTH: gl.constexpr
):  # fmt: skip
    """The sums of both tiles of an item, and the slot that is next. `begins`, `rows`: where the
    weights and inputs of this item and of the next one begin, if that is `there`."""
    CHUNKS: gl.constexpr = (WIDTH + 127) // 128
    STAGES: gl.constexpr = ring[0].shape[0]
    END: gl.constexpr = 32 if WIDTH % 128 == 0 else 0
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    words = ring[0]._reinterpret(gl.int32, [STAGES * 2, 1, 256], PLAIN)
    scales = ring[1]._reinterpret(gl.int32, [STAGES * 2, 1, 16], PLAIN)
    inputs = ring[2]._reinterpret(gl.int32, [STAGES * 4, 8, 16], PLAIN)
    begin, next_begin = begins
    row, next_row = rows
    zero = gl.zeros([1, 8, 4], gl.float32, _LANES)
    first = (zero, zero, zero, zero)
    second = (zero, zero, zero, zero)
    for chunk in range(CHUNKS):
        async_copy.wait_group(STAGES - 1)
        a, b = _words(words.index(slot * 2)), _words(words.index(slot * 2 + 1))
        a_scales = _scales(scales.index(slot * 2))
        b_scales = _scales(scales.index(slot * 2 + 1))
        x0, x1 = _inputs(inputs.index(slot * 4)), _inputs(inputs.index(slot * 4 + 1))
        x2 = _inputs(inputs.index(slot * 4 + 2))
        x3 = _inputs(inputs.index(slot * 4 + 3))
        asked = chunk + STAGES
        within = asked < CHUNKS
        at = gl.where(within, begin, next_begin - CHUNKS) + asked
        _ask_weights(tensors, ring, slot, at, within | there, APART)
        at_inputs = gl.where(within, row, next_row - 64 * CHUNKS) + 64 * asked
        end = (asked == CHUNKS - 1) | (asked == 2 * CHUNKS - 1)
        _ask_inputs(X, ring[2].index(slot), at_inputs, gl.where(end, END, 32))
        async_copy.commit_group()
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)
        first = _add_chunk(first, a, a_scales, x0, x1, x2, x3)
        second = _add_chunk(second, b, b_scales, x0, x1, x2, x3)
    return first, second, slot


@gluon.jit(do_not_specialize=["tokens"])
def _packed_stream(
    X, DATA, SCALES, BIAS, WEIGHTS, CHOSEN, EXPERTS, COUNT, OUT, left, clamp, tokens,
    WIDTH: gl.constexpr, OUTPUTS: gl.constexpr, TOP: gl.constexpr, STAGES: gl.constexpr,
    GATED: gl.constexpr, HAS_BIAS: gl.constexpr, CLAMP: gl.constexpr, NEIGHBOURS: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """One of both products. GATED: X has the tokens, OUT [places, OUTPUTS] float16 gets what is
    made of a tile of the gate and one of up. Otherwise X has the places, and OUT float32 a row for
    each pair, [TOP, tokens, OUTPUTS]; two tiles of it are an item. WIDTH is a multiple of 64.
    NEIGHBOURS: programs of a multiprocessor.

    The choice was made before the kernel ahead began, see `launch_triton`."""
    CHUNKS: gl.constexpr = (WIDTH + 127) // 128
    ROWS: gl.constexpr = 16 if GATED else 32  # outputs of an item
    EACH: gl.constexpr = OUTPUTS // ROWS  # items of a block
    WHOLE: gl.constexpr = OUTPUTS // 16 * (2 if GATED else 1)  # tiles of an expert
    APART: gl.constexpr = (OUTPUTS // 16 if GATED else 1) * CHUNKS
    END: gl.constexpr = 32 if WIDTH % 128 == 0 else 0  # how far behind, in a row's last chunk
    RING: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    words = gl.allocate_shared_memory(gl.int32, [STAGES, 2, 1, 256], RING)
    inputs = gl.allocate_shared_memory(gl.int32, [STAGES, 4, 8, 16], RING)
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, 2, 1, 16], RING)
    ring, tensors = (words, scales, inputs), (DATA, SCALES)
    items = gl.load(COUNT) * EACH
    # Neighbours, on one multiprocessor as a rule, go through a share of the items side by side.
    shares = gl.num_programs(0) // NEIGHBOURS
    share = gl.program_id(0) % shares
    item = share * items // shares + gl.program_id(0) // shares
    items = (share + 1) * items // shares
    block, expert, wanted, even, odd = _choice(CHOSEN, EXPERTS, item, items - 1, EACH)
    begin = (expert * WHOLE + item % EACH * (ROWS // 16)) * CHUNKS
    for stage in gl.static_range(STAGES):
        _ask_weights(tensors, ring, stage, begin + stage, item < items, APART)
    async_copy.commit_group()
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    X = X.to(gl.pointer_type(gl.int32))
    row = _rows(wanted, block, TOP, WIDTH, GATED)
    for stage in gl.static_range(STAGES):
        _ask_inputs(X, inputs.index(stage), row + 64 * stage, END if stage == CHUNKS - 1 else 32)
        async_copy.commit_group()
    slot = gl.to_tensor(0)
    g = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, _LANES)))[None, :, None]
    after = _choice(CHOSEN, EXPERTS, item + NEIGHBOURS, items - 1, EACH)
    while item < items:
        # What is looked up takes as long as the weights asked for before. So an item finds what it
        # begins with, and asks for what it ends with and for what the item after the next needs.
        next_item = item + NEIGHBOURS
        there = next_item < items
        next_block, next_expert, next_wanted, next_even, next_odd = after
        after = _choice(CHOSEN, EXPERTS, next_item + NEIGHBOURS, items - 1, EACH)
        next_begin = (next_expert * WHOLE + next_item % EACH * (ROWS // 16)) * CHUNKS
        next_row = _rows(next_wanted, next_block, TOP, WIDTH, GATED)
        n = item % EACH * ROWS + g
        bias = _bias(BIAS, expert * (WHOLE * 16) + n, HAS_BIAS)
        more_bias = _bias(BIAS, expert * (WHOLE * 16) + n + (OUTPUTS if GATED else 16), HAS_BIAS)
        if not GATED:
            even_weight = gl.load(WEIGHTS + even, mask=even >= 0, other=0.0)
            odd_weight = gl.load(WEIGHTS + odd, mask=odd >= 0, other=0.0)
        first, second, slot = _multiply(
            tensors, ring, X, slot, (begin, next_begin), (row, next_row), there, APART, WIDTH
        )
        if GATED:
            _finish_gated(
                first, second, bias, more_bias, block, even, odd, n, OUT, left, clamp, OUTPUTS,
                CLAMP,
            )  # fmt: skip
        else:
            pairs, by = (even, odd), (even_weight, odd_weight)
            _finish(first, bias, pairs, by, n, OUT, left, tokens, OUTPUTS, TOP)
            _finish(second, more_bias, pairs, by, n + 16, OUT, left, tokens, OUTPUTS, TOP)
        item = next_item
        block = next_block
        expert = next_expert
        even = next_even
        odd = next_odd
        begin = next_begin
        row = next_row
    async_copy.wait_group(0)
