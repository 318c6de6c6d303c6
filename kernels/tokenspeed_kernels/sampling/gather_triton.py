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
def kth_of_runs(keys, k, RUNS: tl.constexpr):
    """Not above the k-th largest of int32 `keys`, nor below the k-th largest maximum of RUNS runs
    of them: by one comparison of all with all, where `kth_key` waits for one sum after the other.
    """
    tops = tl.max(tl.reshape(keys, (RUNS, keys.shape[0] // RUNS)), 1)
    # Along the other axis a thread would have few of each sum, and many to pass on.
    above = tl.sum((tops[None, :] > tops[:, None]).to(tl.int32), 1)
    return tl.min(tl.where(above < k, tops, 2147483647), 0)


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
def _counts_of_bytes(bits):
    """How many bits of uint32 `bits` are set in each byte and those below it, a byte for each."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return ((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101


@triton.jit
def _place_of(bits, rank):
    """Which bit of uint32 `bits` is set and has int32 `rank` set ones below it."""
    counts = _counts_of_bytes(bits)
    byte = tl.zeros_like(rank)
    for i in tl.static_range(3):
        byte += (((counts >> (8 * i)) & 0xFF).to(tl.int32) <= rank).to(tl.int32)
    rank -= (((counts << 8) >> (8 * byte).to(tl.uint32)) & 0xFF).to(tl.int32)
    bits = bits >> (8 * byte).to(tl.uint32)
    place = tl.zeros_like(rank)
    for i in tl.static_range(8):
        bit = ((bits >> i) & 1).to(tl.int32)
        place = tl.where((rank == 0) & (bit != 0), i, place)
        rank -= bit
    return byte * 8 + place


@triton.jit
def _places(taken, SLOTS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the first SLOTS of those that are `taken` lie, in their order, int32 [SLOTS], and which
    of these there are.

    By prefix sums over sections of WIDTH, at most 32, in registers: a list in memory takes a trip
    to L2 for each place in it that is taken, for what is put there, and for what is read.
    """
    SECTIONS: tl.constexpr = taken.numel // WIDTH
    parts = tl.reshape(taken.to(tl.int32), (SECTIONS, WIDTH))
    bits = tl.sum(parts << tl.arange(0, WIDTH)[None, :], 1).to(tl.uint32, bitcast=True)
    count = (_counts_of_bytes(bits) >> 24).to(tl.int32)
    ends = tl.cumsum(count, 0)
    # As many sections end at or before a slot.
    section = tl.cumsum(tl.histogram(ends, SLOTS, mask=ends < SLOTS), 0)
    there = section < SECTIONS
    section = tl.minimum(section, SECTIONS - 1)
    known = tl.gather(((ends - count).to(tl.int64) << 32) | bits.to(tl.int64), section, 0)
    rank = tl.arange(0, SLOTS) - (known >> 32).to(tl.int32)
    return section * WIDTH + _place_of(known.to(tl.uint32), rank), there


@triton.jit
def gather_few(logits, chosen, bound, vocab_size, GROUP: tl.constexpr, FEW: tl.constexpr):
    """Of the groups that are `chosen` the tokens whose key is at least `bound`, in their order:
    logits and tokens [FEW], -inf and any where there are none, and whether groups or tokens may be
    more than that: then true for the last."""
    group, there = _places(chosen, FEW, 16)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = there[:, None] & (token < vocab_size)
    taken = (read(logits, token, inside) >= key_value(bound)) & inside
    place, found = _places(taken, FEW, 32)
    token = tl.gather(group, place // GROUP, 0) * GROUP + place % GROUP
    # Again, from the cache beside it.
    x = read(logits, token, found)
    return x, token, (tl.arange(0, FEW) == FEW - 1) & (there | found)
