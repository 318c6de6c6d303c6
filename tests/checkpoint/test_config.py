"""config.json of either generation becomes the same facts; what is not computed is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from tests.rigs.rand import FAMILIES, rand_config
from tokenspeed.checkpoint.config import model_config
from tokenspeed.errors import CheckpointError
from tokenspeed.plan import Attention, Dense, ModelConfig


def attention_of(config: ModelConfig) -> Attention:
    """The attention that all layers have."""
    ((layer, _),) = config.kinds()
    assert isinstance(layer.mixer, Attention)
    return layer.mixer


def problems(config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        model_config(config)
    return str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_older_form(family: str) -> None:
    config = model_config(rand_config(family))
    attention = attention_of(config)
    assert (config.family, config.num_layers, attention.head_dim) == (family, 2, 16)
    assert attention.qkv_bias is (family == "qwen2")
    assert attention.o_bias is False
    assert attention.qk_norm == ("head" if family == "qwen3" else "none")
    assert config.tie_embeddings is (family == "qwen2")


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_what_transformers_writes(kind: Any) -> None:
    """Its own config, as it would be saved today, says what its attributes say."""
    theirs = kind(rope_theta=5e5, num_key_value_heads=8)
    written = theirs.to_dict()
    assert "rope_parameters" in written
    ours = model_config(written)
    assert ours.rope is not None
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert attention_of(ours).num_kv_heads == 8
    assert attention_of(ours).head_dim == getattr(theirs, "head_dim", theirs.hidden_size // 32)
    assert ours.max_position == theirs.max_position_embeddings


def test_both_forms_of_scaling_are_one() -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 256}
    older = rand_config("llama", rope_scaling={"type": "yarn", **scaling})
    newer = rand_config(
        "llama", rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, **scaling}
    )
    newer.pop("rope_theta")
    assert model_config(older) == model_config(newer)
    assert model_config(older).max_position == 1024


@pytest.mark.parametrize(("written", "ids"), [(7, (7,)), ([5, 7], (5, 7)), (None, ()), ([], ())])
def test_end_tokens(written: Any, ids: tuple[int, ...]) -> None:
    assert model_config(rand_config("llama", eos_token_id=written)).eos_token_ids == ids


def test_biases_follow_the_config() -> None:
    config = model_config(rand_config("llama", attention_bias=True, mlp_bias=True))
    ((layer, _),) = config.kinds()
    attention, feed = layer.mixer, layer.feed_forward
    assert isinstance(attention, Attention)
    assert isinstance(feed, Dense)
    assert (attention.qkv_bias, attention.o_bias, feed.bias) == (True, True, True)


def test_a_missing_head_width() -> None:
    config = rand_config("llama")
    del config["head_dim"]
    assert attention_of(model_config(config)).head_dim == 16
    config = rand_config("qwen3")
    del config["head_dim"]
    assert attention_of(model_config(config)).head_dim == 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["full_attention"]}, "names 1 layers"),
        ({"num_hidden_layers": 10_000_000}, "num_hidden_layers"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "layer to layer"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": [-1]}, "eos_token_id"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    assert message in problems(rand_config("qwen2", **change))


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        (
            {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 0},
            [512, 512],
        ),
        (
            {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 1},
            [None, 512],
        ),
        (
            {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64},
            [64, None],
        ),
    ],
)
def test_windows(change: dict[str, Any], windows: list[int | None]) -> None:
    config = model_config(rand_config("qwen2", **change))
    assert [layer.mixer.window for layer in config.sequence()] == windows  # type: ignore[union-attr]


def test_a_window_that_no_layer_uses() -> None:
    unused: list[dict[str, Any]] = [
        {"sliding_window": 512, "use_sliding_window": False},
        {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 2},
        {"layer_types": ["full_attention", "full_attention"], "sliding_window": None},
    ]
    for change in unused:
        assert attention_of(model_config(rand_config("qwen2", **change))).window is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = (
    *rand_config("qwen2"),
    *("rope_parameters", "layer_types", "sliding_window", "use_sliding_window"),
    *("max_window_layers", "quantization_config", "attention_bias", "mlp_bias"),
    "partial_rotary_factor",
)


@settings(deadline=None, max_examples=300)
@given(family=st.sampled_from(FAMILIES), key=st.sampled_from(KEYS), value=JSON)
def test_any_value_is_read_or_refused(family: str, key: str, value: object) -> None:
    try:
        model_config(rand_config(family, **{key: value}))
    except CheckpointError as error:
        assert error.problems


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(["linear", "dynamic", "llama3", "yarn"]),
    key=st.sampled_from(["factor", "beta_fast", "mscale", "attention_factor", "rope_theta",
                         "original_max_position_embeddings", "low_freq_factor", "rope_type"]),
    value=JSON,
)  # fmt: skip
def test_any_rope_is_read_or_refused(kind: str, key: str, value: object) -> None:
    rope: dict[str, object] = {
        "rope_type": kind,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "mscale_all_dim": 1.0,
    }
    try:
        config = model_config(rand_config("llama", rope_parameters={**rope, key: value}))
    except CheckpointError as error:
        assert error.problems
    else:
        assert config.max_position > 0


def test_all_problems_at_once() -> None:
    text = problems(rand_config("llama", hidden_act="relu", vocab_size=0, intermediate_size=-1))
    assert all(word in text for word in ("relu", "vocab_size", "intermediate_size"))
