"""Products of packed 4-bit weights with many tokens: tiles of rows are widened in registers and
meet tokens in shared memory, whose inputs were brought in the order of the words before."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer
from tokenspeed_kernels.moe.packed_triton import E2M1, narrow, weights
from tokenspeed_kernels.moe.pairs_triton import activate


@triton.jit
def _halves(pairs):
    low = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return low, (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _scales(SCALES, at, n, GROUPS: tl.constexpr, KIND: tl.constexpr):
    """float16 of the pieces, for rows `n` of tiles and chunks `at`."""
    if KIND == E2M1:
        four = tl.load(SCALES + at * 16 + n)
        s2, s0 = _halves((four << 3) & 0x7C007C00)
        s3, s1 = _halves((four << 10) & 0x7C007C00)
    else:
        at = at * (GROUPS * 16) + n
        s0, s1 = tl.load(SCALES + at), tl.load(SCALES + at + GROUPS // 4 * 16)
        s2 = tl.load(SCALES + at + GROUPS // 2 * 16)
        s3 = tl.load(SCALES + at + GROUPS * 3 // 4 * 16)
    return s0, s1, s2, s3


@triton.jit
def _add_many(
    acc, x0, x1, x2, x3, DATA, SCALES, tile, chunk, CHUNKS: tl.constexpr, T: tl.constexpr,
    GROUPS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """acc [T * 16, M] and what a chunk makes of its pieces [M, 32]."""
    t = tl.arange(0, T)[:, None, None]
    r = tl.arange(0, 2)[None, :, None]
    at = ((tile + t) * CHUNKS + chunk) * 256 + r * 128 + tl.arange(0, 128)[None, None, :]
    words = tl.load(DATA + at)
    words = tl.permute(tl.reshape(words, [T, 2, 8, 4, 4]), (0, 1, 2, 4, 3))
    words = tl.reshape(words, [T * 16, 16])
    n = tl.arange(0, T * 16)
    s0, s1, s2, s3 = _scales(SCALES, (tile + n // 16) * CHUNKS + chunk, n % 16, GROUPS, KIND)
    acc = tl.dot(weights(words, 0, KIND) * s0[:, None], tl.trans(x0), acc)
    acc = tl.dot(weights(words, 1, KIND) * s1[:, None], tl.trans(x1), acc)
    acc = tl.dot(weights(words, 2, KIND) * s2[:, None], tl.trans(x2), acc)
    return tl.dot(weights(words, 3, KIND) * s3[:, None], tl.trans(x3), acc)


@triton.jit
def _turned(n):
    """Where input `n` lies among those of its piece: see the module's text."""
    return n // 32 * 32 + (n // 4 % 2) * 16 + (n // 2 % 2) * 8 + (n // 8 % 4) * 2 + n % 2


@triton.jit
def _narrow(X, OUT, D: tl.constexpr, TURN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """X as float16; TURN: in the order in which `_gate_up_many` wants it."""
    after_producer(PDL)
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = narrow(tl.load(X + token * D + n, mask=n < D, other=0.0))
    if TURN:
        tl.store(OUT + token * D + _turned(n), x, mask=n < D)
    else:
        tl.store(OUT + token * D + n, x, mask=n < D)


@triton.jit
def _gate_up_many(
    X, DATA, SCALES, BIAS, PAIRS, EXPERTS, COUNT, INNER, left, clamp,
    D: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
    GROUPS: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, CLAMP: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `_gate_up`, of inputs in turned order to such."""
    after_producer(PDL)
    block = tl.program_id(1)
    if block >= tl.load(COUNT):
        return
    CHUNKS: tl.constexpr = (D + 127) // 128
    N: tl.constexpr = T * 16
    m = tl.arange(0, M)
    expert = tl.load(EXPERTS + block).to(tl.int64)
    pair = tl.load(PAIRS + block * M + m)
    live = (pair >= 0)[:, None]
    first = tl.program_id(0) * T
    tile = expert * (2 * F // 16) + first
    k = tl.arange(0, 32)[None, :]
    x_at = X + (tl.maximum(pair, 0) // TOP).to(tl.int64)[:, None] * D + k
    gate = tl.zeros([N, M], tl.float32)
    up = tl.zeros([N, M], tl.float32)
    for chunk in tl.range(0, CHUNKS, num_stages=STAGES):
        start = chunk * 128
        x0 = tl.load(x_at + start, mask=live & (start + k < D), other=0.0)
        x1 = tl.load(x_at + start + 32, mask=live & (start + 32 + k < D), other=0.0)
        x2 = tl.load(x_at + start + 64, mask=live & (start + 64 + k < D), other=0.0)
        x3 = tl.load(x_at + start + 96, mask=live & (start + 96 + k < D), other=0.0)
        gate = _add_many(gate, x0, x1, x2, x3, DATA, SCALES, tile, chunk, CHUNKS, T, GROUPS, KIND)
        up = _add_many(
            up, x0, x1, x2, x3, DATA, SCALES, tile + F // 16, chunk, CHUNKS, T, GROUPS, KIND
        )
    gate, up = gate * left, up * left
    n = first * 16 + tl.arange(0, N)
    if HAS_BIAS:
        at = expert * (2 * F) + n
        gate += tl.load(BIAS + at).to(tl.float32)[:, None]
        up += tl.load(BIAS + at + F).to(tl.float32)[:, None]
    made = narrow(activate(gate, up, clamp, CLAMP).to(tl.bfloat16))
    to = INNER + (block * M + m).to(tl.int64)[None, :] * F + _turned(n)[:, None]
    tl.store(to, made, mask=(pair >= 0)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def _down_many(
    INNER, DATA, SCALES, BIAS, WEIGHTS, PAIRS, EXPERTS, COUNT, MADE, left, tokens,
    D: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
    GROUPS: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """MADE: one row per pair, [TOP, tokens]."""
    after_producer(PDL)
    block = tl.program_id(1)
    if block >= tl.load(COUNT):
        return
    CHUNKS: tl.constexpr = (F + 127) // 128
    N: tl.constexpr = T * 16
    m = tl.arange(0, M)
    expert = tl.load(EXPERTS + block).to(tl.int64)
    pair = tl.load(PAIRS + block * M + m)
    live = (pair >= 0)[:, None]
    first = tl.program_id(0) * T
    tile = expert * (D // 16) + first
    k = tl.arange(0, 32)[None, :]
    x_at = INNER + (block * M + m).to(tl.int64)[:, None] * F + k
    acc = tl.zeros([N, M], tl.float32)
    for chunk in tl.range(0, CHUNKS, num_stages=STAGES):
        start = chunk * 128
        x0 = tl.load(x_at + start, mask=live & (start + k < F), other=0.0)
        x1 = tl.load(x_at + start + 32, mask=live & (start + 32 + k < F), other=0.0)
        x2 = tl.load(x_at + start + 64, mask=live & (start + 64 + k < F), other=0.0)
        x3 = tl.load(x_at + start + 96, mask=live & (start + 96 + k < F), other=0.0)
        acc = _add_many(acc, x0, x1, x2, x3, DATA, SCALES, tile, chunk, CHUNKS, T, GROUPS, KIND)
    acc *= left
    n = first * 16 + tl.arange(0, N)
    if HAS_BIAS:
        acc += tl.load(BIAS + expert * D + n).to(tl.float32)[:, None]
    acc *= tl.load(WEIGHTS + pair, mask=pair >= 0, other=0.0)[None, :]
    place = (pair % TOP) * tokens + pair // TOP
    to = MADE + tl.maximum(place, 0).to(tl.int64)[None, :] * D + n[:, None]
    tl.store(to, acc.to(MADE.dtype.element_ty), mask=(pair >= 0)[None, :])
