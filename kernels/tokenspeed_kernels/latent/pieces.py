"""Shares out attention over expanded keys among the programs of a device, on the host.

A q tile is up to TILE consecutive queries of one row under one head, a kv tile as many keys. A q
tile and the kv tiles of a chunk that its queries see make a column. Columns are given to programs,
each to whom has most room left. Where that is too little for all of it he takes its last kv tiles,
so that programs which begin together walk the same keys together, and what is left of such columns
fills the room of others. A column then has several pieces, with sums of their own: who leaves
the last of them in the last chunk joins them all.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

TILE = 128
# int32 words of a piece.
PIECE = 13
# What it costs to begin a piece, in kv tiles, and as many as are a piece of their own.
_COST, _LEAST = 2, 4


class Column(NamedTuple):
    """A q tile under a head. `query` counts from the first of the step's rows; the first of its
    queries sees `sees` keys."""

    row: int
    head: int
    query: int
    queries: int
    sees: int


class Span(NamedTuple):
    """What a column meets of a chunk, in keys of its row: which, and where the chunk begins."""

    first: int
    last: int
    chunk: int


class Piece(NamedTuple):
    """Kv tiles `first` to `last` of a column's span."""

    column: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """`chunks`: of each the first piece of every program and their end, and the pieces: first
    query, queries, head, first and last kv tile, where in the chunk these begin, keys from there on
    that the first query sees, the rows of sums that are gone on from and left, -1 for none and for
    the output, and where the column has several parts, which lie behind each other: what counts
    them (-1 for one part), how often a warpgroup leaves sums there in all chunks, the first row,
    how many parts there are. `rows`: of sums in all; `counts`: of those that count, two a
    column."""

    chunks: list[tuple[list[int], list[int]]]
    rows: int
    counts: int


def rows_of_sums(num_tokens: int, heads: int, programs: int) -> int:
    """Enough for any such step: every query of a row that goes on has one under each head, and each
    program may cut a column or two."""
    return num_tokens * heads + 2 * programs * TILE


def schedule(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    heads: int,
    chunk_tiles: int,
    programs: int,
    most_rows: int,
) -> Schedule:
    """Of all chunks of `chunk_tiles` kv tiles of the line, where each row begins a tile."""
    columns = _columns(query_lens, context_lens, heads)
    before, total = [], 0
    for new, cached in zip(query_lens, context_lens, strict=True):
        before.append(total)
        total += -(-(new + cached) // TILE) if new else 0
    spans = [
        [_span(column, (first - before[column.row]) * TILE, chunk_tiles) for column in columns]
        for first in range(0, total, chunk_tiles)
    ]
    made = _numbered(columns, spans, programs, cut=True)
    if made.rows > most_rows:
        made = _numbered(columns, spans, programs, cut=False)
    assert made.rows <= most_rows
    return made


def _columns(query_lens: Sequence[int], context_lens: Sequence[int], heads: int) -> list[Column]:
    """Rows that see most first, head by head; the last q tiles of a row, which see most, ahead."""
    rows, begin = [], 0
    for row, (new, cached) in enumerate(zip(query_lens, context_lens, strict=True)):
        rows.append((-(new + cached), row, begin, new, cached))
        begin += new
    found = []
    for _, row, begin, new, cached in sorted(rows):
        tiles = [(first, min(TILE, new - first)) for first in reversed(range(0, new, TILE))]
        found += [
            Column(row, head, begin + first, queries, cached + first + 1)
            for head in range(heads)
            for first, queries in tiles
        ]
    return found


def _span(column: Column, chunk: int, chunk_tiles: int) -> Span:
    last = min(chunk + chunk_tiles * TILE, column.sees + column.queries - 1)
    return Span(max(chunk, 0), last, chunk)


def share_out(tiles: Sequence[int], programs: int, cut: bool) -> list[list[Piece]]:
    """The pieces of each program that has some, of columns with so many kv tiles. Without `cut` a
    piece is a column."""
    work = sum(count + _COST for count in tiles if count)
    # Most programs end with a piece that was cut; a little more, lest the last ones be crumbs.
    room = -(-work // programs) + _COST + 1
    slack = max(_COST, room // 64) if cut else work
    shares: list[list[Piece]] = [[] for _ in range(programs)]
    free = [(-room, program) for program in range(programs)]
    left: list[Piece] = []
    for column, count in enumerate(tiles):
        if not count:
            continue
        most, program = free[0]
        here = -most - _COST
        kept = count if count <= here + slack else here
        if kept == count or kept >= _LEAST:
            shares[program].append(Piece(column, count - kept, count))
            heapq.heapreplace(free, (most + kept + _COST, program))
        else:
            kept = 0
        if kept < count:
            left.append(Piece(column, 0, count - kept))
    for column, _, last in left:
        while last:
            most, program = free[0]
            kept = min(last, max(-most - _COST, _LEAST))
            if last - kept < _LEAST:
                kept = last
            shares[program].append(Piece(column, last - kept, last))
            heapq.heapreplace(free, (most + kept + _COST, program))
            last -= kept
    return [share for share in shares if share]


def _numbered(columns: list[Column], spans: list[list[Span]], programs: int, cut: bool) -> Schedule:
    """The pieces of all chunks, and where their sums go: the n-th piece of a column in a chunk goes
    on from the n-th of it in a chunk before."""
    shares = [
        share_out([max(0, -(-(last - first) // TILE)) for first, last, _ in span], programs, cut)
        for span in spans
    ]
    # Parts of a column where it has most of them, pieces in all chunks, and chunks with some.
    most, pieces, times = ([0] * len(columns) for _ in range(3))
    for share in shares:
        here = [0] * len(columns)
        for program in share:
            for piece in program:
                here[piece.column] += 1
        for index, count in enumerate(here):
            most[index] = max(most[index], count)
            pieces[index] += count
            times[index] += count > 0
    rows = counts = 0
    sums = []
    for column, parts, count, chunks in zip(columns, most, pieces, times, strict=True):
        base = rows if parts > 1 or chunks > 1 else -1
        sums.append(_Sums(base, parts, counts if parts > 1 else -1, count))
        if base >= 0:
            rows += parts * column.queries
        counts += 2 * (parts > 1)
    written: set[int] = set()
    made = [
        _words(columns, span, share, sums, written)
        for span, share in zip(spans, shares, strict=True)
    ]
    return Schedule(made, rows, counts)


class _Sums(NamedTuple):
    """Of a column: see `Schedule`. `row`: -1 for none."""

    row: int
    parts: int
    counter: int
    leaves: int


def _words(
    columns: list[Column], spans: list[Span], shares: list[list[Piece]], sums: list[_Sums],
    written: set[int],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """A chunk of `Schedule.chunks`. `written`: rows of sums that chunks before left."""
    table: list[int] = [0]
    words: list[int] = []
    nexts = [one.row for one in sums]
    for share in shares:
        for index, first_tile, last_tile in share:
            _, head, query, queries, sees = columns[index]
            first, last, chunk = spans[index]
            row, most, counter, leaves = sums[index]
            taken = left = -1
            if row >= 0:
                left = nexts[index]
                nexts[index] += queries
                taken = left if left in written else -1
                written.add(left)
                if most == 1 and last == sees + queries - 1:
                    left = -1
            words += (
                query, queries, head, first_tile, last_tile, first - chunk, sees - first, taken,
                left, counter, leaves, row, most,
            )  # fmt: skip
        table.append(len(words) // PIECE)
    return table, words
