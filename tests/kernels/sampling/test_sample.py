from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.registry import load
from tokenspeed_kernels.sampling import reference

from tests.kernels.sampling.unsound import unsound_rows

DRAWS = 20_000
# The 99.99 % point of chi-square with 7 degrees of freedom. Seeds are fixed, so a pass stays one.
CHI_SQUARE_7 = 29.9


def parameters(rows, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    return (
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
    )


def frequencies(kernel, logits, seed=0, **kwargs):
    """How often each token is drawn over DRAWS positions."""
    rows = logits.expand(DRAWS, -1).contiguous()
    seeds = torch.full((DRAWS,), seed)
    tokens = kernel(rows, *parameters(DRAWS, **kwargs), seeds, torch.arange(DRAWS)).tokens
    return tokens.long().bincount(minlength=logits.shape[0])


@pytest.fixture(params=["kernel", "reference"])
def either(request, kernel):
    return kernel if request.param == "kernel" else reference.sample


LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, 1.5, -1.0, 0.2])


@pytest.mark.op("sample")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_draw_follows_the_distribution(either, temperature):
    expected = (LOGITS / temperature).softmax(-1) * DRAWS
    counts = frequencies(either, LOGITS, temperature=temperature)
    # Cells under 5 expected draws are not chi-square; at 0.3 there are none below 1.
    chi_square = ((counts - expected).square() / expected.clamp(min=1)).sum()
    assert chi_square < CHI_SQUARE_7


@pytest.mark.op("sample")
@pytest.mark.parametrize(
    ("kwargs", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 5}),
        ({"top_k": 100}, set(range(8))),
        ({"top_p": 0.0}, {0}),
        ({"top_p": 0.5}, {0, 5}),
        ({"top_p": 0.98}, set(range(8)) - {6}),
        ({"min_p": 0.3}, {0, 1, 5}),
        ({"min_p": 1.0}, {0}),
        # In order: top-k leaves 0, 5, 1 with 0.51, 0.31, 0.19; top-p 0.8 of those, not of all.
        ({"top_k": 3, "top_p": 0.8}, {0, 5}),
        ({"top_k": 3, "top_p": 0.83}, {0, 1, 5}),
        # Temperature first: cold, fewer reach min-p.
        ({"temperature": 0.25, "min_p": 0.1}, {0, 5}),
        ({"min_p": 0.3, "top_p": 0.5}, {0}),
    ],
)
def test_what_is_kept(either, kwargs, kept):
    counts = frequencies(either, LOGITS, **kwargs)
    assert {token for token, count in enumerate(counts.tolist()) if count} == kept
    # And in proportion: each pair of kept tokens as their weights.
    weights = (LOGITS / kwargs.get("temperature", 1.0)).softmax(-1)[sorted(kept)]
    expected = weights / weights.sum() * DRAWS
    chi_square = ((counts[sorted(kept)] - expected).square() / expected.clamp(min=1)).sum()
    assert chi_square < CHI_SQUARE_7


@pytest.mark.op("sample")
def test_ties_at_a_threshold_are_kept(either):
    logits = torch.tensor([1.0, 0.0, 1.0, 1.0, -1.0])
    assert (frequencies(either, logits, top_k=2)[[0, 2, 3]] > DRAWS / 4).all()
    assert (frequencies(either, logits, top_p=0.4)[[0, 2, 3]] > DRAWS / 4).all()


@pytest.mark.op("sample")
def test_every_parameter_moves_the_distribution(either):
    plain = frequencies(either, LOGITS)
    for change in (
        {"temperature": 0.5},
        {"top_k": 2},
        {"top_p": 0.6},
        {"min_p": 0.4},
    ):
        distance = (frequencies(either, LOGITS, **change) - plain).abs().sum() / DRAWS
        assert distance > 0.1, change
    assert not torch.equal(frequencies(either, LOGITS, seed=1), plain)


@pytest.mark.op("sample")
@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 1000, 4099])
def test_equals_the_reference(kernel, vocab, poisoned):
    rows = 64
    logits = torch.randn(rows, vocab) * torch.linspace(0.1, 8, rows).unsqueeze(1)
    logits[3, : vocab // 2] = float("-inf")
    logits[4] = 0.0
    choose = torch.randint
    temperature = torch.tensor([0.0, 0.2, 1.0, 3.0])[choose(0, 4, (rows,))]
    top_k = torch.tensor([0, 1, 5, 40, vocab])[choose(0, 5, (rows,))].int()
    top_p = torch.tensor([1.0, 0.1, 0.9, 0.999])[choose(0, 4, (rows,))]
    min_p = torch.tensor([0.0, 0.05, 0.5])[choose(0, 3, (rows,))]
    seeds = choose(-(2**62), 2**62, (rows,))
    positions = choose(0, 2**40, (rows,))
    before = logits.clone()
    arguments = (logits, temperature, top_k, top_p, min_p, seeds, positions)
    assert torch.equal(kernel(*arguments).tokens, reference.sample(*arguments).tokens)
    assert torch.equal(logits, before)


@pytest.mark.op("sample")
@pytest.mark.parametrize(
    "kwargs", [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.01}, {"top_p": 0.9999}]
)
def test_a_full_vocabulary_equals_the_reference(kernel, kwargs):
    logits = torch.randn(6, 49152) * torch.tensor([0.01, 0.5, 1, 2, 4, 8]).unsqueeze(1)
    arguments = (logits, *parameters(6, **kwargs), torch.arange(6) + 100, torch.arange(6))
    assert torch.equal(kernel(*arguments).tokens, reference.sample(*arguments).tokens)


@pytest.mark.op("sample")
def test_equal_seeds_draw_alike_whatever_the_batch(either):
    logits = torch.randn(1, 500)
    alone = either(logits, *parameters(1), torch.tensor([42]), torch.tensor([7])).tokens
    others = torch.randn(9, 500)
    for place in (0, 4, 9):
        batch = torch.cat((others[:place], logits, others[place:]))
        seeds = torch.arange(10)
        seeds[place] = 42
        positions = torch.arange(10) * 3
        positions[place] = 7
        tokens = either(batch, *parameters(10, top_k=0), seeds, positions).tokens
        assert tokens[place] == alone[0]


@pytest.mark.op("sample")
def test_greedy_takes_the_lowest_of_equals(either):
    logits = torch.full((3, 300), -1.0)
    logits[0, [250, 70, 71]] = 5.0
    logits[1, 299] = 0.0
    tokens = either(
        logits,
        *parameters(3, temperature=0.0, top_k=7, top_p=0.1),
        torch.zeros(3).long(),
        torch.zeros(3).long(),
    ).tokens
    assert tokens.tolist() == [70, 299, 0]
    assert tokens.dtype is torch.int32


@pytest.mark.op("sample")
@pytest.mark.parametrize("vocab", [5, 64, 1000])
@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.0}, {}, {"top_k": 3}, {"top_k": 300}, {"top_p": 0.5}, {"min_p": 0.1},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    ],
)  # fmt: skip
def test_rows_that_are_no_numbers_give_tokens_of_the_vocabulary(kernel, vocab, asked):
    """A model that overflowed: its worker must live to say so."""
    logits = unsound_rows(torch.randn(6, vocab, generator=torch.Generator().manual_seed(3)))
    numbers = torch.zeros(6).long()
    drawn = kernel(
        logits, *parameters(6, **asked), numbers, numbers,
        scored_rows=torch.arange(6), num_logprobs=min(4, vocab),
    )  # fmt: skip
    assert ((drawn.tokens >= 0) & (drawn.tokens < vocab)).all()
    assert ((drawn.logprobs.top_ids >= 0) & (drawn.logprobs.top_ids < vocab)).all()
    assert drawn.logprobs.chosen[0].isnan()


@pytest.mark.op("sample")
def test_no_rows(either):
    none = torch.zeros(0).long()
    assert either(torch.zeros(0, 9), *parameters(0), none, none).tokens.tolist() == []


def test_the_loaded_reference_is_the_reference():
    assert load("sample_reference") is reference.sample
