"""Counts of tensors equal transformers' and what the makers publish; shares sum up."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.checkpoint.totals import CLASSES, PUBLISHED, config_json, ours, theirs
from tokenspeed.checkpoint.config import model_config
from tokenspeed.checkpoint.inventory import (
    EXPERTS,
    GROUPS,
    VECTORS,
    Tensor,
    draft_tensors,
    model_tensors,
)
from tokenspeed.plan import ModelConfig


@pytest.mark.parametrize("card", CLASSES)
def test_equal_to_transformers(card: str) -> None:
    assert ours(card)[0] == theirs(card)


@pytest.mark.parametrize("card", PUBLISHED)
def test_within_the_rounding_of_what_is_published(card: str) -> None:
    text, unit = PUBLISHED[card]
    digits = len(text.partition(".")[2])
    assert f"{ours(card)[0] / unit:.{digits}f}" == text


@pytest.mark.parametrize(
    ("card", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("qwen3-30b-a3b", 3.4),
        ("qwen3-235b-a22b", 22.2),
        ("qwen3.5-397b-a17b", 17.3),
        ("deepseek-v3", 37.6),
        ("llama-3.1-8b", 8.0),
    ],
)
def test_what_one_token_meets(card: str, billions: float) -> None:
    assert round(ours(card)[1] / 1e9, 1) == billions


def test_the_published_active_count_leaves_the_embedding_out() -> None:
    """104.2 billion (its report, table 1) and 5.13 (its model card)."""
    for card, billions in (("kimi-k3", 104.2), ("gpt-oss-120b", 5.13)):
        config = config_json(card)
        embedding = config["vocab_size"] * config["hidden_size"]
        active = (ours(card)[1] - embedding) / 1e9
        assert active == pytest.approx(billions, abs=0.02)


def group_parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters of each group that the model has."""
    counts: Counter[str] = Counter()
    for tensor in model_tensors(config):
        counts[VECTORS if tensor.vector else tensor.group] += tensor.elements
    return counts


def test_groups_are_named_and_sum_up() -> None:
    for card in CLASSES:
        config = model_config(config_json(card))
        groups = group_parameters(config)
        assert set(groups) <= set(GROUPS)
        assert sum(groups.values()) == ours(card)[0]
        assert {t.group for t in model_tensors(config)} <= set(GROUPS) - {VECTORS}


def test_most_of_a_mixture_is_experts() -> None:
    config = model_config(config_json("qwen3-30b-a3b"))
    assert group_parameters(config)[EXPERTS] == 48 * 128 * 3 * 2048 * 768


def test_shares() -> None:
    rows = Tensor("attention", 8 * 64, 100, axis="out", units=8)
    assert (rows.share(4).out, rows.share(4).width) == (128, 100)
    assert rows.share(16).out == 64  # fewer heads than ranks: one each
    columns = Tensor("attention", 100, 8 * 64, axis="in", units=8)
    assert (columns.share(2).out, columns.share(2).width) == (100, 256)
    vocabulary = Tensor("head", 10, 4, axis="out", units=10)
    assert vocabulary.share(4).out == 3  # the last rank has fewer
    experts = Tensor("experts", 6, 4, copies=10, axis="out", units=6)
    assert (experts.share(2, 4).copies, experts.share(2, 4).out) == (3, 3)
    assert Tensor("attention", 5, vector=True).share(8).elements == 5


def test_draft_layers_only_where_there_are_some() -> None:
    assert draft_tensors(model_config(config_json("qwen3-8b"))) == ()
    assert sum(t.elements for t in draft_tensors(model_config(config_json("glm-4.5")))) > 10**9
