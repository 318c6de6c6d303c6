from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tokenspeed_kernels.sampling import reference
from tokenspeed_kernels.sampling.op import Edits

PROMPT = -(2**15)


def no_edits(rows, vocab, slots=1):
    """Of rows that all have slot 0."""
    zero = torch.zeros(rows)
    return Edits(
        slots=torch.zeros(rows).long(),
        counts=torch.zeros(slots, vocab, dtype=torch.int16),
        repetition=torch.ones(rows),
        presence=zero,
        frequency=zero,
        biased=zero,
        bias=torch.zeros(slots, vocab),
        mask_of=torch.full((rows,), -1, dtype=torch.int32),
        masks=torch.zeros(1, -(-vocab // 32), dtype=torch.int32),
    )


def random_edits(rows, vocab):
    slots = rows + 4
    counts = torch.randint(-9, 4, (slots, vocab)).clamp(min=0).to(torch.int16)
    counts[torch.rand(slots, vocab) < 0.3] |= PROMPT
    masks = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32))).int()
    masks[:, 0] |= 1  # a row may draw something
    pick = torch.randint
    return Edits(
        slots=torch.randperm(slots)[:rows],
        counts=counts,
        repetition=torch.tensor([1.0, 1.3, 0.7])[pick(0, 3, (rows,))],
        presence=torch.tensor([0.0, 0.5, -1.0])[pick(0, 3, (rows,))],
        frequency=torch.tensor([0.0, 0.4, -0.3])[pick(0, 3, (rows,))],
        biased=pick(0, 2, (rows,)).float(),
        bias=torch.randn(slots, vocab),
        mask_of=torch.where(torch.rand(rows) < 0.5, torch.randperm(rows), -1).int(),
        masks=masks,
    )


def arguments_of(logits, temperature=1.0):
    rows = len(logits)
    one = torch.ones(rows)
    return (
        logits, one * temperature, torch.zeros(rows).int(), one, 0 * one,
        torch.arange(rows), torch.arange(rows),
    )  # fmt: skip


@pytest.mark.op("sample")
@pytest.mark.parametrize("vocab", [1, 32, 65, 1000])
def test_the_draw_is_by_edited_logits(kernel, vocab):
    logits = torch.randn(80, vocab) * 3
    before, arguments = logits.clone(), arguments_of(logits)
    edits, rows = random_edits(80, vocab), torch.tensor([7, 0, 3])
    k = min(vocab, 5)
    mine = kernel(*arguments, edits, rows, k)
    theirs = reference.sample(*arguments, edits, rows, k)
    assert torch.equal(mine.tokens, theirs.tokens)
    assert torch.equal(logits, before)
    # The log-probabilities are those of the logits as they came.
    expected = before.log_softmax(-1)[rows].gather(1, mine.tokens[rows].long().unsqueeze(1))[:, 0]
    torch.testing.assert_close(mine.logprobs.chosen, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(mine.logprobs.top_ids, theirs.logprobs.top_ids)
    torch.testing.assert_close(
        mine.logprobs.top_values, theirs.logprobs.top_values, rtol=1e-5, atol=1e-5
    )


@pytest.mark.op("sample")
@pytest.mark.parametrize(
    "change",
    [
        {"repetition": torch.tensor([2.5])},
        {"presence": torch.tensor([1.5])},
        {"frequency": torch.tensor([0.75])},
        {"biased": torch.ones(1), "bias": torch.tensor([[0.0, 0.0, -1.5, 0.0]])},
        {"mask_of": torch.zeros(1).int(), "masks": torch.tensor([[0b1011]]).int()},
    ],
)
def test_each_edit_alone_moves_the_draw(kernel, change):
    """Token 2, drawn twice, would be drawn first, and token 1 without it."""
    logits = torch.tensor([[0.0, 2.0, 3.0, 1.0]])
    none = no_edits(1, 4)
    none.counts[0, 2] = 2
    assert kernel(*arguments_of(logits, 0.0), none).tokens.tolist() == [2]
    edits = replace(none, **change)
    assert kernel(*arguments_of(logits, 0.0), edits).tokens.tolist() == [1]


def test_each_penalty_by_hand():
    # Tokens: never seen, in the prompt, twice in the output, in both once.
    counts = torch.tensor([[0, PROMPT, 2, PROMPT + 1]]).to(torch.int16)
    logits = torch.tensor([[4.0, 4.0, 4.0, -4.0]]).repeat(3, 1)
    edits = replace(
        no_edits(3, 4),
        counts=counts,
        repetition=torch.tensor([2.0, 1.0, 1.0]),
        presence=torch.tensor([0.0, 0.5, 0.0]),
        frequency=torch.tensor([0.0, 0.0, 0.25]),
    )
    assert reference.apply_edits(logits, edits).tolist() == [
        [4.0, 2.0, 2.0, -8.0],
        [4.0, 4.0, 3.5, -4.5],
        [4.0, 4.0, 3.5, -4.25],
    ]


def test_bias_and_mask_by_hand():
    """Bit 31 is the sign of a word, and what lies behind the vocabulary does not count."""
    edits = replace(
        no_edits(3, 35),
        biased=torch.tensor([0.0, 1.0, 0.0]),
        bias=torch.full((1, 35), 0.5),
        mask_of=torch.tensor([-1, 1, 0]).int(),
        masks=torch.tensor([[-(2**31) + 1, 2], [-1, -1]]).int(),
    )
    edited = reference.apply_edits(torch.zeros(3, 35), edits)
    assert (edited[0] == 0).all()
    assert (edited[1] == 0.5).all()
    assert (edited[2] == 0).nonzero().flatten().tolist() == [0, 31, 33]
