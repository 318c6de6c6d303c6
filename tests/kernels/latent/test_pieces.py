"""How attention over expanded keys is shared out: every kv tile once, evenly, no sum lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tokenspeed_kernels.latent import pieces
from tokenspeed_kernels.latent.pieces import PIECE, TILE

RNG = np.random.default_rng(3)
DIM = 4
# New and cached tokens of each row, tiles of a chunk, programs.
STEPS = {
    "one row": ([200], [3000], 64, 7),
    "half a q tile": ([64], [3000], 64, 7),
    "a half and a whole": ([192], [2500], 64, 5),
    "nothing cached": ([700], [0], 64, 4),
    "two chunks": ([300], [1500], 8, 5),
    "many chunks": ([200, 40], [2000, 700], 3, 6),
    "rows without queries": ([0, 129, 0, 1], [77, 900, 3, 1300], 64, 9),
    "chunk ends with a row": ([128, 130], [896, 62], 8, 4),
    "more programs than work": ([3], [5], 64, 132),
}


class Attention:
    """What the kernels do with a schedule, in float64."""

    def __init__(self, query_lens, context_lens, heads, chunk_tiles):
        self.lens, self.contexts, self.heads = query_lens, context_lens, heads
        self.chunk = chunk_tiles * TILE
        self.query = RNG.normal(size=(sum(query_lens), heads, DIM))
        # Keys and values of the line, each row from a whole tile on.
        lens = zip(query_lens, context_lens, strict=True)
        tiles = [-(-(new + cached) // TILE) if new else 0 for new, cached in lens]
        self.begins = np.concatenate(([0], np.cumsum(tiles))) * TILE
        self.keys, self.values = RNG.normal(size=(2, heads, self.begins[-1] + self.chunk, DIM))

    def expected(self):
        out, token = np.empty_like(self.query), 0
        rows = zip(self.begins, self.lens, self.contexts, strict=False)
        for begin, new, cached in rows:
            for query in range(new):
                seen = slice(begin, begin + cached + query + 1)
                scores = np.einsum("hd,hkd->hk", self.query[token], self.keys[:, seen])
                weights = np.exp(scores - scores.max(1, keepdims=True))
                weights /= weights.sum(1, keepdims=True)
                out[token] = np.einsum("hk,hkd->hd", weights, self.values[:, seen])
                token += 1
        return out

    def run(self, made):
        out = np.full_like(self.query, np.nan)
        sums = np.full((made.rows, DIM + 2), np.nan)
        counts = np.zeros(made.counts, int)
        for chunk, (table, words) in enumerate(made.chunks):
            assert table[0] == 0 and table[-1] * PIECE == len(words)
            assert all(a < b for a, b in itertools.pairwise(table))
            for piece in np.array(words).reshape(-1, PIECE):
                self._meet(chunk * self.chunk, piece[:9], out, sums)
                self._join(piece, out, sums, counts)
        assert not counts.any()
        return out

    def _join(self, piece, out, sums, counts):
        first, queries, head = piece[:3]
        counter, leaves, row, parts = piece[9:]
        if counter < 0:
            return
        for which in range(2):
            counts[counter + which] += 1
            if counts[counter + which] < leaves:
                continue
            counts[counter + which] = 0
            for m in range(which * 64, min(which * 64 + 64, queries)):
                every = sums[row + m : row + parts * queries : queries]
                weights = np.exp(every[:, 0] - every[:, 0].max())
                total = weights @ every[:, 1:]
                assert np.isnan(out[first + m, head]).all()
                out[first + m, head] = total[1:] / total[0]

    def _meet(self, chunk, piece, out, sums):
        query, queries, head, first, last, place, sees, taken, left = piece
        for m in range(queries):
            top, total = -np.inf, np.zeros(DIM + 1)
            if taken >= 0:
                top, total = sums[taken + m, 0], sums[taken + m, 1:]
                assert not np.isnan(total).any()
            at = np.arange(first * TILE, min(last * TILE, sees + m))
            if len(at):
                there = chunk + place + at
                scores = self.keys[head, there] @ self.query[query + m, head]
                higher = max(top, scores.max())
                weights = np.exp(scores - higher)
                ones = np.ones((len(at), 1))
                total = total * np.exp(top - higher)
                total = total + weights @ np.hstack((ones, self.values[head, there]))
                top = higher
            if left < 0:
                assert np.isnan(out[query + m, head]).all()
                out[query + m, head] = total[1:] / total[0]
            else:
                sums[left + m] = top, *total


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("room", ["enough", "least"])
def test_every_query_meets_what_it_sees_once(step, room):
    lens, contexts, chunk_tiles, programs = STEPS[step]
    attention = Attention(lens, contexts, 2, chunk_tiles)
    enough = pieces.rows_of_sums(sum(lens), 2, programs)
    least = enough - 2 * programs * TILE
    most = enough if room == "enough" else least
    made = pieces.schedule(lens, contexts, 2, chunk_tiles, programs, most)
    assert made.rows <= most
    np.testing.assert_allclose(attention.run(made), attention.expected(), rtol=1e-9)


@pytest.mark.parametrize(
    ("lens", "contexts"),
    [([832], [50000]), ([500], [50000]), ([1600], [50000]), ([1056], [50000]), ([8192], [0]),
     ([2048], [150000]), ([832, 300], [50000, 16000]), ([64], [50000])],
)  # fmt: skip
def test_all_programs_have_as_much_to_do(lens, contexts):
    most = pieces.rows_of_sums(sum(lens), 16, 132)
    made = pieces.schedule(lens, contexts, 16, 2048, 132, most)
    ((table, words),) = made.chunks
    costs = [
        last - first + pieces._COST
        for _, _, _, first, last, *_ in np.array(words).reshape(-1, PIECE)
    ]
    loads = [sum(costs[a:b]) for a, b in itertools.pairwise(table)]
    assert max(loads) <= 1.05 * sum(loads) / 132
    # As many programs as columns take the end of one, and few more pieces are cut.
    columns = sum(-(-new // TILE) for new in lens) * 16
    assert len(costs) <= columns + 1.3 * 132
