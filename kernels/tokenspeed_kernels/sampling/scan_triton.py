"""One pass over the logits: what the selecting kernels need of every chunk and group.

A chunk is CHUNK consecutive tokens, a group GROUP of them. Per group its largest logit; per chunk
the largest logit, its lowest id, sum of e^((x - largest) / temperature) and, instead of the sum
for rows that keep every token, the winner of the draw within the chunk. The k-th largest of the
groups' maxima is never above the k-th largest logit, so few groups need to be read again.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer

CHUNK = 4096
GROUP = 128
# Floats per chunk: largest, sum, score of the winner; ids as int32 bits: of the largest, winner.
STATS = 5


@triton.jit
def order_key(x):
    """int32 in the order of float32 `x`; -0.0 equals 0.0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def gumbel(word):
    """-log(-log(u)) for u = (word + 0.5) / 2^32, `word` uint32, to a few float32 ulp.

    Above one half, u would round: there -log(u) is taken from v = 1 - u, by its series where v is
    small and the logarithm, accurate to 2^-22 in itself, would not be accurate enough.
    """
    upper = word >= 0x80000000
    rest = tl.where(upper, word ^ 0xFFFFFFFF, word)
    # rest < 2^31 splits into halves that convert exactly.
    v = ((rest >> 16).to(tl.float32) * 65536.0 + ((rest & 0xFFFF).to(tl.float32) + 0.5)) * (
        1.0 / 4294967296.0
    )
    series = v * (1.0 / 9.0) + 1.0 / 8.0
    series = series * v + 1.0 / 7.0
    series = series * v + 1.0 / 6.0
    series = series * v + 1.0 / 5.0
    series = series * v + 1.0 / 4.0
    series = series * v + 1.0 / 3.0
    series = series * v + 1.0 / 2.0
    series = series * v + 1.0
    logarithm = -tl.log(tl.where(upper, 1.0 - v, v))
    return -tl.log(tl.where(upper & (v < 0.125), v * series, logarithm))


@triton.jit
def block_words(seed, position, first, COUNT: tl.constexpr):
    """Random words of tokens first to first + COUNT, `first` a multiple of 4."""
    counter = (first // 4 + tl.arange(0, COUNT // 4)).to(tl.uint32)
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = tl.zeros_like(counter)
    a, b, c, d = tl.philox(seed, counter, zero + low, zero + high, zero)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (COUNT,))


@triton.jit
def keeps_all(top_k, top_p, min_p, vocab_size):
    return ((top_k <= 0) | (top_k >= vocab_size)) & (top_p >= 1.0) & (min_p <= 0.0)


@triton.jit
def scan(
    LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEEDS, POSITIONS, GROUPS, CHUNKS,
    vocab_size, row_stride,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, STATS: tl.constexpr, DRAW: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    after_producer(PDL)
    x = tl.load(
        LOGITS + row.to(tl.int64) * row_stride + token,
        mask=token < vocab_size, other=float("-inf"),
    )  # fmt: skip
    if DRAW:
        # With the logits, not one after the other behind them.
        temperature, min_p = tl.load(TEMPERATURE + row), tl.load(MIN_P + row)
        top_k, top_p = tl.load(TOP_K + row), tl.load(TOP_P + row)
    groups = tl.max(tl.reshape(x, (CHUNK // GROUP, GROUP)), 1)
    group = tl.arange(0, CHUNK // GROUP)
    tl.store(GROUPS + (row * chunks + chunk) * (CHUNK // GROUP) + group, groups)
    largest = tl.max(groups, 0)
    first = tl.min(tl.where(x == largest, token, vocab_size), 0)
    stats = CHUNKS + (row * chunks + chunk) * STATS
    tl.store(stats, largest)
    tl.store(stats + 3, first.to(tl.float32, bitcast=True))
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    if DRAW:
        if temperature > 0.0:
            scaled = (x - shift) * (1.0 / temperature)
            if keeps_all(top_k, top_p, min_p, vocab_size):
                seed, position = tl.load(SEEDS + row), tl.load(POSITIONS + row)
                score = scaled + gumbel(block_words(seed, position, chunk * CHUNK, CHUNK))
                best = tl.max(score, 0)
                tl.store(stats + 2, best)
                winner = tl.min(tl.where(score == best, token, vocab_size), 0)
                tl.store(stats + 4, winner.to(tl.float32, bitcast=True))
            else:
                tl.store(stats + 1, tl.sum(tl.exp(scaled), 0))
    else:
        tl.store(stats + 1, tl.sum(tl.exp(x - shift), 0))
