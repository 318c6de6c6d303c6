from __future__ import annotations

import pytest
from tokenspeed_kernels.sampling import sample_triton

from tests.kernels.triton import cases


@pytest.mark.parametrize(("rows", "vocab"), [(10, 300), (10, 5000), (10, 9000)])
def test_sample(rows, vocab):
    cases.check_sample("cpu", rows, vocab)


@pytest.mark.parametrize(
    ("few", "ranked", "capacity"), [(16, 512, 8192), (64, 64, 8192), (64, 64, 128)]
)
def test_more_survivors_than_are_ranked(monkeypatch, few, ranked, capacity):
    """They are bisected, and beyond `capacity` the whole row is searched."""
    monkeypatch.setattr(sample_triton, "_FEW", few)
    monkeypatch.setattr(sample_triton, "_RANKED", ranked)
    monkeypatch.setattr(sample_triton, "_CAPACITY", capacity)
    cases.check_sample("cpu", 10, 3000, spread=0.5)


@pytest.mark.parametrize("k", [0, 1, 20])
def test_logprobs(k):
    cases.check_logprobs("cpu", 3, 5000, k)


def test_logprobs_list_equals_by_id():
    cases.check_logprobs("cpu", 2, 700, 20, ties=True)


def test_penalties():
    cases.check_penalties("cpu", 4, 5000)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (5, 4097), (4, 8192)])
def test_bitmask(rows, vocab):
    cases.check_bitmask("cpu", rows, vocab)
