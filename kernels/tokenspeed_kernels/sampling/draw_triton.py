"""One program per row on what may be kept of it; see `sample_triton`."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer
from tokenspeed_kernels.sampling.edits_triton import edits_of, read
from tokenspeed_kernels.sampling.gather_triton import (
    gather_few,
    gather_groups,
    kth_key,
    kth_of_runs,
)
from tokenspeed_kernels.sampling.scan_triton import (
    block_words,
    gumbel,
    is_of_all,
    keeps_all,
    order_key,
    token_word,
)

# Of the weights that are summed up in any order.
_UNIT = tl.constexpr(2.0**-23)
# Above every token.
_LAST = tl.constexpr(2**31 - 2)


@triton.jit
def _better(kept, score, token, best, drawn, vocab_size):
    """The best score so far and the token drawn by it, the lowest of equals."""
    score = tl.where(kept, score, float("-inf"))
    here = tl.max(score, 0)
    if here > best:
        drawn = tl.min(tl.where(score == here, token, vocab_size), 0)
        best = here
    return best, drawn


@triton.jit
def _winner(kept, scaled, token, seed, position, vocab_size):
    score = scaled + gumbel(token_word(seed, position, token))
    score = tl.where(kept, score, float("-inf"))
    best = tl.max(score, 0)
    return tl.min(tl.where(kept & (score == best), token, vocab_size), 0)


@triton.jit
def _fixed_weight(x, largest, sharpness):
    """e^((x - largest) sharpness) in units of `_UNIT`: no order of theirs changes a sum of 128. 0
    where `largest` is infinite."""
    base = tl.full([], 1.4426950408889634, tl.float32)
    weight = tl.exp2((x - largest) * (sharpness * base))
    return (tl.where(weight <= 1.0, weight, 0.0) * (1.0 / _UNIT) + 0.5).to(tl.int32)


@triton.jit
def _draw_few(
    x, token, over, weight, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
    seed, position, vocab_size,
):  # fmt: skip
    """The token drawn among gathered ones of fixed `weight`, -1 where they are not all there is:
    one of them is `over`. `mass` is the sum over all tokens of the row, and what top-p refers to
    where `whole_mass`."""
    scaled = (x - largest) * sharpness
    score = scaled + gumbel(token_word(seed, position, token))
    # Two sums at once, how many in the upper half. By way of a sum, so that what passes from one
    # thread to another is both.
    one = tl.join(weight.to(tl.int64), tl.full(weight.shape, 1 << 32, tl.int64))
    one = tl.sum(one, 1)
    higher = tl.sum(tl.where(x[:, None] > x[None, :], one[:, None], 0), 0)
    above = (higher >> 32).to(tl.int32)
    mass_above = higher.to(tl.int32).to(tl.float32) * _UNIT
    kept = (x > float("-inf")) & (above < top_k) & (scaled >= log_min_p)
    left = tl.sum(tl.where(kept, weight, 0), 0)
    left = tl.where(whole_mass, mass, left.to(tl.float32) * _UNIT)
    kept = kept & ((mass_above < top_p * left) | (top_p >= 1.0) | (above == 0))
    # The best score, and of equal ones the lowest token, in one search.
    last = tl.full([], _LAST, tl.int32)
    score = order_key(tl.where(kept, score, float("-inf"))).to(tl.int64) << 32
    best = score | (last - tl.where(kept, token, vocab_size)).to(tl.int64)
    best = tl.max(tl.where(over, 0x7FFFFFFFFFFFFFFF, best), 0)
    return tl.where(best == 0x7FFFFFFFFFFFFFFF, -1, last - best.to(tl.int32))


@triton.jit
def _draw_by_rank(
    VALUES, IDS, found, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
    seed, position, vocab_size, CAPACITY: tl.constexpr,
):  # fmt: skip
    """As `_draw_few`, for more tokens, `found` of them."""
    index = tl.arange(0, CAPACITY)
    live = index < found
    x = tl.load(VALUES + index, mask=live, other=float("-inf"))
    token = tl.load(IDS + index, mask=live, other=0)
    scaled = (x - largest) * sharpness
    above = tl.zeros([CAPACITY], tl.int32)
    mass_above = tl.zeros([CAPACITY], tl.float32)
    for other in tl.range(0, found, loop_unroll_factor=8):
        y = tl.load(VALUES + other)
        higher = y > x
        above += higher.to(tl.int32)
        mass_above += tl.where(higher, tl.exp((y - largest) * sharpness), 0.0)
    kept = live & (above < top_k) & (scaled >= log_min_p)
    left = tl.where(whole_mass, mass, tl.sum(tl.where(kept, tl.exp(scaled), 0.0), 0))
    kept = kept & ((mass_above < top_p * left) | (top_p >= 1.0) | (above == 0))
    return _winner(kept, scaled, token, seed, position, vocab_size)


@triton.jit
def _draw_by_bisection(
    VALUES, IDS, found, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
    seed, position, vocab_size, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `_draw_by_rank`, for thousands."""
    index = tl.arange(0, CAPACITY)
    live = index < found
    x = tl.load(VALUES + index, mask=live, other=float("-inf"))
    keys = tl.where(live, order_key(x), -2147483648)
    least = tl.full([], -2147483648, tl.int32)
    if top_k < vocab_size:
        least = kth_key(keys, top_k, 32)
    if top_p < 1.0:
        scaled = (x - largest) * sharpness
        kept = live & (scaled >= log_min_p) & (keys >= least)
        weight = tl.where(kept, tl.exp(scaled), 0.0)
        wanted = top_p * tl.where(whole_mass, mass, tl.sum(weight, 0))
        # The greatest key with at least the wanted mass above it: those above are kept.
        low = tl.full([], -2147483648, tl.int64)
        high = tl.full([], 2147483648, tl.int64)
        while high - low > 1:
            middle = low + (high - low) // 2
            more = tl.sum(tl.where(keys > middle.to(tl.int32), weight, 0.0), 0) >= wanted
            low = tl.where(more, middle, low)
            high = tl.where(more, high, middle)
        peak = order_key(largest).to(tl.int64)
        least = tl.maximum(least, tl.minimum(low + 1, peak).to(tl.int32))
    best = tl.full([], float("-inf"), tl.float32)
    drawn = tl.zeros([], tl.int32)
    for begin in range(0, found, BLOCK):
        some = begin + tl.arange(0, BLOCK)
        y = tl.load(VALUES + some, mask=some < found, other=float("-inf"))
        token = tl.load(IDS + some, mask=some < found, other=0)
        scaled = (y - largest) * sharpness
        kept = (some < found) & (order_key(y) >= least) & (scaled >= log_min_p)
        score = scaled + gumbel(token_word(seed, position, token))
        best, drawn = _better(kept, score, token, best, drawn, vocab_size)
    return drawn


@triton.jit
def _tally(logits, pivots, largest, sharpness, floor, vocab_size,
           PIVOTS: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """For each of int32 keys `pivots`: the tokens with a key >= it, or where MASS the mass of
    those above it, over tokens with a key >= floor."""
    counts = tl.zeros([PIVOTS, BLOCK], tl.float32)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        x = read(logits, token, token < vocab_size, begin)
        key = order_key(x)[None, :]
        if MASS:
            weight = tl.where(order_key(x) >= floor, tl.exp((x - largest) * sharpness), 0.0)
            counts += tl.where(key > pivots[:, None], weight[None, :], 0.0)
        else:
            counts += ((key >= pivots[:, None]) & (token < vocab_size)[None, :]).to(tl.float32)
    return tl.sum(counts, 1)


@triton.jit
def _search(logits, low, high, wanted, largest, sharpness, floor, vocab_size,
            PIVOTS: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """Bisects int64 keys low < high, PIVOTS at a time, until they are neighbours.

    Counts: low holds `wanted` tokens at or above it, high does not. Mass: below `wanted` lies
    above high, not above low. Returns (low, high)."""
    while high - low > 1:
        step = tl.arange(0, PIVOTS) + 1
        pivot = low + (high - low) * step // (PIVOTS + 1)
        tally = _tally(logits, pivot.to(tl.int32), largest, sharpness, floor, vocab_size,
                       PIVOTS, BLOCK, MASS)  # fmt: skip
        stays_low = tally >= wanted
        low = tl.maximum(low, tl.max(tl.where(stays_low, pivot, low), 0))
        high = tl.minimum(high, tl.min(tl.where(stays_low, high, pivot), 0))
    return low, high


@triton.jit
def _draw_in_full(
    logits, largest, sharpness, top_k, top_p, log_min_p, seed, position, vocab_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The draw over the whole row, thresholds found by bisection."""
    floor = tl.full([], -2147483648, tl.int64)
    peak = order_key(largest).to(tl.int64)
    if top_k < vocab_size:
        floor, _ = _search(logits, floor, peak + 1, top_k.to(tl.float32), largest, sharpness,
                           0, vocab_size, 8, 1024, False)  # fmt: skip
    if log_min_p > float("-inf"):
        # The least key that min-p keeps, by the very test that it is defined by.
        low, high = tl.full([], -2147483648, tl.int64), peak
        while high - low > 1:
            middle = (low + high) // 2
            bits = middle.to(tl.int32)
            value = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
            keeps = (value - largest) * sharpness >= log_min_p
            low = tl.where(keeps, low, middle)
            high = tl.where(keeps, middle, high)
        floor = tl.maximum(floor, high)
    if top_p < 1.0:
        least = floor.to(tl.int32)
        every = tl.full([1], -2147483648, tl.int32)
        mass = tl.sum(_tally(logits, every, largest, sharpness, least, vocab_size,
                             1, 1024, True), 0)  # fmt: skip
        _, nucleus = _search(logits, floor - 1, peak, top_p * mass, largest, sharpness, least,
                             vocab_size, 8, 1024, True)  # fmt: skip
        floor = tl.maximum(floor, nucleus)
    least = floor.to(tl.int32)
    best = tl.full([], float("-inf"), tl.float32)
    drawn = tl.zeros([], tl.int32)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        x = read(logits, token, token < vocab_size, begin)
        kept = (order_key(x) >= least) & (x > float("-inf"))
        if tl.max(kept.to(tl.int32), 0) > 0:
            score = (x - largest) * sharpness + gumbel(block_words(seed, position, begin, BLOCK))
            best, drawn = _better(kept, score, token, best, drawn, vocab_size)
    return drawn


@triton.jit
def _draw_of_groups(
    logits, chosen, bound, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
    seed, position, vocab_size, GROUP: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """The draw among the tokens of the few groups that are `chosen`, -1 where they may be FEW or
    more, or do not reach."""
    x, token, over = gather_few(logits, chosen, bound, vocab_size, GROUP, FEW)
    weight = _fixed_weight(x, largest, sharpness)
    drawn = _draw_few(
        x, token, over, weight, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
        seed, position, vocab_size,
    )  # fmt: skip
    if whole_mass:
        # The bound was a guess.
        reached = tl.sum(weight, 0).to(tl.float32) * _UNIT >= top_p * mass
        drawn = tl.where(reached, drawn, -1)
    return drawn


@triton.jit
def _draw_many(
    logits, GROUP_IDS, VALUES, IDS, num_groups, bound, largest, sharpness, top_k, top_p, log_min_p,
    mass, whole_mass, seed, position, vocab_size,
    GROUP: tl.constexpr, RANKED: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """The draw among the tokens of the listed groups; among all where that is not enough."""
    found, covered = gather_groups(
        logits, GROUP_IDS, VALUES, IDS, num_groups, bound, vocab_size, largest, sharpness,
        GROUP, CAPACITY, 32,
    )  # fmt: skip
    tl.debug_barrier()
    # Without top-k and min-p the bound was a guess; it holds if the nucleus lies above it.
    fits = (found <= CAPACITY) & ((covered >= top_p * mass) | (whole_mass == 0))
    if fits & (found <= RANKED):
        drawn = _draw_by_rank(
            VALUES, IDS, found, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
            seed, position, vocab_size, RANKED,
        )  # fmt: skip
    elif fits:
        drawn = _draw_by_bisection(
            VALUES, IDS, found, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
            seed, position, vocab_size, CAPACITY, 1024,
        )  # fmt: skip
    else:
        drawn = _draw_in_full(
            logits, largest, sharpness, top_k, top_p, log_min_p, seed, position, vocab_size, 1024
        )
    return drawn


@triton.jit
def _bound(group_keys, wanted, groups, largest, temperature, log_min_p, RUNS: tl.constexpr):
    """A key that is not above that of any token that is kept: by min-p, and by how many groups are
    `wanted` at least."""
    # A little below the exact floor: the exact test follows.
    floor = largest + temperature * log_min_p
    floor = floor - 1e-4 * temperature - 1e-6 * tl.abs(largest)
    # Above -inf, whose key is the least that a logit has.
    bound = order_key(tl.maximum(floor, -3.4e38))
    if wanted * 2 <= RUNS:
        bound = tl.maximum(bound, kth_of_runs(group_keys, wanted, RUNS))
    elif wanted <= groups:
        bound = tl.maximum(bound, kth_key(group_keys, wanted, 16))
    return bound


@triton.jit
def draw(
    LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEEDS, POSITIONS,
    SLOTS, COUNTS, REPETITION, PRESENCE, FREQUENCY, BIASED, BIAS, MASK_OF, MASKS,
    GROUPS, CHUNKS, GROUP_IDS, VALUES, IDS, OUT,
    vocab_size, row_stride, words, chunks, groups,
    CHUNKS_PAD: tl.constexpr, GROUPS_PAD: tl.constexpr, GROUP: tl.constexpr,
    STATS: tl.constexpr, FEW: tl.constexpr, RANKED: tl.constexpr, CAPACITY: tl.constexpr,
    GUESS: tl.constexpr, RUNS: tl.constexpr, EDITED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    after_producer(PDL)
    temperature = tl.load(TEMPERATURE + row)
    top_k, top_p, min_p = tl.load(TOP_K + row), tl.load(TOP_P + row), tl.load(MIN_P + row)
    seed, position = tl.load(SEEDS + row), tl.load(POSITIONS + row)
    c = tl.arange(0, CHUNKS_PAD)
    stats = CHUNKS + (row * chunks + c) * STATS
    there = c < chunks
    g = tl.arange(0, GROUPS_PAD)
    # All at once, whoever needs them: one wait instead of three. Sums may not be there.
    peaks = tl.load(stats, mask=there, other=float("-inf"))
    sums = tl.load(stats + 1, mask=there, other=0.0)
    maxima = tl.load(GROUPS + row * groups + g, mask=g < groups, other=float("-inf"))
    largest = tl.max(peaks, 0)
    sharpness = 1.0 / tl.where(temperature > 0.0, temperature, 1.0)
    drawn = tl.full([], -1, tl.int32)
    if temperature <= 0.0:
        firsts = tl.load(stats + 3, mask=there, other=0.0).to(tl.int32, bitcast=True)
        drawn = tl.min(tl.where(there & (peaks == largest), firsts, vocab_size), 0)
    elif keeps_all(top_k, top_p, min_p, vocab_size):
        score = tl.load(stats + 2, mask=there, other=float("-inf"))
        winners = tl.load(stats + 4, mask=there, other=0.0).to(tl.int32, bitcast=True)
        score = tl.where(peaks > float("-inf"), score + (peaks - largest) * sharpness,
                         float("-inf"))  # fmt: skip
        best = tl.max(score, 0)
        drawn = tl.min(tl.where(there & (score == best), winners, vocab_size), 0)
    else:
        values, ids = VALUES + row * CAPACITY, IDS + row * CAPACITY
        top_k = tl.where((top_k <= 0) | (top_k >= vocab_size), vocab_size, top_k)
        log_min_p = tl.where(min_p > 0.0, tl.log(tl.minimum(min_p, 1.0)), float("-inf"))
        list_ids = GROUP_IDS + row * groups
        group_keys = order_key(maxima)
        wanted = tl.where(top_k < vocab_size, top_k, tl.where(top_p < 1.0, GUESS, groups + 1))
        bound = _bound(group_keys, wanted, groups, largest, temperature, log_min_p, RUNS)
        chosen = (group_keys >= bound) & (g < groups)
        begin = LOGITS + row.to(tl.int64) * row_stride
        logits = (begin, edits_of(
            row, SLOTS, COUNTS, REPETITION, PRESENCE, FREQUENCY, BIASED, BIAS, MASK_OF, MASKS,
            vocab_size, words,
        )) if EDITED else (begin,)  # fmt: skip
        whole_mass = is_of_all(top_k, min_p, vocab_size)
        mass = tl.zeros([], tl.float32)
        if whole_mass:
            mass = tl.sum(
                tl.where(peaks > float("-inf"), sums * tl.exp((peaks - largest) * sharpness), 0.0),
                0,
            )
        # Of each group that is chosen at least one token survives.
        if (wanted < FEW) | (wanted > groups):
            drawn = _draw_of_groups(
                logits, chosen, bound, largest, sharpness, top_k, top_p, log_min_p, mass,
                whole_mass, seed, position, vocab_size, GROUP, FEW,
            )  # fmt: skip
        if drawn < 0:
            num_groups = tl.sum(chosen.to(tl.int32), 0)
            place = tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(list_ids + place, g, mask=chosen)
            tl.debug_barrier()
            drawn = _draw_many(
                logits, list_ids, values, ids, num_groups, bound, largest, sharpness, top_k, top_p,
                log_min_p, mass, whole_mass, seed, position, vocab_size, GROUP, RANKED, CAPACITY,
            )  # fmt: skip
    # Where nothing is a number, nothing was found.
    tl.store(OUT + row, tl.minimum(drawn, vocab_size - 1))
