from __future__ import annotations

import pytest
import torch

from tests.kernels.triton import cases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
@pytest.mark.parametrize(
    ("rows", "vocab"), [(10, 1), (10, 300), (20, 4097), (64, 131072), (10, 201088)]
)
def test_sample(rows, vocab, spread):
    cases.check_sample("cuda", rows, vocab, spread)


def test_the_random_words_are_philox():
    """A draw over equal logits is the largest random word of the row."""
    seeds = torch.randint(-(2**63), 2**63 - 1, (40,), device="cuda")
    positions = torch.randint(0, 2**62, (40,), device="cuda")
    flat = torch.zeros(40, 5000, device="cuda")
    one, zero = torch.ones(40, device="cuda"), torch.zeros(40, device="cuda")
    drawn = cases.sample(flat, one, zero.int(), one, zero, seeds, positions)
    words = cases.token_bits(seeds, positions, 5000)
    assert torch.equal(drawn.long(), words.argmax(-1))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [0, 1, 20, 32, 40])
@pytest.mark.parametrize(("rows", "vocab"), [(2, 50), (3, 4097), (16, 131072)])
def test_logprobs(rows, vocab, k, ties):
    cases.check_logprobs("cuda", rows, vocab, k, ties)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (5, 4097), (16, 131072)])
def test_penalties(rows, vocab):
    cases.check_penalties("cuda", rows, vocab)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (5, 4097), (16, 131072)])
def test_bitmask(rows, vocab):
    cases.check_bitmask("cuda", rows, vocab)
