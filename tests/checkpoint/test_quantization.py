"""The formats of a quantised checkpoint's groups, in the spellings of its makers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rigs.rand import rand_config
from tokenspeed.checkpoint.quantization import QUANTISED, float_format, group_formats
from tokenspeed.errors import CheckpointError

ALL = set(QUANTISED)
EXPERTS_ONLY = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]  # fmt: skip


def formats(**found: Any) -> dict[str, str]:
    return group_formats(rand_config("llama", quantization_config=found))


@pytest.mark.parametrize(
    ("found", "kept", "groups"),
    [
        ({"quant_method": "fp8"}, "fp8", ALL),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", ALL),
        ({"quant_method": "mxfp4"}, "mxfp4", {"experts"}),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", ALL),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", ALL),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "ignore": ["*self_attn*", "*shared_experts*", "model.layers.0.mlp*", "*mlp.gate"],
            },
            "nvfp4",
            {"experts"},
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "ignore": EXPERTS_ONLY,
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}
                },
            },
            "int4_g32",
            {"experts"},
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
                },
            },
            "fp8",
            ALL,
        ),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4", ALL),
    ],
)
def test_spellings(found: dict[str, Any], kept: str, groups: set[str]) -> None:
    assert formats(**found) == dict.fromkeys(groups, kept)


def test_a_router_left_alone_is_not_a_feed_forward_left_alone() -> None:
    left = ["gate", "e_score_correction_bias", "lm_head", "model.layers.3.mlp.gate"]
    left += ["model.layers.0.linear_attn.conv1d", "model.layers.1.mlp.shared_expert_gate"]
    assert set(formats(quant_method="fp8", modules_to_not_convert=left)) == ALL


def test_floats_are_not_quantised() -> None:
    assert group_formats(rand_config("llama")) == {}


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_the_type_of_the_rest(key: str) -> None:
    config = rand_config("llama")
    config.pop("torch_dtype")
    assert float_format(config) == "bfloat16"
    assert float_format(config | {key: "float16"}) == "float16"
    assert float_format(config | {key: {"no": "name"}}) == "bfloat16"


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "W4A8"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "3"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "each 32"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"group_size": 8}}},
            },
            "each 8",
        ),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "64"),
    ],
)
def test_what_is_unknown_is_named(found: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        formats(**found)
    assert named in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None, max_examples=300)
@given(
    method=st.sampled_from(["fp8", "modelopt", "compressed-tensors", "awq", "mxfp4"]),
    key=st.sampled_from(["ignore", "config_groups", "quant_algo", "bits", "weight_block_size"]),
    value=JSON,
)
def test_any_value_is_read_or_refused(method: str, key: str, value: object) -> None:
    try:
        formats(quant_method=method, **{key: value})
    except CheckpointError as error:
        assert error.problems
