"""Joins the parts of q tiles that latent attention left to several programs, in Triton."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# The compiler knows no unpacking of tuples.
# ruff: noqa: RUF005

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.attention.around_triton import facts
from tokenspeed_kernels.attention.paged_attention_triton import Attend
from tokenspeed_kernels.attention.schedule_triton import HEADER
from tokenspeed_kernels.launch_triton import (
    after_producer,
    cdiv,
    dependent_launch,
    next_power_of_2,
    start_next,
    wait_for_producer,
)

# Parts come to some so many values a program.
_VALUES, _WARPS = 6144, 4
# Of `_join_one`, two programs of which so find room beside one that still attends: what comes later
# begins later.
_REGISTERS = 88
# Of `_sum_products`.
_SUMMED = 32


@triton.jit
def _sharers(SCHEDULE, tile, max_tiles, P: tl.constexpr):
    """First and last program of a q tile, the slot where the first left its part, first query and
    queries. The tile is in one piece where the programs are the same."""
    columns = SCHEDULE + HEADER + P + 1
    # At least 1, by which a schedule without q tiles divides too.
    programs = tl.maximum(tl.load(SCHEDULE + 1), 1).to(tl.int64)
    units = tl.maximum(tl.load(columns + tl.load(SCHEDULE)), 1)
    before, count, _, first_query, queries, _ = facts(columns, max_tiles + 1, tile)
    first = (((before + 1) * programs - 1) // units).to(tl.int32)
    last = (((before + count) * programs - 1) // units).to(tl.int32)
    # The first program met the tile at its own start, or after other tiles.
    first_slot = 2 * first + (units * first.to(tl.int64) // programs < before).to(tl.int32)
    return first, last, first_slot, first_query, queries


@triton.jit
def _joined(
    PARTS, PART_SUMS, first, last, first_slot, lane, m, r, live, value_scale,
    K: tl.constexpr, R: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr, TURNS: tl.constexpr, ONE: tl.constexpr = False,
):  # fmt: skip
    """Columns `r` of rows `m` of a q tile. TURNS times SPLITS parts are on their way at once, since
    each wait for some is most of a microsecond. Every SPLITS-th part is added up by the same
    threads, in the order of the tokens, and those sums at the end. ONE: there is no other q tile,
    so that parts are as far apart as the compiler knows, and one turn of the loop has room for
    all."""
    top = tl.full([SPLITS, ROWS], float("-inf"), tl.float32)
    total = tl.zeros([SPLITS, ROWS], tl.float32)
    acc = tl.zeros([SPLITS, ROWS, COLUMNS], tl.float32)
    begin, end = first, last + 1
    if ONE:
        begin, end = 0, SPLITS * TURNS
    for chunk in range(begin, end, SPLITS * TURNS):
        tops, sums, values = (), (), ()
        for turn in tl.static_range(TURNS):
            split = chunk + turn * SPLITS + tl.arange(0, SPLITS)
            slot = 2 * split
            if not ONE:
                slot = tl.where(split == first, first_slot, slot)
            part = (slot * K + lane)[:, None] * M + m[None, :]
            there = (split <= last)[:, None] & live[None, :]
            at = PARTS + part[:, :, None] * R + r[None, None, :]
            values = values + (tl.load(at, mask=there[:, :, None], other=0.0),)
            tops = tops + (tl.load(PART_SUMS + part * 2, mask=there, other=float("-inf")),)
            sums = sums + (tl.load(PART_SUMS + part * 2 + 1, mask=there, other=0.0),)
        higher = top
        for turn in tl.static_range(TURNS):
            higher = tl.maximum(higher, tops[turn])
        # A row may see no token of these parts.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(top - shift)
        total *= fade
        acc *= fade[:, :, None]
        for turn in tl.static_range(TURNS):
            weight = tl.exp2(tops[turn] - shift)
            total += weight * sums[turn]
            acc += weight[:, :, None] * values[turn]
        top = higher
    highest = tl.max(top, 0)
    fade = tl.exp2(top - tl.where(highest == float("-inf"), 0.0, highest)[None, :])
    total = tl.sum(total * fade, 0)
    out = tl.sum(acc * fade[:, :, None], 0)
    return out * (value_scale / tl.where(live, total, 1.0))[:, None]


@triton.jit(do_not_specialize=["max_tiles"])
def _join_parts(
    SCHEDULE, OUT, PARTS, PART_SUMS, max_tiles, value_scale,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, TURNS: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS rows of a q tile, COLUMNS values of each."""
    G: tl.constexpr = H // K
    if not EARLY:
        after_producer(PDL)
    tile = tl.program_id(0) // K
    lane = tl.program_id(0) % K
    tiles = tl.load(SCHEDULE)
    first, last, first_slot, first_query, queries = _sharers(SCHEDULE, tile, max_tiles, P)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    r = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    live = m < queries * G
    if EARLY:
        after_producer(PDL)
    if (tile >= tiles) | (first == last):
        return
    out = _joined(
        PARTS, PART_SUMS, first, last, first_slot, lane, m, r, live, value_scale,
        K, R, M, ROWS, COLUMNS, SPLITS, TURNS,
    )  # fmt: skip
    head = (first_query + m // G) * H + lane * G + m % G
    tl.store(OUT + head[:, None] * R + r[None, :], out.to(OUT.dtype.element_ty), mask=live[:, None])


@triton.jit
def _join_one(
    SCHEDULE, LATENTS, PARTS, PART_SUMS, VALUE_UP, PRODUCTS, value_scale,
    H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    V: tl.constexpr, V_PAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr, TURNS: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of one row of one query: COLUMNS values of a head's latent, and the products of the head's
    value matrix with them. Those of all columns are PRODUCTS [H, R / COLUMNS, V]."""
    G: tl.constexpr = H // K
    # What comes behind has weights to ask for meanwhile.
    start_next(PDL)
    if not EARLY:
        wait_for_producer(PDL)
    head, share = tl.program_id(0), tl.program_id(1)
    r = share * COLUMNS + tl.arange(0, COLUMNS)
    n = tl.arange(0, V_PAD)
    at = VALUE_UP + head.to(tl.int64) * R * V + r[:, None] * V + n[None, :]
    w = tl.load(at, mask=(n < V)[None, :], other=0.0)
    # All programs with work share the one q tile.
    last = tl.load(SCHEDULE + 1) - 1
    if EARLY:
        wait_for_producer(PDL)
    if last == 0:
        latent = tl.load(LATENTS + head * R + r)
    else:
        m = head % G + tl.arange(0, ROWS)
        latent = _joined(
            PARTS, PART_SUMS, 0, last, 0, head // G, m, r, m < G, value_scale,
            K, R, M, ROWS, COLUMNS, SPLITS, TURNS, True,
        )  # fmt: skip
        latent = tl.reshape(latent, [COLUMNS]).to(LATENTS.dtype.element_ty)
    made = tl.sum(latent.to(tl.float32)[:, None] * w.to(tl.float32), 0)
    to = PRODUCTS + (head * (R // COLUMNS) + share) * V + n
    tl.store(to, made, mask=n < V)


@triton.jit
def _sum_products(
    PRODUCTS, OUT, V: tl.constexpr, SLICES: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """BN values of a head, from its products [SLICES, V]."""
    start_next(PDL)
    wait_for_producer(PDL)
    head = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    at = PRODUCTS + (head * SLICES + tl.arange(0, SLICES))[:, None] * V + n[None, :]
    made = tl.sum(tl.load(at, mask=(n < V)[None, :], other=0.0), 0)
    tl.store(OUT + head * V + n, made.to(OUT.dtype.element_ty), mask=n < V)


def _power_of_2_within(value: int) -> int:
    """The largest power of 2 that is not above `value`, 1 of less."""
    return 1 << max(value.bit_length() - 1, 0)


def shares(parts: int, rank: int, rows: int | None = None) -> dict[str, int]:
    """How `_join_parts` deals out rows of `rank` values in some so many `parts`; so many `rows` to
    a program, or as many as it has work for."""
    columns = min(max(_power_of_2_within(_VALUES // parts), 32), rank)
    rows = rows or _power_of_2_within(_VALUES // (parts * columns))
    # Four values a thread and turn.
    splits = max(_WARPS * 32 * 4 // (columns * rows), 1)
    turns = cdiv(parts, splits)
    return {"ROWS": rows, "COLUMNS": columns, "SPLITS": splits, "TURNS": turns}


def join_parts(attend: Attend, out: torch.Tensor, value_scale: float, early: bool) -> None:
    """Writes those rows of `out` [T, H, R] whose q tile was split. Few tiles are dealt out to more
    programs each: of one row alone that is memory's time instead of one multiprocessor's."""
    layout, rank = attend.layout, attend.head_dim
    tiles = layout.max_tiles
    # As many as an even division leaves.
    share = shares(min(layout.num_programs // tiles + 2, layout.num_programs), rank)
    pdl = dependent_launch(out.device)
    rows, columns = cdiv(attend.used_rows, share["ROWS"]), rank // share["COLUMNS"]
    _join_parts[(tiles * attend.lanes, rows, columns)](
        attend.schedule, out, attend.parts, attend.part_sums, layout.max_tiles, value_scale,
        H=attend.heads, K=attend.lanes, R=rank, M=attend.rows, P=layout.num_programs, EARLY=early,
        PDL=pdl, num_warps=_WARPS, launch_pdl=pdl, **share,
    )  # fmt: skip


def join_one(
    attend: Attend,
    latents: torch.Tensor,
    value_up: torch.Tensor,
    out: torch.Tensor,
    value_scale: float,
    early: bool,
) -> None:
    """The values `out` [1, H, V] of the only row of one query, which lies in parts or, where one
    program computed it, in `latents` [1, H, R]."""
    heads, rank, width = value_up.shape
    layout = attend.layout
    share = shares(layout.num_programs, rank, rows=1)
    slices = rank // share["COLUMNS"]
    pdl = dependent_launch(out.device)
    products = torch.empty(heads, slices, width, dtype=torch.float32, device=out.device)
    _join_one[(heads, slices)](
        attend.schedule, latents, attend.parts, attend.part_sums, value_up, products, value_scale,
        H=heads, K=attend.lanes, R=rank, M=attend.rows, P=layout.num_programs, V=width,
        V_PAD=next_power_of_2(width), EARLY=early, PDL=pdl, num_warps=_WARPS,
        maxnreg=_REGISTERS, launch_pdl=pdl, **share,
    )  # fmt: skip
    _sum_products[(heads, cdiv(width, _SUMMED))](
        products, out, V=width, SLICES=slices, BN=_SUMMED, PDL=pdl, num_warps=1, launch_pdl=pdl
    )
