"""From what `scan` knows of groups of tokens to the few tokens of a row that can matter.

The k-th largest of the groups' maxima is never above the k-th largest logit: only groups that
reach it are read again.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_kernels.sampling.edits_triton import read
from tokenspeed_kernels.sampling.scan_triton import key_value, order_key


@triton.jit
def kth_of_runs(keys, k, SCRATCH, RUNS: tl.constexpr):
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
    logits, GROUP_IDS, begin, num_groups, vocab_size, GROUP: tl.constexpr, TURN: tl.constexpr
):
    """Logits [TURN, GROUP] of the listed groups from `begin` on, their tokens, and which are."""
    index = begin + tl.arange(0, TURN)
    group = tl.load(GROUP_IDS + index, mask=index < num_groups, other=0)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = (index < num_groups)[:, None] & (token < vocab_size)
    return read(logits, token, inside), token, inside


@triton.jit
def gather_groups(
    logits, GROUP_IDS, VALUES, IDS, num_groups, bound, vocab_size, largest, sharpness,
    GROUP: tl.constexpr, CAPACITY: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Appends the tokens of the listed groups whose key is at least `bound` to VALUES and IDS, up
    to CAPACITY of them; gives how many there are, and their sum of e^((x - largest) sharpness)."""
    found = tl.zeros([], tl.int32)
    mass = tl.zeros([], tl.float32)
    for begin in range(0, num_groups, TURN):
        x, token, inside = _some_groups(
            logits, GROUP_IDS, begin, num_groups, vocab_size, GROUP, TURN
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
def gather_few(
    logits, GROUP_IDS, VALUES, IDS, COUNTS, chosen, g, num_groups, bound, vocab_size,
    GROUP: tl.constexpr, CAPACITY: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """As `gather_groups`, of the groups `g` that are `chosen`, `num_groups` of them, but in no
    order. COUNTS [2] are 0 before. A few atomics are done long before a prefix sum of all."""
    tl.debug_barrier()
    tl.store(GROUP_IDS + _take_place(COUNTS, chosen), g, mask=chosen)
    tl.debug_barrier()
    least = key_value(bound)
    for begin in range(0, num_groups, TURN):
        x, token, inside = _some_groups(
            logits, GROUP_IDS, begin, num_groups, vocab_size, GROUP, TURN
        )
        taken = (x >= least) & inside
        place = _take_place(COUNTS + 1, taken)
        kept = taken & (place < CAPACITY)
        tl.store(VALUES + place, x, mask=kept)
        tl.store(IDS + place, token, mask=kept)
    tl.debug_barrier()
    return tl.load(COUNTS + 1, cache_modifier=".cg").to(tl.int32)
