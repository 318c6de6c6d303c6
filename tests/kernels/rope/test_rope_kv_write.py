from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.rope import reference

BLOCK_SIZE, NUM_BLOCKS = 4, 9
HEADS = [(9, 3), (4, 4), (8, 1)]


def inputs(tokens, heads, kv_heads, head_dim, rotary_dim, kv_dtype):
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim)
    positions = torch.randint(0, 50, (tokens,), dtype=torch.int32)
    angles = torch.rand(50, rotary_dim // 2) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    slots = torch.randperm(BLOCK_SIZE * NUM_BLOCKS)[:tokens]
    caches = [
        torch.full((NUM_BLOCKS, BLOCK_SIZE, kv_heads, head_dim), 7.0, dtype=kv_dtype)
        for _ in range(2)
    ]
    return qkv, positions, cos_sin, slots, caches


@pytest.mark.op("rope_kv_write")
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "rotary_dim"),
    [
        (0, 0, 64, 64),
        (1, 0, 64, 64),
        (5, 1, 16, 16),
        (7, 2, 80, 40),
        (3, 0, 128, 128),
        (2, 1, 48, 6),
    ],
)
def test_equals_the_reference(
    kernel, kv_dtype, normed, tokens, heads, head_dim, rotary_dim, poisoned
):
    num_heads, num_kv_heads = HEADS[heads]
    qkv, positions, cos_sin, slots, caches = inputs(
        tokens, num_heads, num_kv_heads, head_dim, rotary_dim, kv_dtype
    )
    norms = [torch.randn(head_dim), torch.randn(head_dim)] if normed else [None, None]
    expected_caches = [cache.clone() for cache in caches]
    before = qkv.clone()
    arguments = (qkv, num_heads, num_kv_heads, positions, cos_sin, slots)
    q = kernel(*arguments, *caches, *norms, 1e-6)
    expected = reference.rope_kv_write(*arguments, *expected_caches, *norms, 1e-6)
    assert torch.equal(qkv, before)
    torch.testing.assert_close(q, expected, rtol=1e-5, atol=2e-6)
    # In bfloat16 a value on the edge may round the other way: one unit, 2^-8 of the value.
    rtol = 2**-7 if kv_dtype is torch.bfloat16 else 1e-5
    for cache, expected_cache in zip(caches, expected_caches, strict=True):
        torch.testing.assert_close(cache, expected_cache, rtol=rtol, atol=2e-6)
    untouched = torch.ones(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    untouched[slots] = False
    for cache in caches:
        assert (cache.flatten(0, 1)[untouched] == 7).all()


@pytest.mark.op("rope_kv_write")
def test_values_are_copied_and_rounded_to_nearest_even(kernel):
    head_dim = 16
    qkv = torch.zeros(1, 3 * head_dim)
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, float("inf"), float("nan")])
    qkv[0, 2 * head_dim : 2 * head_dim + 5] = ties
    caches = [torch.zeros(1, 1, 1, head_dim, dtype=torch.bfloat16) for _ in range(2)]
    cos_sin = torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), dim=-1)
    zero = torch.zeros(1, dtype=torch.int32)
    kernel(qkv, 1, 1, zero, cos_sin, zero.long(), *caches, None, None, 1e-6)
    torch.testing.assert_close(
        caches[1].flatten()[:5], ties.bfloat16(), rtol=0, atol=0, equal_nan=True
    )


def test_reference_rotates_by_the_angle():
    # One pair at a quarter turn: (1, 0) becomes (0, 1).
    qkv = torch.tensor([[1.0, 0.0, 1.0, 0.0, 5.0, 6.0]])
    caches = [torch.zeros(1, 1, 1, 2) for _ in range(2)]
    cos_sin = torch.tensor([[0.0, 1.0]])
    zero = torch.zeros(1, dtype=torch.int32)
    q = reference.rope_kv_write(qkv, 1, 1, zero, cos_sin, zero.long(), *caches, None, None, 1e-6)
    assert q.flatten().tolist() == [0.0, 1.0]
    assert caches[0].flatten().tolist() == [0.0, 1.0]
    assert caches[1].flatten().tolist() == [5.0, 6.0]
