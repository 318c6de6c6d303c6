"""Products of packed e2m1 weights with one token on Hopper, in Gluon. As in `packed_stream_gluon`
programs are one warp with a ring of its own. Each has one item, small enough that all of them run
at once: eight outputs of the gate and of up, or sixteen of down along a part of the inputs."""

# Gluon functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tokenspeed_kernels.moe.packed_stream_gluon import _LANES, _add_chunk, _inputs, _scales, _words
from tokenspeed_kernels.moe.packed_triton import narrow
from tokenspeed_kernels.moe.pairs_triton import activate


@gluon.jit
def _copy(FROM, stage, there, APART: gl.constexpr, SIZE: gl.constexpr):
    """Asks for SIZE words at FROM and as many that are APART from them, if they are `there`."""
    LANES: gl.constexpr = min(SIZE // 4, 32)
    LOAD: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 32 // LANES, LANES], [1, 1, 1], [2, 1, 0])
    half = gl.arange(0, 2, gl.SliceLayout(1, gl.SliceLayout(2, LOAD)))
    one = gl.arange(0, 1, gl.SliceLayout(0, gl.SliceLayout(2, LOAD)))
    k = gl.arange(0, SIZE, gl.SliceLayout(0, gl.SliceLayout(1, LOAD)))
    # Distances that the compiler knows become part of the instruction.
    to = (FROM + (one[None, :, None] + k[None, None, :])) + (half * APART)[:, None, None]
    async_copy.async_copy_global_to_shared(stage, to, mask=there)


@gluon.jit
def _ask_inputs(FROM, stage, there, behind):
    """Asks for the pieces [4, 1, 16] of a chunk, two inputs each, if they are `there`. The last two
    are `behind` the others; where their weights are 0, they may be any of the same row."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 1, 4], [4, 2, 4], [1, 1, 1], [2, 1, 0])
    piece = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, LOAD)))
    one = gl.arange(0, 1, gl.SliceLayout(0, gl.SliceLayout(2, LOAD)))
    k = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, LOAD)))
    at = gl.where(piece < 2, piece * 16, piece * 16 - 32 + behind)
    to = FROM + (at[:, None, None] + one[None, :, None] + k[None, None, :])
    async_copy.async_copy_global_to_shared(stage, to, mask=there)


@gluon.jit
def _bias(BIAS, at, there, HAS_BIAS: gl.constexpr):
    if HAS_BIAS:
        found = gl.load(BIAS + at, mask=there & (at >= 0), other=0.0)
    else:
        found = gl.zeros([1, 8, 1], gl.bfloat16, _LANES)
    return found


@gluon.jit
def _multiply(
    DATA, SCALES, X, ring, at, begin, count,
    CHUNKS: gl.constexpr, APART: gl.constexpr, END: gl.constexpr,
):  # fmt: skip
    """The sums of an item along its `count` chunks from `begin` on, of which all stages of the ring
    were asked for. `at`: where its weights begin, in halves of a chunk."""
    words, scales, inputs = ring
    STAGES: gl.constexpr = words.shape[0]
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    each_words = words._reinterpret(gl.int32, [STAGES, 1, 256], PLAIN)
    each_scales = scales._reinterpret(gl.int32, [STAGES, 1, 16], PLAIN)
    each_inputs = inputs._reinterpret(gl.int32, [STAGES * 4, 1, 16], PLAIN)
    slot = gl.to_tensor(0)
    zero = gl.zeros([1, 8, 4], gl.float32, _LANES)
    acc = (zero, zero, zero, zero)
    for chunk in range(count):
        async_copy.wait_group(STAGES - 1)
        w, s = _words(each_words.index(slot)), _scales(each_scales.index(slot))
        x0, x1 = _inputs(each_inputs.index(slot * 4)), _inputs(each_inputs.index(slot * 4 + 1))
        x2 = _inputs(each_inputs.index(slot * 4 + 2))
        x3 = _inputs(each_inputs.index(slot * 4 + 3))
        asked = chunk + STAGES
        there = asked < count
        _copy(DATA + (at + 2 * asked) * 128, words.index(slot), there, APART * 128, 128)
        _copy(SCALES + (at + 2 * asked) * 8, scales.index(slot), there, APART * 8, 8)
        behind = gl.where(begin + asked == CHUNKS - 1, END, 32)
        _ask_inputs(X + 64 * asked, inputs.index(slot), there, behind)
        async_copy.commit_group()
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)
        acc = _add_chunk(acc, w, s, x0, x1, x2, x3)
    return acc


@gluon.jit
def _packed_one(
    X, DATA, SCALES, BIAS, WEIGHTS, EXPERTS, OUT, left, clamp,
    WIDTH: gl.constexpr, OUTPUTS: gl.constexpr, TOP: gl.constexpr, STAGES: gl.constexpr,
    SPLITS: gl.constexpr, GATED: gl.constexpr, HAS_BIAS: gl.constexpr, CLAMP: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """One of both products. GATED: of the token X to OUT [TOP, OUTPUTS] float16, SPLITS is 1.
    Otherwise of X [TOP, WIDTH] to OUT [SPLITS, TOP, OUTPUTS] float32, to be added up. WIDTH is a
    multiple of 64.

    The choice was made before the kernel ahead began, see `launch_triton`."""
    CHUNKS: gl.constexpr = (WIDTH + 127) // 128
    LONG: gl.constexpr = (CHUNKS + SPLITS - 1) // SPLITS
    EACH: gl.constexpr = OUTPUTS // 8 if GATED else OUTPUTS // 16 * SPLITS  # items of an expert
    WHOLE: gl.constexpr = OUTPUTS // 16 * (2 if GATED else 1)  # tiles of an expert
    # Eight rows are half of a tile: those of the gate and of up, or the halves of one tile.
    APART: gl.constexpr = OUTPUTS // 16 * CHUNKS * 2 if GATED else 1
    END: gl.constexpr = 32 if WIDTH % 128 == 0 else 0  # how far behind, in the row's last chunk
    RING: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    words = gl.allocate_shared_memory(gl.int32, [STAGES, 2, 1, 128], RING)
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, 2, 1, 8], RING)
    inputs = gl.allocate_shared_memory(gl.int32, [STAGES, 4, 1, 16], RING)
    choice, nth = gl.program_id(0) // EACH, gl.program_id(0) % EACH
    expert = gl.load(EXPERTS + choice)
    if GATED:
        tile, half, split = nth // 2, nth % 2, 0
    else:
        tile, half, split = nth // SPLITS, 0, nth % SPLITS
    begin = split * LONG
    count = gl.minimum(CHUNKS - begin, LONG)
    at = ((expert * WHOLE + tile) * CHUNKS + begin).to(gl.int64) * 2 + half
    for stage in gl.static_range(STAGES):
        _copy(DATA + (at + 2 * stage) * 128, words.index(stage), stage < count, APART * 128, 128)
        _copy(SCALES + (at + 2 * stage) * 8, scales.index(stage), stage < count, APART * 8, 8)
    async_copy.commit_group()
    g = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, _LANES)))[None, :, None]
    n = tile * 16 + half * 8 + g
    first_bias = _bias(BIAS, expert * (WHOLE * 16) + n, split == 0, HAS_BIAS)
    second_bias = _bias(
        BIAS, expert * (WHOLE * 16) + n + (OUTPUTS if GATED else 8), split == 0, HAS_BIAS
    )
    weight = gl.load(WEIGHTS + choice)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    X = X.to(gl.pointer_type(gl.int32)) + begin * 64
    if not GATED:
        X += choice * (WIDTH // 2)
    for stage in gl.static_range(STAGES):
        behind = gl.where(begin + stage == CHUNKS - 1, END, 32)
        _ask_inputs(X + 64 * stage, inputs.index(stage), stage < count, behind)
        async_copy.commit_group()
    ring = (words, scales, inputs)
    acc = _multiply(DATA, SCALES, X, ring, at, begin, count, CHUNKS, APART, END)
    async_copy.wait_group(0)
    # All columns are the same; lanes of the first two store them.
    column = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, _LANES)))[None, None, :] + 0 * n
    first = acc[0] * left + first_bias.to(gl.float32)
    second = acc[2] * left + second_bias.to(gl.float32)
    if GATED:
        # Rounded as an activation is before it is narrowed.
        inner = narrow(activate(first, second, clamp, CLAMP).to(gl.bfloat16))
        gl.store(OUT + choice * OUTPUTS + n + 0 * column, inner, mask=column == 0)
    else:
        to = OUT + (split * TOP + choice) * OUTPUTS + n + 0 * column
        gl.store(to, first * weight, mask=column == 0)
        gl.store(to + 8, second * weight, mask=column == 0)
