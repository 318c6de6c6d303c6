from __future__ import annotations

import functools

import pytest
from tokenspeed_kernels.attention import paged_attention_ordered
from tokenspeed_kernels.attention.paged_attention_ordered import PagedAttentionOrdered

from tests.kernels.triton import cases
from tests.kernels.triton.company import Company

SHORT = functools.partial(PagedAttentionOrdered, most_keys=512)


def bind(*shape, decode=None, extend=None, window=0):
    return SHORT(*shape, window=window)


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
def test_mixed_with_empty_rows(kv_dtype):
    lens, contexts = [1, 0, 1, 20, 0, 3], [50, 70, 0, 16, 9, 500]
    cases.check_attention("cpu", lens, contexts, 3, bind=bind, kv_dtype=kv_dtype)


@pytest.mark.parametrize("multiprocessors", [2, 6, 14])
def test_rows_of_several_parts(monkeypatch, multiprocessors):
    """By one program each, or by several that leave parts to be folded."""
    monkeypatch.setattr(
        paged_attention_ordered, "num_multiprocessors", lambda device: multiprocessors
    )
    contexts = [511, 300, 0, 255, 256]
    cases.check_attention("cpu", [1] * 5, contexts, 5, bind=bind)


@pytest.mark.parametrize("lens", [[0, 0, 0, 9], [1, 1, 1, 0], [0, 0, 0, 0]])
def test_no_row_of_a_kind(lens):
    cases.check_attention("cpu", lens, [50, 70, 3, 16], 3, bind=bind)


@pytest.mark.parametrize(("length", "new", "kv_dtype"), [(68, 8, cases.FP8), (516, 8, cases.BF16)])
def test_queries_attend_alike_in_any_company(length, new, kv_dtype):
    """Queries on both sides of where a kv tile ends, and of where a part does."""
    company = Company(
        "cpu", bind, length, new, [(1, 130), (5, 60)],
        heads=4, kv_heads=1, head_dim=32, block=16, kv_dtype=kv_dtype,
    )  # fmt: skip
    company.check(step=5)
