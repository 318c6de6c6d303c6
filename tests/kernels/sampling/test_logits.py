from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.sampling import reference


@pytest.mark.op("log_softmax_topk")
@pytest.mark.parametrize("vocab", [1, 64, 100, 4099])
@pytest.mark.parametrize("k", [0, 1, 5, 20])
def test_logprobs_equal_the_reference(kernel, vocab, k, poisoned):
    k = min(k, vocab)
    logits = torch.randn(7, vocab) * 5
    logits[1, : vocab // 2] = float("-inf")
    chosen = torch.randint(0, vocab, (7,), dtype=torch.int32)
    logprob, values, ids = kernel(logits, chosen, k)
    expected_logprob, expected_values, expected_ids = reference.log_softmax_topk(logits, chosen, k)
    torch.testing.assert_close(logprob, expected_logprob, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(values, expected_values, rtol=1e-5, atol=2e-6)
    assert torch.equal(ids, expected_ids)
    assert ids.dtype is torch.int32


@pytest.mark.op("log_softmax_topk")
def test_equal_logits_are_listed_by_id(kernel):
    logits = torch.zeros(1, 200)
    logits[0, [150, 20, 90]] = 1.0
    for k in (2, 5, 200):
        _, _, ids = kernel(logits, torch.zeros(1, dtype=torch.int32), k)
        rest = [i for i in range(200) if i not in (20, 90, 150)]
        assert ids[0].tolist() == [20, 90, 150, *rest][:k]


@pytest.mark.op("log_softmax_topk")
def test_probabilities_sum_to_one(kernel):
    logits = torch.randn(3, 5000) * 3
    _, values, _ = kernel(logits, torch.zeros(3, dtype=torch.int32), 5000)
    torch.testing.assert_close(
        values.double().exp().sum(-1), torch.ones(3).double(), rtol=0, atol=1e-6
    )


def penalty_state(slots, vocab):
    prompt_seen = torch.rand(slots, vocab) < 0.3
    output_counts = (torch.rand(slots, vocab) < 0.2).int() * torch.randint(
        1, 9, (slots, vocab)
    ).int()
    return prompt_seen, output_counts


@pytest.mark.op("apply_penalties")
@pytest.mark.parametrize("vocab", [1, 65, 1000])
def test_penalties_equal_the_reference(kernel, vocab):
    logits = torch.randn(5, vocab) * 3
    prompt_seen, output_counts = penalty_state(9, vocab)
    slots = torch.tensor([8, 0, 3, 5, 1])
    penalties = (
        torch.tensor([1.0, 1.3, 0.7, 1.0, 1.1]),
        torch.tensor([0.0, 0.5, 0.0, -1.0, 0.3]),
        torch.tensor([0.0, 0.0, 0.2, 0.4, -0.3]),
    )
    expected = logits.clone()
    reference.apply_penalties(expected, prompt_seen, output_counts, slots, *penalties)
    kernel(logits, prompt_seen, output_counts, slots, *penalties)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.op("apply_penalties")
@pytest.mark.parametrize("which", ["kernel", "reference"])
def test_each_penalty_by_hand(kernel, which):
    apply = kernel if which == "kernel" else reference.apply_penalties
    # Tokens: never seen, in the prompt, twice in the output, in both once.
    prompt_seen = torch.tensor([[False, True, False, True]])
    output_counts = torch.tensor([[0, 0, 2, 1]], dtype=torch.int32)
    slots = torch.zeros(3).long()
    logits = torch.tensor([[4.0, 4.0, 4.0, -4.0]]).repeat(3, 1)
    repetition = torch.tensor([2.0, 1.0, 1.0])
    presence = torch.tensor([0.0, 0.5, 0.0])
    frequency = torch.tensor([0.0, 0.0, 0.25])
    apply(logits, prompt_seen, output_counts, slots, repetition, presence, frequency)
    assert logits.tolist() == [
        [4.0, 2.0, 2.0, -8.0],
        [4.0, 4.0, 3.5, -4.5],
        [4.0, 4.0, 3.5, -4.25],
    ]


@pytest.mark.op("apply_bitmask")
@pytest.mark.parametrize("vocab", [1, 32, 65, 1000])
def test_masks_equal_the_reference(kernel, vocab):
    logits = torch.randn(5, vocab)
    rows = torch.tensor([4, 0, 3])
    masks = torch.randint(-(2**31), 2**31, (3, -(-vocab // 32))).to(torch.int32)
    expected = logits.clone()
    reference.apply_bitmask(expected, masks, rows)
    kernel(logits, masks, rows)
    assert torch.equal(logits, expected)


@pytest.mark.op("apply_bitmask")
@pytest.mark.parametrize("which", ["kernel", "reference"])
def test_a_mask_by_hand(kernel, which):
    """Bit 31 is the sign of a word, and what lies behind the vocabulary does not count."""
    apply = kernel if which == "kernel" else reference.apply_bitmask
    logits = torch.zeros(3, 35)
    masks = torch.tensor([[-(2**31) + 1, 2], [-1, -1]], dtype=torch.int32)
    apply(logits, masks, torch.tensor([2, 1]))
    assert (logits[:2] == 0).all()
    assert (logits[2] == 0).nonzero().flatten().tolist() == [0, 31, 33]
