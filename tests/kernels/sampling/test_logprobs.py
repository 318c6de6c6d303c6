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
