"""Pairs of token and expert, sorted by expert into blocks of equally many.

Pair t * k + j is the j-th choice of token t. A block holds up to `block` pairs of one expert; the
places that it does not fill hold -1. How many blocks there are is known on the device alone, so a
kernel over blocks is launched for the most there can be, and those past the end do nothing.

Parts that all tokens pass may be pairs too: of each token the last ones, in the first blocks.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch, next_power_of_2

# Pairs of a program, and programs at most; beyond both a program has more.
_CHUNK = 1024
_PROGRAMS = 128


@dataclass(frozen=True, slots=True)
class Groups:
    """`pairs` int32 [most * block], the pair at each place of each block, in no order; `experts`
    int32 [most], the expert of each block, and some expert behind them; `count` int32 [1], how many
    blocks there are. No pair is written behind those. `passed` parts that all tokens pass count as
    experts -passed to -1."""

    block: int
    most: int
    pairs: torch.Tensor
    experts: torch.Tensor
    count: torch.Tensor
    passed: int


@triton.jit
def _chosen(CHOSEN, i, live, TOP: tl.constexpr, PASSED: tl.constexpr):
    """What the pairs `i` chose, counted from the first part that all tokens pass."""
    if PASSED:
        nth = i % (TOP + PASSED)
        at = CHOSEN + i // (TOP + PASSED) * TOP + nth
        chosen = tl.load(at, mask=live & (nth < TOP), other=0) + PASSED
        return tl.where(nth < TOP, chosen, nth - TOP)
    return tl.load(CHOSEN + i, mask=live, other=0)


@triton.jit(do_not_specialize=["num_pairs", "places"])
def _count(
    CHOSEN, PARTS, SEEN, PAIRS, num_pairs, places,
    E_PAD: tl.constexpr, CHUNK: tl.constexpr, TOP: tl.constexpr, PASSED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """PARTS [programs, E_PAD]: how often each expert was chosen by the program's pairs. The pairs'
    places begin empty, what was seen with 0."""
    after_producer(PDL)
    program, programs = tl.program_id(0), tl.num_programs(0)
    e = tl.arange(0, E_PAD)
    i = program * CHUNK + tl.arange(0, CHUNK)
    live = i < num_pairs
    chosen = _chosen(CHOSEN, i, live, TOP, PASSED)
    if program == 0:
        tl.store(SEEN + e, 0)
    for at in tl.range(program * CHUNK, places, programs * CHUNK):
        place = at + tl.arange(0, CHUNK)
        tl.store(PAIRS + place, -1, mask=place < places)
    tl.store(PARTS + program * E_PAD + e, tl.histogram(chosen, E_PAD, mask=live))


@triton.jit(do_not_specialize=["num_pairs", "most"])
def _place(
    CHOSEN, PARTS, SEEN, PAIRS, EXPERTS, COUNT, num_pairs, most,
    E_PAD: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, TOP: tl.constexpr,
    PASSED: tl.constexpr, ALONE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each pair to a place of its expert; who comes first decides which one. One program alone
    does the work of `_count` itself."""
    after_producer(PDL)
    program, programs = tl.program_id(0), tl.num_programs(0)
    e = tl.arange(0, E_PAD)
    i = program * CHUNK + tl.arange(0, CHUNK)
    live = i < num_pairs
    chosen = _chosen(CHOSEN, i, live, TOP, PASSED)
    if ALONE:
        tl.store(SEEN + e, 0)
        counts = tl.histogram(chosen, E_PAD, mask=live)
        tl.debug_barrier()
    else:
        counts = tl.zeros([E_PAD], tl.int32)
        for first in tl.range(0, programs, 16):
            part = first + tl.arange(0, 16)
            at = PARTS + part[:, None] * E_PAD + e[None, :]
            counts += tl.sum(tl.load(at, mask=(part < programs)[:, None], other=0), 0)
    place = tl.atomic_add(SEEN + chosen, 1, mask=live, sem="relaxed")
    blocks = (counts + BLOCK - 1) // BLOCK
    ends = tl.cumsum(blocks, 0)
    begins = ends - blocks
    tl.store(PAIRS + tl.gather(begins, chosen, 0) * BLOCK + place, i, mask=live)
    if program == 0:
        total = tl.sum(blocks, 0)
        tl.store(COUNT, total)
        for at in tl.range(total, most, CHUNK):
            behind = at + tl.arange(0, CHUNK)
            tl.store(EXPERTS + behind, 0, mask=behind < most)
        for nth in tl.range(0, tl.max(blocks, 0)):
            tl.store(EXPERTS + begins + nth, e - PASSED, mask=nth < blocks)
    if ALONE:
        for gap in tl.range(0, tl.max(blocks * BLOCK - counts, 0)):
            empty = counts + gap
            tl.store(PAIRS + begins * BLOCK + empty, -1, mask=empty < blocks * BLOCK)


def group(chosen: torch.Tensor, num_experts: int, block: int, passed: int = 0) -> Groups:
    """`chosen` int32 [T, k] to blocks, with `passed` parts that all tokens pass: pair
    t * (k + passed) + j."""
    (tokens, top), device = chosen.shape, chosen.device
    num_pairs, num_experts = tokens * (top + passed), num_experts + passed
    # Every expert that is chosen may leave one block partly empty.
    most = min(num_pairs, num_pairs // block + num_experts)
    chunk = max(32, next_power_of_2(min(num_pairs, _CHUNK)))
    chunk = max(chunk, next_power_of_2(cdiv(num_pairs, _PROGRAMS)))
    programs, padded = cdiv(num_pairs, chunk), next_power_of_2(num_experts)
    # Each begins at a multiple of 16 bytes, so that kernels are compiled once.
    sizes = (most * block, most, 1, padded, padded * programs if programs > 1 else 0)
    rooms = [-(-size // 4) * 4 for size in sizes]
    memory = torch.empty(sum(rooms), dtype=torch.int32, device=device).split(rooms)
    pairs, experts, count, seen, parts = (
        room[:size] for room, size in zip(memory, sizes, strict=True)
    )
    pdl = dependent_launch(device)
    constants = {
        "E_PAD": padded, "CHUNK": chunk, "TOP": top, "PASSED": passed, "PDL": pdl, "num_warps": 8,
        "launch_pdl": pdl,
    }  # fmt: skip
    if programs > 1:
        _count[(programs,)](chosen, parts, seen, pairs, num_pairs, most * block, **constants)
    _place[(programs,)](
        chosen, parts, seen, pairs, experts, count, num_pairs, most, BLOCK=block,
        ALONE=programs == 1, **constants,
    )  # fmt: skip
    return Groups(block, most, pairs, experts, count, passed)
