"""Rotary tables equal those of transformers for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tokenspeed.checkpoint.config import model_config
from tokenspeed.layers.rope import cos_sin_table

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, not rounded": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
}


def config_json(kind: str, scaling: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": kind.split(",")[0], "rope_theta": 10000.0, **scaling},
    }


def reference_table(written: dict[str, Any], positions: torch.Tensor) -> torch.Tensor:
    rotary = LlamaRotaryEmbedding(LlamaConfig(**written))
    cos, sin = rotary(torch.zeros(1, 1, 32), positions.unsqueeze(0))
    return torch.cat((cos[0, :, :16], sin[0, :, :16]), dim=1)


@pytest.mark.parametrize("kind", SCALINGS)
def test_table_equals_transformers(kind: str) -> None:
    written = config_json(kind, SCALINGS[kind])
    config = model_config(written)
    assert config.rope is not None
    table = cos_sin_table(config.rope, config.max_position, torch.device("cpu"))
    assert table.shape == (config.max_position, 32)
    torch.testing.assert_close(
        table, reference_table(written, torch.arange(config.max_position)), atol=2e-5, rtol=0
    )


def test_dynamic_table_equals_decoding_token_by_token() -> None:
    """Past the original context each new token is rotated for the length that it completes."""
    written = config_json("dynamic", {"factor": 2.0})
    config = model_config(written)
    assert config.rope is not None
    table = cos_sin_table(config.rope, config.max_position, torch.device("cpu"))
    assert config.max_position == 512
    for last in (0, 100, 255, 256, 300, 511):
        at_last = reference_table(written, torch.tensor([last]))
        torch.testing.assert_close(table[last : last + 1], at_last, atol=2e-5, rtol=0)
