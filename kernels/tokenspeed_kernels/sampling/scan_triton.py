"""One pass over the logits: what the selecting kernels need of every chunk and group.

A chunk is CHUNK consecutive tokens, a group GROUP of them. Per group its largest logit; per chunk
the largest logit, for greedy rows its lowest id, for those that keep every token the winner of the
draw within the chunk, and where top-p is of all tokens the sum of e^((x - largest) / temperature).
The k-th largest of the groups' maxima is never above the k-th largest logit, so few groups need to
be read again.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import fields

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, dependent_launch, next_power_of_2
from tokenspeed_kernels.sampling.edits_triton import edited, edits_of, number, read
from tokenspeed_kernels.sampling.op import Edits

CHUNK = 4096
GROUP = 64
# Floats per chunk: largest, sum, score of the winner; ids as int32 bits: of the largest, winner.
STATS = 5
# The same of the logits' own distribution: largest, sum at temperature 1.
OWN_STATS = 2
# Groups, and tokens, that one program reads and ranks against each other at once, the runs of
# groups whose maxima bound their number, and the groups that are read at once where there are more.
FEW = 128
RUNS = 128
TURN = 32


@triton.jit
def order_key(x):
    """int32 in the order of float32 `x`; -0.0 equals 0.0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """The float32 of an `order_key`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


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
def least_exponential(word):
    """A lower bound of -log(u), u as in `gumbel`, in a few instructions: tight to 0.4 % above one
    half, where draws are won, and to 9 % below."""
    upper = word >= 0x80000000
    rest = tl.where(upper, word ^ 0xFFFFFFFF, word).to(tl.int32)
    value = rest.to(tl.float32) + 0.5
    v = value * (1.0 / 4294967296.0)
    # -log(1 - v) from its series, the rest of which is made up at v = 1/2: up to 0.27 % too much,
    # so all of it is taken 0.9968 times.
    high = v * 0.42234 + 0.332266
    high = high * v + 0.4984
    high = high * v + 0.9968
    # A float32's bits are its logarithm to base 2, up to 0.0861 too low.
    bits = value.to(tl.int32, bitcast=True).to(tl.float32)
    low = bits * (-0.693078 / 8388608.0) + 110.13966
    return tl.where(upper, high * v, low)


@triton.jit
def scored(x, shift, sharpness, noise):
    """Logits over the temperature with the noise of the draw; one rounding, wherever it is used."""
    return tl.fma(x - shift, tl.zeros_like(x) + sharpness, noise)


@triton.jit
def draw_of_chunk(
    logits, x, token, first, shift, sharpness, seed, position, vocab_size,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Score and id of the token of a chunk that a draw over all of it takes.

    The greatest l + g, g = -log(e), has the least e exp(-l). A lower bound of that is cheap; who
    has the least is scored exactly, and where nobody else can reach that score, nobody else is.
    """
    words = block_words(seed, position, first, CHUNK)
    # Base 2 is one instruction.
    unit = tl.full([], -1.4426950408889634, tl.float32)
    race = least_exponential(words) * tl.exp2((x - shift) * (unit * sharpness))
    least = tl.min(race, 0)
    winner = tl.min(tl.where(race == least, token, vocab_size), 0)
    winner = tl.minimum(winner, vocab_size - 1)
    noise = gumbel(token_word(seed, position, winner))
    best = scored(read(logits, winner, True), shift, sharpness, noise)
    # Beyond what float32 makes of it.
    near = race <= tl.exp2(best * unit) * 1.001
    if tl.sum(near.to(tl.int32), 0) != 1:
        best = tl.full([], float("-inf"), tl.float32)
        for begin in range(first, first + CHUNK, BLOCK):
            part = begin + tl.arange(0, BLOCK)
            y = read(logits, part, part < vocab_size, begin)
            score = scored(y, shift, sharpness, gumbel(block_words(seed, position, begin, BLOCK)))
            here = tl.max(score, 0)
            if (here > best) | (begin == first):
                winner = tl.min(tl.where(score == here, part, vocab_size), 0)
                best = here
    return best, winner


@triton.jit
def token_word(seed, position, token):
    """The random word of each of some tokens."""
    zero = tl.zeros_like(token).to(tl.uint32)
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    counter = (token // 4).to(tl.uint32)
    a, b, c, d = tl.philox(seed, counter, zero + low, zero + high, zero)
    lane = token % 4
    return tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))


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
def is_of_all(top_k, min_p, vocab_size):
    """Whether top-p, if any, is of the mass of all tokens."""
    return ((top_k <= 0) | (top_k >= vocab_size)) & (min_p <= 0.0)


@triton.jit
def keeps_all(top_k, top_p, min_p, vocab_size):
    return is_of_all(top_k, min_p, vocab_size) & (top_p >= 1.0)


@triton.jit
def mass_of_chunk(x, shift, sharpness):
    """Sum of e^((x - shift) sharpness)."""
    # Base 2 is one instruction.
    unit = tl.full([], 1.4426950408889634, tl.float32)
    return tl.sum(tl.exp2((x - shift) * (unit * sharpness)), 0)


@triton.jit
def scan(
    LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEEDS, POSITIONS,
    SLOTS, COUNTS, REPETITION, PRESENCE, FREQUENCY, BIASED, BIAS, MASK_OF, MASKS,
    GROUPS, CHUNKS, OWN_GROUPS, OWN_CHUNKS, vocab_size, row_stride, words,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, STATS: tl.constexpr, OWN_STATS: tl.constexpr,
    EDITED: tl.constexpr, DRAW: tl.constexpr, OWN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """DRAW: for a draw, by logits that are EDITED; OWN: of the model's own logits at temperature 1,
    for log-probabilities."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    place = row * tl.num_programs(1) + chunk
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab_size
    group = place * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP)
    begin = LOGITS + row.to(tl.int64) * row_stride
    after_producer(PDL)
    # What tells how logits are read and summed up is asked for before them.
    if DRAW:
        temperature, min_p = tl.load(TEMPERATURE + row), tl.load(MIN_P + row)
        top_k, top_p = tl.load(TOP_K + row), tl.load(TOP_P + row)
    logits = (begin, edits_of(
        row, SLOTS, COUNTS, REPETITION, PRESENCE, FREQUENCY, BIASED, BIAS, MASK_OF, MASKS,
        vocab_size, words,
    )) if EDITED else (begin,)  # fmt: skip
    x = tl.load(begin + token, mask=inside, other=float("-inf"))
    # What it reads is asked for before anything is summed up.
    drawn_by = edited(x, logits, token, inside, chunk * CHUNK)
    if OWN:
        groups = number(tl.max(tl.reshape(x, (CHUNK // GROUP, GROUP)), 1))
        tl.store(OWN_GROUPS + group, groups)
        largest = tl.max(groups, 0)
        tl.store(OWN_CHUNKS + place * OWN_STATS, largest)
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        tl.store(OWN_CHUNKS + place * OWN_STATS + 1, mass_of_chunk(x, shift, 1.0))
    if DRAW:
        x = drawn_by
        groups = number(tl.max(tl.reshape(x, (CHUNK // GROUP, GROUP)), 1))
        tl.store(GROUPS + group, groups)
        largest = tl.max(groups, 0)
        stats = CHUNKS + place * STATS
        tl.store(stats, largest)
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        if temperature > 0.0:
            sharpness = 1.0 / temperature
            if keeps_all(top_k, top_p, min_p, vocab_size):
                seed, position = tl.load(SEEDS + row), tl.load(POSITIONS + row)
                best, winner = draw_of_chunk(
                    logits, x, token, chunk * CHUNK, shift, sharpness, seed, position,
                    vocab_size, CHUNK, 1024,
                )  # fmt: skip
                tl.store(stats + 2, best)
                tl.store(stats + 4, winner.to(tl.float32, bitcast=True))
            elif is_of_all(top_k, min_p, vocab_size):
                tl.store(stats + 1, mass_of_chunk(x, shift, sharpness))
        else:
            lowest = tl.min(tl.where(x == largest, token, vocab_size), 0)
            tl.store(stats + 3, lowest.to(tl.float32, bitcast=True))


class Scan:
    """Where one pass over logits [B, V] leaves the groups' maxima and `stats` floats per chunk."""

    def __init__(self, logits: torch.Tensor, stats: int) -> None:
        rows, self.vocab_size = logits.shape
        self.chunks = -(-self.vocab_size // CHUNK)
        self.groups = self.chunks * (CHUNK // GROUP)
        self.maxima = logits.new_empty(rows * self.groups)
        self.stats = logits.new_empty(rows * self.chunks * stats)

    def room(self, rows: int, capacity: int) -> tuple[torch.Tensor, ...]:
        """For what programs gather, each for one of `rows`: groups, values, tokens."""
        sizes = [rows * size for size in (self.groups, capacity, capacity)]
        room = torch.empty(sum(sizes), dtype=torch.int32, device=self.maxima.device).split(sizes)
        return room[0], room[1].view(torch.float32), room[2]

    @property
    def constants(self) -> dict[str, int]:
        """Of the kernels that read it."""
        return {
            "CHUNKS_PAD": next_power_of_2(self.chunks),
            "GROUPS_PAD": next_power_of_2(self.groups),
            "GROUP": GROUP,
            "FEW": FEW,
            "RUNS": min(RUNS, 1 << (self.groups.bit_length() - 1)),
        }


def changes(edits: Edits | None) -> tuple[torch.Tensor | None, ...]:
    """The kernels' arguments, in their order."""
    if edits is None:
        return (None,) * 9
    return tuple(getattr(edits, field.name) for field in fields(edits))


def mask_words(edits: Edits | None) -> int:
    """int32 words of a mask."""
    return 0 if edits is None else edits.masks.shape[1]


def launch_scan(
    logits: torch.Tensor,
    parameters: tuple[torch.Tensor, ...] | None,
    edits: Edits | None,
    drawn: Scan | None,
    own: Scan | None,
) -> None:
    """Fills `drawn` for a draw by the rows' `parameters`, and `own`, each where it is given."""
    assert logits.stride(1) == 1 and logits.dtype is torch.float32
    scanned = drawn or own
    assert scanned is not None
    pdl = dependent_launch(logits.device)
    scan[(len(logits), scanned.chunks)](
        logits, *(parameters or (None,) * 6), *changes(edits),
        *((None, None) if drawn is None else (drawn.maxima, drawn.stats)),
        *((None, None) if own is None else (own.maxima, own.stats)),
        scanned.vocab_size, logits.stride(0), mask_words(edits),
        CHUNK=CHUNK, GROUP=GROUP, STATS=STATS, OWN_STATS=OWN_STATS, EDITED=edits is not None,
        DRAW=drawn is not None, OWN=own is not None, PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
