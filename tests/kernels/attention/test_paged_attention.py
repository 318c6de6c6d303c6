from __future__ import annotations

import math

import pytest
import torch
from tokenspeed_kernels.attention import reference

# (query_len, context_len) of each row of a step.
RAGGED = {
    "decode": [(1, 0), (1, 1), (1, 15), (1, 16), (1, 63), (1, 64), (1, 130)],
    "first_chunk": [(1, 0), (5, 0), (33, 0), (70, 0)],
    "extend": [(2, 3), (17, 64), (64, 100), (3, 200)],
    "mixed": [(1, 77), (1, 0), (40, 0), (1, 5), (7, 120), (0, 0), (1, 31)],
    "empty": [(0, 0), (0, 9)],
}


def build(rows, heads, kv_heads, head_dim, block_size, kv_dtype):
    """A step over shuffled blocks; whatever no row owns is nan, and so are unused entries' ids'
    blocks: a kernel that reads too far shows."""
    used = [math.ceil((query + context) / block_size) for query, context in rows]
    num_blocks = sum(used) + 2
    order = torch.randperm(num_blocks - 1) + 1
    width = max([*used, 1]) + 2
    tables = torch.zeros(len(rows), width, dtype=torch.int32)
    shape = (num_blocks, block_size, kv_heads, head_dim)
    k_cache = torch.full(shape, float("nan"), dtype=kv_dtype)
    v_cache = torch.full(shape, float("nan"), dtype=kv_dtype)
    taken = 0
    for row, ((query, context), count) in enumerate(zip(rows, used, strict=True)):
        blocks = order[taken : taken + count]
        taken += count
        tables[row, :count] = blocks.int()
        for cache in (k_cache, v_cache):
            flat = torch.full((count * block_size, kv_heads, head_dim), float("nan"))
            flat[: query + context] = torch.randn(query + context, kv_heads, head_dim)
            cache[blocks] = flat.view(count, block_size, kv_heads, head_dim).to(kv_dtype)
    lens = torch.tensor([0, *(query for query, _ in rows)])
    cu_query_lens = lens.cumsum(0).int()
    context_lens = torch.tensor([context for _, context in rows], dtype=torch.int32)
    q = torch.randn(int(lens.sum()), heads, head_dim)
    return q, k_cache, v_cache, tables, cu_query_lens, context_lens


@pytest.mark.op("paged_attention")
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(9, 3, 64, 16), (4, 4, 16, 1), (7, 1, 48, 5), (8, 2, 128, 32), (16, 1, 256, 8)],
)
@pytest.mark.parametrize("rows", RAGGED.values(), ids=RAGGED.keys())
def test_equals_the_reference(
    kernel, rows, heads, kv_heads, head_dim, block_size, kv_dtype, poisoned
):
    step = build(rows, heads, kv_heads, head_dim, block_size, kv_dtype)
    scale = head_dim**-0.5
    out = kernel(*step, scale)
    expected = reference.paged_attention(*step, scale)
    # Both widen the cache to float32 first; only the order of sums differs.
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.op("paged_attention")
@pytest.mark.parametrize("query_len", [1, 3, 40])
def test_scores_far_apart_stay_finite(kernel, query_len):
    step = list(build([(query_len, 100)], 2, 1, 32, 16, torch.float32))
    step[0] = step[0] * 100
    out = kernel(*step, 1.0)
    assert out.isfinite().all()
    torch.testing.assert_close(out, reference.paged_attention(*step, 1.0), rtol=1e-3, atol=1e-4)


@pytest.mark.op("paged_attention")
def test_a_row_does_not_depend_on_its_neighbours(kernel):
    rows = [(1, 40), (9, 12), (1, 7)]
    q, k_cache, v_cache, tables, cu_query_lens, context_lens = build(
        rows, 6, 2, 64, 16, torch.float32
    )
    together = kernel(q, k_cache, v_cache, tables, cu_query_lens, context_lens, 0.125)
    for row, (query_len, _) in enumerate(rows):
        begin = int(cu_query_lens[row])
        alone = kernel(
            q[begin : begin + query_len],
            k_cache,
            v_cache,
            tables[row : row + 1],
            torch.tensor([0, query_len], dtype=torch.int32),
            context_lens[row : row + 1],
            0.125,
        )
        assert torch.equal(alone, together[begin : begin + query_len])


def test_reference_equals_torch():
    q, k_cache, v_cache, tables, cu_query_lens, context_lens = build(
        [(11, 20)], 6, 2, 32, 8, torch.float32
    )
    out = reference.paged_attention(q, k_cache, v_cache, tables, cu_query_lens, context_lens, 0.3)
    tokens = [cache[tables[0, :4].long()].flatten(0, 1)[:31] for cache in (k_cache, v_cache)]
    keys, values = (t.transpose(0, 1).repeat_interleave(3, dim=0) for t in tokens)
    mask = torch.ones(11, 31, dtype=torch.bool).tril(20)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys, values, attn_mask=mask, scale=0.3
    ).transpose(0, 1)
    torch.testing.assert_close(out, expected)
