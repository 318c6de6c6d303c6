"""Joins the parts of q tiles that latent attention left to several programs, in Triton."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.attention.around_triton import facts
from tokenspeed_kernels.attention.paged_attention_triton import Attend
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.launch_triton import after_producer, dependent_launch


@triton.jit(do_not_specialize=["max_tiles"])
def _join_parts(
    SCHEDULE, OUT, PARTS, PART_SUMS, max_tiles, value_scale,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, ALL: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS rows of a q tile, COLUMNS values of each. Parts are added in the order of the tokens."""
    G: tl.constexpr = H // K
    if not EARLY:
        after_producer(PDL)
    columns = SCHEDULE + HEADER + P + 1
    tile = tl.program_id(0) // K
    lane = tl.program_id(0) % K
    tiles = tl.load(SCHEDULE)
    programs = tl.load(SCHEDULE + 1).to(tl.int64)
    units = tl.load(columns + tiles)
    before, count, _, first_query, queries, _ = facts(columns, max_tiles + 1, tile)
    if EARLY:
        after_producer(PDL)
    if tile >= tiles:
        return
    first = ((before + 1) * programs - 1) // units
    last = ((before + count) * programs - 1) // units
    if first == last:
        return
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    r = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    live = m < queries * G
    # The first program met the tile at its own start, or after other tiles.
    first_slot = 2 * first + (units * first // programs < before).to(tl.int64)
    # How large each part is first: the parts themselves then do not wait for one another.
    every = first + tl.arange(0, ALL)
    places = (tl.where(every == first, first_slot, 2 * every) * K + lane)[:, None] * M + m[None, :]
    counted = (every <= last)[:, None] & live[None, :]
    tops = tl.load(PART_SUMS + places * 2, mask=counted, other=float("-inf"))
    sums = tl.load(PART_SUMS + places * 2 + 1, mask=counted, other=0.0)
    top = tl.max(tops, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(tops - top[None, :]) * sums, 0)
    total = tl.where(live, total, 1.0)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for chunk in range(first, last + 1, SPLITS):
        split = chunk + tl.arange(0, SPLITS)
        slot = tl.where(split == first, first_slot, 2 * split)
        part = (slot * K + lane)[:, None] * M + m[None, :]
        there = (split <= last)[:, None] & live[None, :]
        at = PARTS + part[:, :, None] * R + r[None, None, :]
        values = tl.load(at, mask=there[:, :, None], other=0.0)
        size = tl.load(PART_SUMS + part * 2, mask=there, other=float("-inf"))
        acc += tl.sum(tl.exp2(size - top[None, :])[:, :, None] * values, 0)
    out = acc * (value_scale / total)[:, None]
    head = (first_query + m // G) * H + lane * G + m % G
    tl.store(OUT + head[:, None] * R + r[None, :], out.to(OUT.dtype.element_ty), mask=live[:, None])


@triton.jit
def _join_one(
    SCHEDULE, PARTS, PART_SUMS, VALUE_UP, OUT, value_scale,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, V: tl.constexpr, M: tl.constexpr,
    BN: tl.constexpr, SPLITS: tl.constexpr, ALL: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Of one row of one query: joins the parts of a head, one of each program with work, and
    multiplies BN columns of the head's value matrix."""
    G: tl.constexpr = H // K
    if not EARLY:
        after_producer(PDL)
    head = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    r = tl.arange(0, R)
    programs = tl.load(SCHEDULE + 1)
    at = VALUE_UP + head.to(tl.int64) * R * V + r[:, None] * V + n[None, :]
    w = tl.load(at, mask=(n < V)[None, :], other=0.0)
    if EARLY:
        after_producer(PDL)
    every = tl.arange(0, ALL)
    places = (2 * every * K + head // G).to(tl.int64) * M + head % G
    tops = tl.load(PART_SUMS + places * 2, mask=every < programs, other=float("-inf"))
    sums = tl.load(PART_SUMS + places * 2 + 1, mask=every < programs, other=0.0)
    top = tl.max(tops, 0)
    total = tl.sum(tl.exp2(tops - top) * sums, 0)
    acc = tl.zeros([R], tl.float32)
    for chunk in range(0, programs, SPLITS):
        split = chunk + tl.arange(0, SPLITS)
        there = split < programs
        part = (2 * split * K + head // G).to(tl.int64) * M + head % G
        size = tl.load(PART_SUMS + part * 2, mask=there, other=float("-inf"))
        values = tl.load(PARTS + part[:, None] * R + r[None, :], mask=there[:, None], other=0.0)
        acc += tl.sum(tl.exp2(size - top)[:, None] * values, 0)
    latent = (acc * (value_scale / total)).to(VALUE_UP.dtype.element_ty).to(tl.float32)
    made = tl.sum(latent[:, None] * w.to(tl.float32), 0)
    tl.store(OUT + head * V + n, made.to(OUT.dtype.element_ty), mask=n < V)


# Of `_join_one`.
_COLUMNS, _SPLITS = 64, 32


def join_one(
    attend: Attend, value_up: torch.Tensor, out: torch.Tensor, value_scale: float, early: bool
) -> None:
    """The values `out` [1, H, V] of the only row of one query, all of which lies in parts."""
    heads, rank, width = value_up.shape
    programs = attend.layout.num_programs
    pdl = dependent_launch(out.device)
    _join_one[(heads, triton.cdiv(width, _COLUMNS))](
        attend.schedule, attend.parts, attend.part_sums, value_up, out, value_scale, H=heads,
        K=attend.lanes, R=rank, V=width, M=attend.rows, BN=_COLUMNS, SPLITS=_SPLITS,
        ALL=triton.next_power_of_2(programs), EARLY=early, PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip


def join_parts(
    attend: Attend, out: torch.Tensor, value_scale: float, early: bool, turns: int = 1
) -> None:
    """Writes those rows of `out` [T, H, R] whose q tile was split. Few tiles are dealt out to more
    programs each: of one row alone that is memory's time instead of one multiprocessor's. In more
    `turns` programs are as many times fewer, and leave room for the kernel behind."""
    layout, rank = attend.layout, attend.head_dim
    tiles = layout.max_tiles
    # As many parts as an even division leaves, and some 4096 values a program.
    splits = min(triton.next_power_of_2(layout.num_programs // tiles + 2), 256)
    splits = max(splits // turns, 1)
    columns = min(max(4096 // splits, 32), rank)
    rows = max(4096 // (splits * columns), 1)
    pdl = dependent_launch(out.device)
    grid = (tiles * attend.lanes, triton.cdiv(attend.used_rows, rows), rank // columns)
    _join_parts[grid](
        attend.schedule, out, attend.parts, attend.part_sums, layout.max_tiles, value_scale,
        H=attend.heads, K=attend.lanes, R=rank, M=attend.rows, P=layout.num_programs, ROWS=rows,
        COLUMNS=columns, SPLITS=splits, ALL=triton.next_power_of_2(layout.num_programs),
        EARLY=early, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
