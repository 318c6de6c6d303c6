"""Rope scaling is applied once, and the context it gives is the one that is advertised (C09)."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed.checkpoint.rope import RopeError, rope_config, usable_context


def rope(parameters: dict[str, Any], max_position: int = 128) -> tuple[Any, int]:
    return rope_config(parameters, theta=10_000.0, head_dim=64, max_position=max_position)


def test_no_scaling() -> None:
    for parameters in ({}, {"rope_type": "default"}, {"rope_theta": 1e4}):
        config, usable = rope(parameters)
        assert (config.scaling, config.rotary_dim, usable) == ("none", 64, 128)


def test_a_maximum_that_holds_the_factor_already() -> None:
    """C09 d: factor 4 over 32 with a maximum of 128 gives 128, not 512."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config, usable = rope(yarn)
    assert usable == 128
    assert config.original_max_position == 32


@pytest.mark.parametrize(
    ("scaling", "factor", "original", "max_position", "usable"),
    [
        ("none", 1.0, 128, 128, 128),
        ("llama3", 8.0, 8_192, 131_072, 131_072),
        ("yarn", 4.0, 32_768, 32_768, 131_072),  # the file states the length before scaling
        ("yarn", 4.0, 32, 128, 128),
        ("yarn", 2.0, 32, 128, 64),  # the two disagree: the smaller is safe
        ("linear", 4.0, 4_096, 4_096, 16_384),
        ("dynamic", 2.0, 2_048, 2_048, 4_096),
    ],
)
def test_usable_context(
    scaling: str, factor: float, original: int, max_position: int, usable: int
) -> None:
    assert usable_context(scaling, factor, original, max_position) == usable


def test_llama3() -> None:
    config, usable = rope(
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        max_position=131_072,
    )
    assert (config.low_freq_factor, config.high_freq_factor) == (1.0, 4.0)
    assert usable == 131_072


@pytest.mark.parametrize(
    ("extra", "attention"),
    [
        ({}, 0.1 * 1.3862943611198906 + 1),
        ({"attention_factor": 0.7}, 0.7),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, 1.2772588722239782 / 1.1386294361119891),
    ],
)
def test_the_attention_factor_of_yarn(extra: dict[str, float], attention: float) -> None:
    config, _ = rope({"type": "yarn", "factor": 4.0, **extra})
    assert config.attention_factor == pytest.approx(attention)
    assert (config.beta_fast, config.beta_slow) == (32.0, 1.0)


def test_a_factor_that_the_lengths_imply() -> None:
    config, usable = rope({"rope_type": "yarn", "original_max_position_embeddings": 32})
    assert (config.factor, usable) == (4.0, 128)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "longrope", "factor": 4.0},
        {"rope_type": "linear", "factor": 0.5},
        {"rope_type": "linear", "factor": float("inf")},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1e308},
        {"partial_rotary_factor": 0.01},
        {"partial_rotary_factor": 2.0},
    ],
)
def test_what_cannot_be_honoured_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(RopeError):
        rope(parameters)


@pytest.mark.parametrize(("written", "truncate"), [(False, False), (True, True), (None, True)])
def test_yarn_rounds_its_ramp_unless_told_not_to(written: bool | None, truncate: bool) -> None:
    config, _ = rope({"rope_type": "yarn", "factor": 4.0, "truncate": written})
    assert config.truncate is truncate


def test_part_of_each_head() -> None:
    assert rope({"partial_rotary_factor": 0.5})[0].rotary_dim == 32
