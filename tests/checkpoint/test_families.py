"""The layers of each family, as its makers describe them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.totals import CARDS, config_json
from tokenspeed.checkpoint.config import model_config, run_length
from tokenspeed.errors import CheckpointError
from tokenspeed.plan import (
    Attention,
    ChannelDelta,
    Dense,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    ModelConfig,
    Moe,
)

NAMES = sorted(path.stem for path in CARDS.glob("*.json"))


def config(card: str) -> ModelConfig:
    return model_config(json.loads((CARDS / f"{card}.json").read_bytes())["config"])


def shape(model: ModelConfig) -> list[tuple[int, str]]:
    """(repeat, one letter per mixer) of each run."""
    letters = {Attention: "A", LatentAttention: "M", GatedDeltaNet: "D", ChannelDelta: "K"}
    return [(run.repeat, "".join(letters[type(layer.mixer)] for layer in run.layers))
            for run in model.layers]  # fmt: skip


@pytest.mark.parametrize(
    ("card", "runs"),
    [
        ("llama-3.1-8b", [(32, "A")]),
        ("gpt-oss-20b", [(12, "AA")]),
        ("deepseek-v3", [(3, "M"), (58, "M")]),
        ("qwen3-next-80b-a3b", [(12, "DDDA")]),
        ("qwen3.5-397b-a17b", [(15, "DDDA")]),
        ("kimi-linear-48b-a3b", [(1, "K"), (6, "KKMK"), (1, "K"), (1, "M")]),
    ],
)
def test_runs(card: str, runs: list[tuple[int, str]]) -> None:
    assert shape(config(card)) == runs


def test_the_last_layer_of_a_channel_hybrid_sees_everything() -> None:
    model = config("kimi-k3")
    mixers = [type(layer.mixer) for layer in model.sequence()]
    assert (mixers.count(LatentAttention), mixers.count(ChannelDelta)) == (24, 69)
    assert mixers[-1] is LatentAttention
    assert (model.activation, model.residual_block, model.rope) == ("situ", 12, None)


def test_windows_and_sinks() -> None:
    first, second = config("gpt-oss-20b").sequence()[:2]
    assert isinstance(first.mixer, Attention)
    assert isinstance(second.mixer, Attention)
    assert (first.mixer.window, second.mixer.window) == (128, None)
    assert first.mixer.sinks and first.mixer.o_bias and first.mixer.qkv_bias
    feed = first.feed_forward
    assert isinstance(feed, Moe)
    assert (feed.experts, feed.top_k, feed.scoring, feed.clamp) == (32, 4, "topk_softmax", 7.0)
    assert feed.expert_bias and feed.router_bias


def test_routing_facts() -> None:
    feed = config("deepseek-v3").sequence()[-1].feed_forward
    assert isinstance(feed, Moe)
    assert (feed.groups, feed.top_groups, feed.scale) == (8, 4, 2.5)
    assert (feed.scoring, feed.renormalise, feed.selection_bias) == ("sigmoid", True, True)
    assert feed.shared_inner == 2048
    older = config("deepseek-v2-lite").sequence()[-1].feed_forward
    assert isinstance(older, Moe)
    assert (older.scoring, older.renormalise, older.selection_bias) == ("softmax", False, False)
    latent = config("kimi-k3").sequence()[-1].feed_forward
    assert isinstance(latent, Moe)
    assert (latent.latent, latent.latent_norm, latent.shared_inner) == (3584, True, 6144)


def test_a_latent_that_rotates_and_one_that_does_not() -> None:
    rotating = config("deepseek-v3")
    assert rotating.rope is not None
    assert rotating.rope.rotary_dim == 64
    still = config("kimi-linear-48b-a3b")
    mixers = [m.mixer for m, _ in still.kinds() if isinstance(m.mixer, LatentAttention)]
    assert still.rope is None
    assert not any(mixer.rotary for mixer in mixers)


@pytest.mark.parametrize(
    ("card", "rotary", "norm"),
    [("minimax-m2", 64, "all"), ("glm-4.5", 64, "head"), ("glm-4.5-air", 64, "none"),
     ("qwen3-next-80b-a3b", 64, "head")],
)  # fmt: skip
def test_part_of_each_head_rotates(card: str, rotary: int, norm: str) -> None:
    model = config(card)
    assert model.rope is not None
    assert model.rope.rotary_dim == rotary
    norms = {m.mixer.qk_norm for m, _ in model.kinds() if isinstance(m.mixer, Attention)}
    assert norms == {norm}


def test_gated_attention_among_delta_nets() -> None:
    last = config("qwen3.5-397b-a17b").sequence()[3]
    assert isinstance(last.mixer, Attention)
    assert last.mixer.gated
    feed = last.feed_forward
    assert isinstance(feed, Moe)
    assert (feed.shared_inner, feed.shared_gate) == (1024, True)


@pytest.mark.parametrize(
    ("card", "change", "named"),
    [
        ("kimi-linear-48b-a3b", {"linear_attn_config": {}}, "linear_attn_config"),
        ("kimi-linear-48b-a3b", {"linear_attn_config": 3}, "linear_attn_config"),
        ("deepseek-v3", {"kv_lora_rank": 0}, "kv_lora_rank"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 200}, "of 128 experts"),
        ("qwen3-next-80b-a3b", {"layer_types": ["linear_attention"]}, "names 1 layers"),
    ],
)
def test_what_is_refused(card: str, change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        model_config(config_json(card) | change)
    assert named in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None, max_examples=400)
@given(data=st.data(), card=st.sampled_from(NAMES), value=JSON)
def test_any_value_is_read_or_refused(data: st.DataObject, card: str, value: object) -> None:
    written = config_json(card)
    key = data.draw(st.sampled_from([key for key in written if key != "model_type"]))
    try:
        model_config(written | {key: value})
    except CheckpointError as error:
        assert error.problems


LAYERS = [
    Layer(mixer=Attention(num_heads=n, num_kv_heads=1, head_dim=8), feed_forward=Dense(inner=8))
    for n in (1, 2, 3)
]


@settings(deadline=None)
@given(picks=st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_runs_are_the_sequence(picks: list[int]) -> None:
    sequence = [LAYERS[pick] for pick in picks]
    runs = run_length(sequence)
    assert [layer for run in runs for layer in run.layers * run.repeat] == sequence
