"""Layers that keep the same lie together, in groups of equally many."""

from __future__ import annotations

import dataclasses

from tokenspeed.cache.groups import layer_groups
from tokenspeed.plan import Attention, Dense, Layer, LayerRun, ModelConfig

FULL = Attention(num_heads=4, num_kv_heads=2, head_dim=16)
FEED = Dense(inner=64)


def config(*windows: int | None) -> ModelConfig:
    layers = tuple(
        Layer(
            mixer=Attention(num_heads=4, num_kv_heads=2, head_dim=16, window=window),
            feed_forward=FEED,
        )
        for window in windows
    )
    return ModelConfig(
        family="any",
        vocab_size=8,
        hidden_size=64,
        layers=(LayerRun(repeat=1, layers=layers),),
        norm_eps=1e-6,
        rope=None,
        max_position=64,
        tie_embeddings=True,
        bos_token_id=None,
        eos_token_ids=(),
    )


def test_one_kind_is_one_group() -> None:
    for window, kind in ((None, ("full", 0)), (8, ("window", 8))):
        groups = layer_groups(config(window, window, window))
        assert groups.kinds == (kind,)
        assert groups.group == (0, 0, 0)
        assert groups.place == (0, 1, 2)


def test_full_layers_come_first_wherever_they_stand() -> None:
    groups = layer_groups(config(8, None, 8, None))
    assert groups.kinds == (("full", 0), ("window", 8))
    assert groups.group == (1, 0, 1, 0)
    assert groups.place == (0, 0, 1, 1)
    assert groups.places == 2


def test_many_windows_are_cut_into_groups_of_the_size_of_the_full_ones() -> None:
    groups = layer_groups(config(8, 8, 8, None, 8, 8, 8, None))
    assert groups.kinds == (("full", 0), ("window", 8), ("window", 8), ("window", 8))
    assert groups.group == (1, 1, 2, 0, 2, 3, 3, 0)
    assert groups.places == 2


def test_windows_of_different_widths_are_groups_of_their_own() -> None:
    groups = layer_groups(config(8, 16, 8, 16))
    assert groups.kinds == (("window", 8), ("window", 16))
    assert groups.place == (0, 0, 1, 1)


def test_a_place_holds_one_layer_of_each_group() -> None:
    groups = layer_groups(dataclasses.replace(config(8, 8, 8, None, 16, None)))
    pairs = list(zip(groups.group, groups.place, strict=True))
    assert len(set(pairs)) == len(pairs)
