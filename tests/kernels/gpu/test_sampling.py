from __future__ import annotations

import pytest
import torch

from tests.kernels.triton import cases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
@pytest.mark.parametrize(
    ("rows", "vocab"), [(10, 1), (10, 300), (20, 4097), (64, 131072), (10, 201088)]
)
@pytest.mark.parametrize(("k", "edited"), [(None, False), (None, True), (20, False), (20, True)])
def test_sample(rows, vocab, spread, k, edited):
    cases.check_sample("cuda", rows, vocab, spread, None if k is None else min(k, vocab), edited)


@pytest.mark.parametrize("vocab", [5, 1000, 131072, 201088])
def test_rows_that_are_no_numbers_give_tokens_of_the_vocabulary(vocab):
    """A model that overflowed: its worker must live to say so."""
    cases.check_rows_that_are_no_numbers("cuda", vocab)


def test_a_replay_equals_a_launch():
    """Kernels of a graph start before those ahead of them are done, in memory that those leave."""
    rows, vocab = 64, 131072
    logits = torch.randn(rows, vocab, device="cuda") * 4
    seeds, every = torch.arange(rows, device="cuda") * 7919, torch.arange(rows, device="cuda")
    edits = cases.edits_of(rows, vocab, "cuda")
    parameters = cases.sampling_parameters(rows, "cuda")
    arguments = (logits, *parameters, seeds, seeds, edits, every, 20)
    expected = cases.sample(*arguments)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        drawn = [cases.sample(*arguments) for _ in range(8)]
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    for one in drawn:
        assert torch.equal(one.tokens, expected.tokens)
        for mine, theirs in zip(one.logprobs, expected.logprobs, strict=True):
            assert torch.equal(mine, theirs)


def test_the_random_words_are_philox():
    """A draw over equal logits is the largest random word of the row."""
    seeds = torch.randint(-(2**63), 2**63 - 1, (40,), device="cuda")
    positions = torch.randint(0, 2**62, (40,), device="cuda")
    flat = torch.zeros(40, 5000, device="cuda")
    one, zero = torch.ones(40, device="cuda"), torch.zeros(40, device="cuda")
    drawn = cases.sample(flat, one, zero.int(), one, zero, seeds, positions).tokens
    words = cases.token_bits(seeds, positions, 5000)
    assert torch.equal(drawn.long(), words.argmax(-1))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [0, 1, 20, 32, 40])
@pytest.mark.parametrize(("rows", "vocab"), [(2, 50), (3, 4097), (16, 131072)])
def test_logprobs(rows, vocab, k, ties):
    cases.check_logprobs("cuda", rows, vocab, k, ties)
