"""The draw in Triton: one pass over the logits, then one program per row on what may be kept.

A filtered row gathers the tokens that can survive (a lower bound on the threshold comes from the
groups' maxima), finds the thresholds among them and draws among the kept ones: few are ranked
against each other, thousands bisected in registers. Rows whose survivors do not fit (a nucleus of
tens of thousands) are searched in full by the same program.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch
from tokenspeed_kernels.sampling.scan_triton import (
    CHUNK,
    GROUP,
    STATS,
    block_words,
    gumbel,
    keeps_all,
    key_value,
    order_key,
    scan,
    token_word,
)

# Tokens that one program ranks against each other at once, or one after the other, and that it
# bisects. More are searched in the logits themselves.
_FEW = 128
_RANKED = 512
_CAPACITY = 4096
# Groups whose maxima bound a nucleus from below where there is no top-k.
_GUESS = 512
# Runs of groups whose maxima bound a small top-k.
_RUNS = 128
# Groups that are read at once.
_TURN = 32
# Of the weights that are summed up in any order.
_UNIT = tl.constexpr(2.0**-23)
_WARPS = 8


@triton.jit
def _kth_of_runs(keys, k, SCRATCH, RUNS: tl.constexpr):
    """Not above the k-th largest of int32 `keys`, nor below the k-th largest maximum of RUNS runs
    of them: by one comparison of all with all, where `kth_key` waits for one sum after the other.
    SCRATCH: room for RUNS of them."""
    tops = tl.max(tl.reshape(keys, (RUNS, keys.shape[0] // RUNS)), 1)
    run = tl.arange(0, RUNS)
    tl.store(SCRATCH + run, tops)
    tl.debug_barrier()
    # Read anew: values for all threads are in no register of theirs.
    every, top = tl.load(SCRATCH + run[:, None]), tl.load(SCRATCH + run)
    above = tl.sum((every > top[None, :]).to(tl.int32), 0)
    least = tl.min(tl.where(above < k, top, 2147483647), 0)
    tl.debug_barrier()
    return least


@triton.jit
def kth_key(keys, k, STEPS: tl.constexpr):
    """The k-th largest of int32 `keys`, its low 32 - STEPS bits cleared downwards."""
    low = tl.full([], -2147483648, tl.int64)
    high = tl.full([], 2147483648, tl.int64)
    # By what it found, so that the compiler does not write the loop out.
    while high - low > 1 << (32 - STEPS):
        middle = low + (high - low) // 2
        enough = tl.sum((keys >= middle.to(tl.int32)).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low.to(tl.int32)


@triton.jit
def _some_groups(
    LOGITS, GROUP_IDS, begin, num_groups, vocab_size, GROUP: tl.constexpr, TURN: tl.constexpr
):
    """Logits [TURN, GROUP] of the listed groups from `begin` on, their tokens, and which are."""
    index = begin + tl.arange(0, TURN)
    group = tl.load(GROUP_IDS + index, mask=index < num_groups, other=0)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = (index < num_groups)[:, None] & (token < vocab_size)
    return tl.load(LOGITS + token, mask=inside, other=float("-inf")), token, inside


@triton.jit
def gather_groups(
    LOGITS, GROUP_IDS, VALUES, IDS, num_groups, bound, vocab_size, largest, sharpness,
    GROUP: tl.constexpr, CAPACITY: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Appends the tokens of the listed groups whose key is at least `bound` to VALUES and IDS, up
    to CAPACITY of them; gives how many there are, and their sum of e^((x - largest) sharpness)."""
    found = tl.zeros([], tl.int32)
    mass = tl.zeros([], tl.float32)
    for begin in range(0, num_groups, TURN):
        x, token, inside = _some_groups(
            LOGITS, GROUP_IDS, begin, num_groups, vocab_size, GROUP, TURN
        )
        taken = ((order_key(x) >= bound) & inside).to(tl.int32)
        of_group = tl.sum(taken, 1)
        place = found + (tl.cumsum(of_group, 0) - of_group)[:, None] + tl.cumsum(taken, 1) - taken
        kept = (taken > 0) & (place < CAPACITY)
        tl.store(VALUES + place, x, mask=kept)
        tl.store(IDS + place, token, mask=kept)
        found += tl.sum(of_group, 0)
        weight = tl.exp((x - largest) * sharpness)
        mass += tl.sum(tl.sum(tl.where(taken > 0, weight, 0.0), 1), 0)
    return found, mass


@triton.jit
def _winner(kept, scaled, token, seed, position, vocab_size):
    score = scaled + gumbel(token_word(seed, position, token))
    score = tl.where(kept, score, float("-inf"))
    best = tl.max(score, 0)
    return tl.min(tl.where(kept & (score == best), token, vocab_size), 0)


@triton.jit
def _take_place(COUNT, taken):
    """A number of its own for each element that is `taken`, from COUNT on.

    Counted in float32: of integers the assembler adds up a warp's first, and waits for each sum.
    """
    one = taken.to(tl.float32)
    place = tl.atomic_add(
        COUNT + taken.to(tl.int32) * 0, one, mask=taken, sem="relaxed", scope="cta"
    )
    return place.to(tl.int32)


@triton.jit
def _gather_few(
    LOGITS, GROUP_IDS, VALUES, IDS, FOUND, num_groups, least, vocab_size,
    GROUP: tl.constexpr, CAPACITY: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """As `gather_groups` those of at least the logit `least`, but in no order; FOUND, 0 before,
    counts them. A few atomics are done long before a prefix sum of all that was read."""
    for begin in range(0, num_groups, TURN):
        x, token, _ = _some_groups(LOGITS, GROUP_IDS, begin, num_groups, vocab_size, GROUP, TURN)
        taken = x >= least
        place = _take_place(FOUND, taken)
        kept = taken & (place < CAPACITY)
        tl.store(VALUES + place, x, mask=kept)
        tl.store(IDS + place, token, mask=kept)


@triton.jit
def _fixed_weight(x, largest, sharpness):
    """e^((x - largest) sharpness) in units of `_UNIT`: no order of theirs changes a sum of 128."""
    base = tl.full([], 1.4426950408889634, tl.float32)
    return (tl.exp2((x - largest) * (sharpness * base)) * (1.0 / _UNIT) + 0.5).to(tl.int32)


@triton.jit
def _draw_few(
    VALUES, IDS, found, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
    seed, position, vocab_size, CAPACITY: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """The token drawn among gathered ones in no order, behind which VALUES are -inf. `mass` is the
    sum over all tokens of the row, and what top-p refers to where `whole_mass`."""
    index = tl.arange(0, CAPACITY)
    x = tl.load(VALUES + index)
    live = x > float("-inf")
    token = tl.load(IDS + index, mask=live, other=0)
    scaled = (x - largest) * sharpness
    above = tl.zeros([TURN, CAPACITY], tl.int32)
    mass_above = tl.zeros([TURN, CAPACITY], tl.int32)
    for begin in range(0, found, TURN):
        other = begin + tl.arange(0, TURN)[:, None]
        y = tl.load(VALUES + other)
        higher = y > x[None, :]
        above += higher.to(tl.int32)
        mass_above += tl.where(higher, _fixed_weight(y, largest, sharpness), 0)
    above = tl.sum(above, 0)
    mass_above = tl.sum(mass_above, 0).to(tl.float32) * _UNIT
    kept = live & (above < top_k) & (scaled >= log_min_p)
    left = tl.sum(tl.where(kept, _fixed_weight(x, largest, sharpness), 0), 0)
    left = tl.where(whole_mass, mass, left.to(tl.float32) * _UNIT)
    kept = kept & ((mass_above < top_p * left) | (top_p >= 1.0) | (above == 0))
    return _winner(kept, scaled, token, seed, position, vocab_size)


@triton.jit
def _draw_by_rank(
    VALUES, IDS, found, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
    seed, position, vocab_size, CAPACITY: tl.constexpr,
):  # fmt: skip
    """As `_draw_few`, for more tokens, gathered in their order."""
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
        score = tl.where(kept, score, float("-inf"))
        here = tl.max(score, 0)
        if here > best:
            drawn = tl.min(tl.where(score == here, token, vocab_size), 0)
            best = here
    return drawn


@triton.jit
def _tally(LOGITS, pivots, largest, sharpness, floor, vocab_size,
           PIVOTS: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """For each of int32 keys `pivots`: the tokens with a key >= it, or where MASS the mass of
    those above it, over tokens with a key >= floor."""
    counts = tl.zeros([PIVOTS, BLOCK], tl.float32)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        x = tl.load(LOGITS + token, mask=token < vocab_size, other=float("-inf"))
        key = order_key(x)[None, :]
        if MASS:
            weight = tl.where(order_key(x) >= floor, tl.exp((x - largest) * sharpness), 0.0)
            counts += tl.where(key > pivots[:, None], weight[None, :], 0.0)
        else:
            counts += ((key >= pivots[:, None]) & (token < vocab_size)[None, :]).to(tl.float32)
    return tl.sum(counts, 1)


@triton.jit
def _search(LOGITS, low, high, wanted, largest, sharpness, floor, vocab_size,
            PIVOTS: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """Bisects int64 keys low < high, PIVOTS at a time, until they are neighbours.

    Counts: low holds `wanted` tokens at or above it, high does not. Mass: below `wanted` lies
    above high, not above low. Returns (low, high)."""
    while high - low > 1:
        step = tl.arange(0, PIVOTS) + 1
        pivot = low + (high - low) * step // (PIVOTS + 1)
        tally = _tally(LOGITS, pivot.to(tl.int32), largest, sharpness, floor, vocab_size,
                       PIVOTS, BLOCK, MASS)  # fmt: skip
        stays_low = tally >= wanted
        low = tl.maximum(low, tl.max(tl.where(stays_low, pivot, low), 0))
        high = tl.minimum(high, tl.min(tl.where(stays_low, high, pivot), 0))
    return low, high


@triton.jit
def _draw_in_full(
    LOGITS, largest, sharpness, top_k, top_p, log_min_p, seed, position, vocab_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The draw over the whole row, thresholds found by bisection."""
    floor = tl.full([], -2147483648, tl.int64)
    peak = order_key(largest).to(tl.int64)
    if top_k < vocab_size:
        floor, _ = _search(LOGITS, floor, peak + 1, top_k.to(tl.float32), largest, sharpness,
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
        mass = tl.sum(_tally(LOGITS, every, largest, sharpness, least, vocab_size,
                             1, 1024, True), 0)  # fmt: skip
        _, nucleus = _search(LOGITS, floor - 1, peak, top_p * mass, largest, sharpness, least,
                             vocab_size, 8, 1024, True)  # fmt: skip
        floor = tl.maximum(floor, nucleus)
    least = floor.to(tl.int32)
    best = tl.full([], float("-inf"), tl.float32)
    drawn = tl.zeros([], tl.int32)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        x = tl.load(LOGITS + token, mask=token < vocab_size, other=float("-inf"))
        kept = (order_key(x) >= least) & (x > float("-inf"))
        if tl.max(kept.to(tl.int32), 0) > 0:
            score = (x - largest) * sharpness + gumbel(block_words(seed, position, begin, BLOCK))
            score = tl.where(kept, score, float("-inf"))
            here = tl.max(score, 0)
            if here > best:
                drawn = tl.min(tl.where(score == here, token, vocab_size), 0)
                best = here
    return drawn


@triton.jit
def _draw_of_groups(
    LOGITS, GROUP_IDS, VALUES, IDS, COUNTS, g, chosen, num_groups, bound, largest, sharpness,
    top_k, top_p, log_min_p, mass, whole_mass, seed, position, vocab_size,
    GROUP: tl.constexpr, FEW: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """The draw among the tokens of the few groups `g` that are `chosen`, -1 where they are more
    than FEW or do not reach. COUNTS [2] are 0 and the first FEW of VALUES -inf."""
    tl.debug_barrier()
    tl.store(GROUP_IDS + _take_place(COUNTS, chosen), g, mask=chosen)
    tl.debug_barrier()
    _gather_few(
        LOGITS, GROUP_IDS, VALUES, IDS, COUNTS + 1, num_groups, key_value(bound), vocab_size,
        GROUP, FEW, TURN,
    )  # fmt: skip
    tl.debug_barrier()
    found = tl.load(COUNTS + 1, cache_modifier=".cg").to(tl.int32)
    fits = found <= FEW
    if whole_mass:
        # The bound was a guess.
        weights = _fixed_weight(tl.load(VALUES + tl.arange(0, FEW)), largest, sharpness)
        fits = fits & (tl.sum(weights, 0).to(tl.float32) * _UNIT >= top_p * mass)
    drawn = tl.full([], -1, tl.int32)
    if fits:
        drawn = _draw_few(
            VALUES, IDS, found, largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass,
            seed, position, vocab_size, FEW, min(FEW, 32),
        )  # fmt: skip
    tl.debug_barrier()
    return drawn


@triton.jit
def _draw_many(
    LOGITS, GROUP_IDS, VALUES, IDS, num_groups, bound, largest, sharpness, top_k, top_p, log_min_p,
    mass, whole_mass, seed, position, vocab_size,
    GROUP: tl.constexpr, RANKED: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """The draw among the tokens of the listed groups; among all where that is not enough."""
    found, covered = gather_groups(
        LOGITS, GROUP_IDS, VALUES, IDS, num_groups, bound, vocab_size, largest, sharpness,
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
            LOGITS, largest, sharpness, top_k, top_p, log_min_p, seed, position, vocab_size, 1024
        )
    return drawn


@triton.jit
def _draw(
    LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEEDS, POSITIONS, GROUPS, CHUNKS,
    GROUP_IDS, VALUES, IDS, COUNTS, OUT, vocab_size, row_stride, chunks, groups,
    CHUNKS_PAD: tl.constexpr, GROUPS_PAD: tl.constexpr, GROUP: tl.constexpr,
    STATS: tl.constexpr, FEW: tl.constexpr, RANKED: tl.constexpr, CAPACITY: tl.constexpr,
    GUESS: tl.constexpr, RUNS: tl.constexpr, TURN: tl.constexpr, PDL: tl.constexpr,
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
    # All at once, whoever needs them: one wait instead of three.
    peaks = tl.load(stats, mask=there, other=float("-inf"))
    sums = tl.load(stats + 1, mask=there, other=0.0)
    maxima = tl.load(GROUPS + row * groups + g, mask=g < groups, other=float("-inf"))
    largest = tl.max(peaks, 0)
    sharpness = 1.0 / tl.where(temperature > 0.0, temperature, 1.0)
    if temperature <= 0.0:
        firsts = tl.load(stats + 3, mask=there, other=0.0).to(tl.int32, bitcast=True)
        tl.store(OUT + row, tl.min(tl.where(there & (peaks == largest), firsts, vocab_size), 0))
    elif keeps_all(top_k, top_p, min_p, vocab_size):
        score = tl.load(stats + 2, mask=there, other=float("-inf"))
        winners = tl.load(stats + 4, mask=there, other=0.0).to(tl.int32, bitcast=True)
        score = tl.where(peaks > float("-inf"), score + (peaks - largest) * sharpness,
                         float("-inf"))  # fmt: skip
        best = tl.max(score, 0)
        tl.store(OUT + row, tl.min(tl.where(there & (score == best), winners, vocab_size), 0))
    else:
        values, ids = VALUES + row * CAPACITY, IDS + row * CAPACITY
        few = tl.arange(0, FEW)
        tl.store(values + few, tl.full([FEW], float("-inf"), tl.float32))
        tl.store(COUNTS + row * 2 + tl.arange(0, 2), tl.zeros([2], tl.float32))
        mass = tl.sum(
            tl.where(peaks > float("-inf"), sums * tl.exp((peaks - largest) * sharpness), 0.0), 0
        )
        top_k = tl.where((top_k <= 0) | (top_k >= vocab_size), vocab_size, top_k)
        log_min_p = tl.where(min_p > 0.0, tl.log(tl.minimum(min_p, 1.0)), float("-inf"))
        # A little below the exact floor: the exact test follows.
        floor = largest + temperature * log_min_p
        floor = floor - 1e-4 * temperature - 1e-6 * tl.abs(largest)
        bound = tl.where(min_p > 0.0, order_key(floor), -2147483647)
        group_keys = order_key(maxima)
        wanted = tl.where(top_k < vocab_size, top_k, tl.where(top_p < 1.0, GUESS, groups + 1))
        list_ids = GROUP_IDS + row * groups
        if wanted * 2 <= RUNS:
            bound = tl.maximum(bound, _kth_of_runs(group_keys, wanted, list_ids, RUNS))
        elif wanted <= groups:
            bound = tl.maximum(bound, kth_key(group_keys, wanted, 16))
        # Above -inf, whose key is the least that a logit has.
        bound = tl.maximum(bound, order_key(tl.full([], -3.4e38, tl.float32)))
        chosen = (group_keys >= bound) & (g < groups)
        num_groups = tl.sum(chosen.to(tl.int32), 0)
        logits = LOGITS + row.to(tl.int64) * row_stride
        whole_mass = (top_k >= vocab_size) & (min_p <= 0.0)
        drawn = tl.full([], -1, tl.int32)
        # Of each group that is chosen at least one token survives.
        if num_groups <= FEW:
            drawn = _draw_of_groups(
                logits, list_ids, values, ids, COUNTS + row * 2, g, chosen, num_groups, bound,
                largest, sharpness, top_k, top_p, log_min_p, mass, whole_mass, seed, position,
                vocab_size, GROUP, FEW, TURN,
            )  # fmt: skip
        if drawn < 0:
            place = tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(list_ids + place, g, mask=chosen)
            tl.debug_barrier()
            drawn = _draw_many(
                logits, list_ids, values, ids, num_groups, bound, largest, sharpness, top_k, top_p,
                log_min_p, mass, whole_mass, seed, position, vocab_size, GROUP, RANKED, CAPACITY,
            )  # fmt: skip
        tl.store(OUT + row, drawn)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `op.Sample`. `workspace`: int32 of `sample_workspace` elements."""
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and logits.dtype is torch.float32
    if out is None:
        out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if workspace is None:
        size = sample_workspace(rows, vocab_size)
        workspace = torch.empty(size, dtype=torch.int32, device=logits.device)
    if rows == 0:
        return out
    chunks = triton.cdiv(vocab_size, CHUNK)
    groups = chunks * (CHUNK // GROUP)
    sizes = [rows * groups, rows * chunks * STATS, rows * groups] + [rows * _CAPACITY] * 2
    sizes.append(2 * rows)
    maxima, stats, group_ids, values, ids, counts = workspace[: sum(sizes)].split(sizes)
    pdl = dependent_launch(logits.device)
    parameters = (temperature, top_k, top_p, min_p, seeds, positions)
    maxima, stats, values, counts = (t.view(torch.float32) for t in (maxima, stats, values, counts))
    scan[(rows, chunks)](
        logits, *parameters, maxima, stats, vocab_size, logits.stride(0),
        CHUNK=CHUNK, GROUP=GROUP, STATS=STATS, DRAW=True, PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    groups_pad = triton.next_power_of_2(groups)
    _draw[(rows,)](
        logits, *parameters, maxima, stats, group_ids, values, ids, counts, out,
        vocab_size, logits.stride(0), chunks, groups,
        CHUNKS_PAD=triton.next_power_of_2(chunks), GROUPS_PAD=groups_pad, GROUP=GROUP, STATS=STATS,
        FEW=_FEW, RANKED=_RANKED, CAPACITY=_CAPACITY, GUESS=_GUESS,
        RUNS=min(_RUNS, 1 << (groups.bit_length() - 1)), TURN=_TURN, PDL=pdl,
        num_warps=_WARPS, launch_pdl=pdl,
    )  # fmt: skip
    return out


def sample_workspace(rows: int, vocab_size: int) -> int:
    """int32 elements of workspace that `sample` needs."""
    chunks: int = triton.cdiv(vocab_size, CHUNK)
    return rows * (2 * chunks * (CHUNK // GROUP) + chunks * STATS + 2 * _CAPACITY + 2)
