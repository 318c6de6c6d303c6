from __future__ import annotations

import pytest
from tokenspeed_kernels.sampling import sample_triton, scan_triton

from tests.kernels.triton import cases


@pytest.mark.parametrize(
    ("rows", "vocab", "k", "edited"),
    [(10, 300, 3, True), (10, 5000, None, False), (10, 9000, 20, True)],
)
def test_sample(rows, vocab, k, edited):
    cases.check_sample("cpu", rows, vocab, k=k, edited=edited)


@pytest.mark.parametrize(
    ("few", "ranked", "capacity", "edited"),
    [(16, 512, 8192, True), (64, 64, 8192, False), (64, 64, 128, True)],
)
def test_more_survivors_than_are_ranked(monkeypatch, few, ranked, capacity, edited):
    """They are bisected, and beyond `capacity` the whole row is searched."""
    monkeypatch.setattr(scan_triton, "FEW", few)
    monkeypatch.setattr(sample_triton, "_RANKED", ranked)
    monkeypatch.setattr(sample_triton, "_CAPACITY", capacity)
    cases.check_sample("cpu", 10, 3000, spread=0.5, edited=edited)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("vocab", [5, 5000])
def test_rows_that_are_no_numbers_give_tokens_of_the_vocabulary(vocab):
    cases.check_rows_that_are_no_numbers("cpu", vocab)


@pytest.mark.parametrize("k", [0, 1, 20])
def test_logprobs(k):
    cases.check_logprobs("cpu", 3, 5000, k)


def test_logprobs_list_equals_by_id():
    cases.check_logprobs("cpu", 2, 700, 20, ties=True)
