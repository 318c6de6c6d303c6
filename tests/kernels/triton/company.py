"""Whether a query attends alike, to the last bit, however its row is cut and whoever is beside it.

Outputs are float32 here: rounded to bfloat16, one difference in tens of thousands would be seen.
"""

from __future__ import annotations

import itertools

import torch

from tests.kernels.triton import cases


def assert_same(found, expected, what):
    """`found` and `expected`: float32 [queries, heads, head_dim]."""
    if torch.equal(found, expected):
        return
    steps = (found.view(torch.int32).long() - expected.view(torch.int32).long()).abs()
    places = (steps.amax(-1) > 0).nonzero().tolist()
    raise AssertionError(
        f"{what}: {int((steps > 0).sum())} of {steps.numel()} values differ, by up to "
        f"{int(steps.max())} steps of float32; {len(places)} (query, head): {places[:20]}"
    )


class Company:
    """A row of `length` keys whose last `new` are queries, and `others`: (queries, context).
    `bind` as `paged_attention_ordered.PagedAttentionOrdered`."""

    def __init__(
        self, device, bind, length, new, others, *, heads, kv_heads, head_dim, block, kv_dtype
    ):
        lens, contexts = [new, *(q for q, _ in others)], [length - new, *(c for _, c in others)]
        self._q, self._k, self._v, self._tables, cu, _ = cases.attention_batch(
            device, lens, contexts, heads, kv_heads, head_dim, block, kv_dtype
        )
        self._past, self._new, self._scale = length - new, new, head_dim**-0.5
        self._kv_dtype, self._device = kv_dtype, torch.device(device)
        self._rest = [
            (self._q[int(cu[i]) : int(cu[i + 1])], contexts[i], i) for i in range(1, len(lens))
        ]
        # Bound once, as an engine does: rows that it lacks are empty.
        self._most = new, new + len(others)
        self._bound = bind(
            heads, kv_heads, head_dim, *self._most, sum(lens), kv_dtype, self._device
        )

    def check(self, step):
        """The new queries as one prompt, as prompts cut every `step` queries, and decoded, each
        alone and all at once, with others and without."""
        new = self._new
        whole = self._attend([(0, new)], 0, False)

        def check(pieces, decoding=0, beside=False):
            expected = torch.cat([whole[begin:end] for begin, end in pieces])
            what = f"queries {pieces[0]} to {pieces[-1]}, {decoding} decoding, {beside=}"
            assert_same(self._attend(pieces, decoding, beside), expected, what)

        singles = [(i, i + 1) for i in range(new)]
        check(singles)
        for beside in (False, True):
            check([(0, new)], beside=beside)
            check(singles, len(singles), beside=beside)
        for cut in range(step, new, step):
            check([(cut, new)])
            check([(0, cut)], beside=True)
            check([(cut, cut + 1), (cut - step, cut), (cut + 1, new)], 1, beside=True)
            check(singles[cut : cut + 1], 1)

    def _attend(self, pieces, decoding, beside):
        """The outputs of `pieces`, (begin, end) of the new queries, each a row, of which the first
        `decoding` decode; `beside`: among the others."""
        rows = [(self._q[b:e], self._past + b, 0) for b, e in pieces]
        empty = (self._q[:0], 0, 0)
        kinds = [rows[:decoding], rows[decoding:] + (self._rest if beside else [])]
        rows = []
        for kind, most in zip(kinds, self._most, strict=True):
            rows += kind + [empty] * (most - len(kind))
        queries, past, of = zip(*rows, strict=True)
        ends = [0, *itertools.accumulate(map(len, queries))]
        q, tables = torch.cat(queries), self._tables[list(of)]
        self._bound.schedule(*(torch.tensor(x).int().to(self._device) for x in (ends, past)))
        caches = self._written_until(max(end for _, end in pieces))
        out = cases.poisoned(*q.shape, dtype=torch.float32, device=self._device)
        self._bound(q, *caches, tables, self._scale, out=out, early=False)
        return out[: sum(end - begin for begin, end in pieces)]

    def _written_until(self, last):
        """Caches in which nothing has been written past the row's new query `last`."""
        block = self._k.shape[1]
        tokens = torch.arange(self._past + last, self._past + self._new, device=self._device)
        slots = self._tables[0].long()[tokens // block] * block + tokens % block
        caches = [self._k.clone(), self._v.clone()]
        for cache in caches:
            tokens_of_cache = cache.view(torch.uint8).flatten(0, 1)
            nothing = cases.poisoned(cache.shape[-1], dtype=self._kv_dtype, device=self._device)
            tokens_of_cache[slots] = nothing.view(torch.uint8)
        return caches
