"""Products of packed 4-bit weights with few tokens: the warps of a program share its rows, each has
every so many chunks of 128 inputs, whose words go from memory to registers."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Tuples grow in loops that the compiler unrolls.
# mypy: disable-error-code="assignment"

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer
from tokenspeed_kernels.moe.packed_triton import E2M1, narrow, power, weights
from tokenspeed_kernels.moe.pairs_triton import activate


@triton.jit
def _words(DATA, tile, chunk, end, CHUNKS: tl.constexpr, W: tl.constexpr, T: tl.constexpr):
    """Words [W, T * 16, 16] of T tiles of rows and chunks `chunk` to `chunk` + W, 0 from chunk
    `end` on."""
    w = tl.arange(0, W)[:, None, None, None]
    t = tl.arange(0, T)[None, :, None, None]
    r = tl.arange(0, 2)[None, None, :, None]
    at = ((tile + t) * CHUNKS + chunk + w) * 256 + r * 128 + tl.arange(0, 128)[None, None, None, :]
    words = tl.load(DATA + at, mask=chunk + w < end, other=0, eviction_policy="evict_first")
    words = tl.permute(tl.reshape(words, [W, T, 2, 8, 4, 2, 2]), (0, 1, 2, 3, 6, 4, 5))
    return tl.reshape(words, [W, T * 16, 16])


@triton.jit
def _scales(SCALES, at, n, there, GROUPS: tl.constexpr, KIND: tl.constexpr):
    """float32 of the pieces, for rows `n` of tiles and chunks `at`."""
    if KIND == E2M1:
        # Where there is no chunk, its words are 0.
        four = tl.load(SCALES + at * 16 + n, mask=there, other=0)
        s0, s1, s2, s3 = power(four, 0), power(four, 1), power(four, 2), power(four, 3)
    else:
        at = at * (GROUPS * 16) + n
        s0 = tl.load(SCALES + at, mask=there, other=0.0).to(tl.float32)
        s1 = tl.load(SCALES + at + GROUPS // 4 * 16, mask=there, other=0.0).to(tl.float32)
        s2 = tl.load(SCALES + at + GROUPS // 2 * 16, mask=there, other=0.0).to(tl.float32)
        s3 = tl.load(SCALES + at + GROUPS * 3 // 4 * 16, mask=there, other=0.0).to(tl.float32)
    return s0, s1, s2, s3


@triton.jit
def _inputs(X, row, live, k, width, W: tl.constexpr, M: tl.constexpr):
    """[W, 32, M] of 32 inputs from `k` [W] on. `row`, `live` [8, M / 8]: where the rows
    begin, of token 8 j + i at [i, j]."""
    at = k[None, :, None, None] + tl.arange(0, 32)[None, None, None, :]
    there = live[:, None, :, None] & (at < width)
    x = tl.load(X + row[:, None, :, None] + at, mask=there, other=0.0)
    x = tl.permute(tl.reshape(x, [8, W, M // 8, 4, 2, 2, 2]), (1, 5, 3, 4, 6, 2, 0))
    return tl.reshape(x, [W, 32, M])


@triton.jit
def _add(
    acc, x0, x1, x2, x3, words, SCALES, tile, chunk, CHUNKS: tl.constexpr, W: tl.constexpr,
    T: tl.constexpr, GROUPS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """acc [W, T * 16, M] and what `words` of chunks `chunk` to `chunk` + W make of the four pieces
    of inputs."""
    n = tl.arange(0, T * 16)[None, :]
    w = chunk + tl.arange(0, W)[:, None]
    at, there = (tile + n // 16) * CHUNKS + w, w < CHUNKS
    s0, s1, s2, s3 = _scales(SCALES, at, n % 16, there, GROUPS, KIND)
    acc += tl.dot(weights(words, 0, KIND), x0) * s0[:, :, None]
    acc += tl.dot(weights(words, 1, KIND), x1) * s1[:, :, None]
    acc += tl.dot(weights(words, 2, KIND), x2) * s2[:, :, None]
    acc += tl.dot(weights(words, 3, KIND), x3) * s3[:, :, None]
    return acc


@triton.jit
def _pairs(PAIRS, block, places, M: tl.constexpr, ONE: tl.constexpr):
    """The pairs at `places` of a block, -1 for none."""
    if ONE:
        pairs = tl.where(places == 0, block, -1)
    else:
        pairs = tl.load(PAIRS + block * M + places)
    return pairs


@triton.jit
def _gate_up(
    X, DATA, SCALES, BIAS, PAIRS, EXPERTS, COUNT, INNER, left, clamp,
    D: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
    W: tl.constexpr, GROUPS: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    CLAMP: tl.constexpr, ONE: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Tiles of rows: for each expert those of its gate, then those of up. ONE: one token, whose
    choices are the blocks. They were made before `_narrow` began: EARLY, the first weights are on
    their way while that one ends."""
    if not EARLY:
        after_producer(PDL)
    block = tl.program_id(1)
    CHUNKS: tl.constexpr = (D + 127) // 128
    end = CHUNKS
    if not ONE:
        end = tl.where(block < tl.load(COUNT), CHUNKS, 0)
    expert = tl.load(EXPERTS + block).to(tl.int64)
    places = tl.arange(0, 8)[:, None] + 8 * tl.arange(0, M // 8)[None, :]
    pair = _pairs(PAIRS, block, places, M, ONE)
    row, live = (tl.maximum(pair, 0) // TOP).to(tl.int64) * D, pair >= 0
    first = tl.program_id(0) * T
    tile = expert * (2 * F // 16) + first
    w = tl.arange(0, W)
    gate = tl.zeros([W, T * 16, M], tl.float32)
    up = tl.zeros([W, T * 16, M], tl.float32)
    STEPS: tl.constexpr = (CHUNKS + W - 1) // W
    gates = ()
    ups = ()
    for step in tl.static_range(min(AHEAD, STEPS)):
        gates = gates + (_words(DATA, tile, step * W, end, CHUNKS, W, T),)  # noqa: RUF005
        ups = ups + (_words(DATA, tile + F // 16, step * W, end, CHUNKS, W, T),)  # noqa: RUF005
    if EARLY:
        after_producer(PDL)
    if end == 0:
        return
    for step in tl.static_range(STEPS):
        if step + AHEAD < STEPS:
            gates = gates + (_words(DATA, tile, (step + AHEAD) * W, CHUNKS, CHUNKS, W, T),)  # noqa: RUF005
            ups = ups + (_words(DATA, tile + F // 16, (step + AHEAD) * W, CHUNKS, CHUNKS, W, T),)  # noqa: RUF005
        k = (step * W + w) * 128
        x0 = _inputs(X, row, live, k, D, W, M)
        x1 = _inputs(X, row, live, k + 32, D, W, M)
        x2 = _inputs(X, row, live, k + 64, D, W, M)
        x3 = _inputs(X, row, live, k + 96, D, W, M)
        gate = _add(
            gate, x0, x1, x2, x3, gates[step], SCALES, tile, step * W, CHUNKS, W, T, GROUPS, KIND
        )
        up = _add(
            up, x0, x1, x2, x3, ups[step], SCALES, tile + F // 16, step * W, CHUNKS, W, T, GROUPS,
            KIND,
        )  # fmt: skip
    n = first * 16 + tl.arange(0, T * 16)
    gate_sum, up_sum = tl.sum(gate, 0) * left, tl.sum(up, 0) * left
    if HAS_BIAS:
        at = expert * (2 * F) + n
        gate_sum += tl.load(BIAS + at).to(tl.float32)[:, None]
        up_sum += tl.load(BIAS + at + F).to(tl.float32)[:, None]
    # Rounded as an activation is before it is narrowed.
    made = narrow(activate(gate_sum, up_sum, clamp, CLAMP).to(tl.bfloat16))
    m = tl.arange(0, M)
    to = INNER + (block * M + m).to(tl.int64)[None, :] * F + n[:, None]
    tl.store(to, made, mask=(_pairs(PAIRS, block, m, M, ONE) >= 0)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def _down(
    INNER, DATA, SCALES, BIAS, WEIGHTS, PAIRS, EXPERTS, COUNT, MADE, left, tokens,
    D: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
    W: tl.constexpr, GROUPS: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    ONE: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """MADE: one row per pair, [TOP, tokens]. The choice was made before `_gate_up` began: the first
    weights are on their way while that one ends."""
    block = tl.program_id(1)
    CHUNKS: tl.constexpr = (F + 127) // 128
    end = CHUNKS
    if not ONE:
        end = tl.where(block < tl.load(COUNT), CHUNKS, 0)
    expert = tl.load(EXPERTS + block).to(tl.int64)
    places = tl.arange(0, 8)[:, None] + 8 * tl.arange(0, M // 8)[None, :]
    live = _pairs(PAIRS, block, places, M, ONE) >= 0
    row = (block * M + places).to(tl.int64) * F
    first = tl.program_id(0) * T
    tile = expert * (D // 16) + first
    w = tl.arange(0, W)
    acc = tl.zeros([W, T * 16, M], tl.float32)
    STEPS: tl.constexpr = (CHUNKS + W - 1) // W
    all_words = ()
    for step in tl.static_range(min(AHEAD, STEPS)):
        all_words = all_words + (_words(DATA, tile, step * W, end, CHUNKS, W, T),)  # noqa: RUF005
    after_producer(PDL)
    if end == 0:
        return
    for step in tl.static_range(STEPS):
        if step + AHEAD < STEPS:
            all_words = all_words + (_words(DATA, tile, (step + AHEAD) * W, end, CHUNKS, W, T),)  # noqa: RUF005
        k = (step * W + w) * 128
        x0 = _inputs(INNER, row, live, k, F, W, M)
        x1 = _inputs(INNER, row, live, k + 32, F, W, M)
        x2 = _inputs(INNER, row, live, k + 64, F, W, M)
        x3 = _inputs(INNER, row, live, k + 96, F, W, M)
        acc = _add(
            acc, x0, x1, x2, x3, all_words[step], SCALES, tile, step * W, CHUNKS, W, T, GROUPS, KIND
        )
    n = first * 16 + tl.arange(0, T * 16)
    made = tl.sum(acc, 0) * left
    if HAS_BIAS:
        made += tl.load(BIAS + expert * D + n).to(tl.float32)[:, None]
    pair = _pairs(PAIRS, block, tl.arange(0, M), M, ONE)
    made *= tl.load(WEIGHTS + pair, mask=pair >= 0, other=0.0)[None, :]
    place = (pair % TOP) * tokens + pair // TOP
    to = MADE + tl.maximum(place, 0).to(tl.int64)[None, :] * D + n[:, None]
    tl.store(to, made.to(MADE.dtype.element_ty), mask=(pair >= 0)[None, :])
