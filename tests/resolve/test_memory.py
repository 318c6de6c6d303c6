"""What a rank keeps beside weights: caches of every kind, states, values, buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenspeed_kernels.gemm.specs import WIDENED_BYTES

from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.source import parse
from tokenspeed.plan import CacheGroup, LayerRun, ModelConfig, WeightFormat
from tokenspeed.resolve.memory import (
    FRONT_BYTES,
    Load,
    activation_bytes,
    cache_groups,
    communication_bytes,
    draft_bytes,
    fixed_items,
    graph_bytes,
    paged_token_bytes,
)
from tokenspeed.resolve.shard import Formats, Shard

BF16 = WeightFormat.BFLOAT16


def config(source: str) -> ModelConfig:
    card = cards.find(parse(source))
    assert card is not None
    return card.config


DENSE = config("hf:Qwen/Qwen3-8B")
LATENT = config("hf:deepseek-ai/DeepSeek-V2-Lite-Chat")
WINDOWED = config("hf:openai/gpt-oss-20b")
HYBRID = config("hf:Qwen/Qwen3-Next-80B-A3B-Instruct")
CHANNEL = config("hf:moonshotai/Kimi-Linear-48B-A3B-Instruct")


def groups(
    model: ModelConfig, dtype: str = "bfloat16", layout: str = "split", tp: int = 1
) -> dict[str, CacheGroup]:
    found = cache_groups(Shard.over(model, tp), dtype, layout, 64)
    return {group.kind: group for group in found}


def test_keys_and_values() -> None:
    # keys and values, 36 layers, 8 heads of 128, 2 bytes
    assert groups(DENSE)["full"].bytes_per_token == 2 * 36 * 8 * 128 * 2
    assert groups(DENSE, "fp8")["full"].bytes_per_token == 2 * 36 * 8 * 128


def test_heads_are_split_and_a_rank_keeps_one_at_least() -> None:
    whole = groups(DENSE)["full"].bytes_per_token
    assert groups(DENSE, tp=8)["full"].bytes_per_token == whole // 8
    assert groups(DENSE, tp=16)["full"].bytes_per_token == whole // 8


def test_a_latent_is_whole_on_every_rank() -> None:
    each = groups(LATENT, layout="latent")["latent"].bytes_per_token
    assert each == 27 * (512 + 64) * 2
    assert groups(LATENT, layout="latent", tp=4)["latent"].bytes_per_token == each
    # e4m3, a float32 scale, and the rope part in bfloat16
    scaled = groups(LATENT, "fp8", "latent_scaled")["latent"].bytes_per_token
    assert scaled == 27 * (512 + 4 + 128)


def test_windows_do_not_grow() -> None:
    found = groups(WINDOWED)
    assert found["full"].bytes_per_token == 2 * 12 * 8 * 64 * 2
    # a window of two blocks, and the one that it moves into
    assert found["window"].bytes_per_request == 192 * 2 * 12 * 8 * 64 * 2
    assert paged_token_bytes(tuple(found.values())) == 24_576


def test_windows_alone_are_paged() -> None:
    (run,) = WINDOWED.layers
    windowed = run.layers[0]
    alone = replace(WINDOWED, layers=(LayerRun(repeat=24, layers=(windowed,)),))
    (group,) = groups(alone).values()
    assert (group.kind, group.bytes_per_request) == ("full", 0)


def test_states() -> None:
    state = groups(HYBRID)["state"]
    matrix, tail = 32 * 128 * 128 * 4, (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert (state.layers, state.bytes_per_token) == (36, 0)
    assert state.bytes_per_request == 36 * (matrix + tail)
    channel = groups(CHANNEL, layout="latent")["state"]
    assert channel.bytes_per_request == 20 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2)
    assert groups(HYBRID, tp=2)["state"].bytes_per_request == state.bytes_per_request // 2


@pytest.mark.parametrize("model", [DENSE, LATENT, WINDOWED, HYBRID, CHANNEL])
def test_activations_grow_with_the_step(model: ModelConfig) -> None:
    shard = Shard.over(model, 1)
    one = activation_bytes(shard, 1, "bfloat16")
    assert activation_bytes(shard, 2048, "bfloat16") == 2048 * one
    assert activation_bytes(shard, 1, "float32") == 2 * one
    assert activation_bytes(Shard.over(model, 2), 1, "bfloat16") < one


def load(**facts: object) -> Load:
    usual = {
        "device": "cuda",
        "activations": "bfloat16",
        "step_tokens": 1024,
        "max_running": 8,
        "max_model_len": 4096,
        "graphs": (),
        "token_graphs": (),
        "draft": False,
    }
    return Load(**(usual | facts))  # type: ignore[arg-type]


def test_one_rank_talks_to_nobody() -> None:
    assert communication_bytes(Shard.over(DENSE, 1), load()) == 0
    two = communication_bytes(Shard.over(DENSE, 2), load())
    assert two > 2 * 1024 * DENSE.hidden_size * 2


def test_graphs_cost_by_their_number_and_the_largest() -> None:
    shard = Shard.over(DENSE, 1)
    assert graph_bytes(shard, load()) == 0
    one, two = (graph_bytes(shard, load(graphs=sizes)) for sizes in ((2,), (1, 2)))
    nodes = two - one
    assert nodes > 0
    wide = graph_bytes(shard, load(graphs=(1, 2), token_graphs=(512,)))
    values = activation_bytes(shard, 512, "bfloat16") - activation_bytes(shard, 2, "bfloat16")
    assert wide == two + nodes + values


def test_draft_layers() -> None:
    formats = Formats.of(WeightFormat.BFLOAT16, WeightFormat.BFLOAT16, "bfloat16")
    model = config("hf:deepseek-ai/DeepSeek-V3-0324")
    # The published 14B are this layer with copies of embedding and output matrix.
    shared = 2 * model.vocab_size * model.hidden_size
    total = draft_bytes(Shard.over(model, 1), formats) // 2 + shared
    assert round(total / 1e9, 1) == 13.5
    assert draft_bytes(Shard.over(DENSE, 1), formats) == 0


def test_further_fronts_count_where_the_host_is_the_device() -> None:
    formats = Formats.of(WeightFormat.BFLOAT16, WeightFormat.BFLOAT16, "bfloat16")
    shard = Shard.over(DENSE, 1)
    named = {
        device: {
            item.name: item.bytes
            for item in fixed_items(shard, formats, 0, load(device=device, further_fronts=3))
        }
        for device in ("cpu", "cuda")
    }
    assert named["cpu"]["further fronts"] == 3 * FRONT_BYTES["cpu"] > 0
    assert "further fronts" not in named["cuda"]


def test_products_of_4_bit_floats_widen_slices() -> None:
    """One for what runs at once and one that graphs keep; experts are widened in registers."""

    def widened(linear: WeightFormat, model: ModelConfig = DENSE, **facts: object) -> int:
        formats = Formats.of(linear, BF16, "bfloat16", experts=WeightFormat.NVFP4)
        items = fixed_items(Shard.over(model, 1), formats, 0, load(**facts))
        return sum(item.bytes for item in items if item.name == "dequantised weights")

    assert widened(WeightFormat.NVFP4, device="cuda") == WIDENED_BYTES
    assert widened(WeightFormat.NVFP4, device="cuda", token_graphs=(512,)) == 2 * WIDENED_BYTES
    assert widened(WeightFormat.NVFP4, device="cpu") == 0
    assert widened(BF16, LATENT, device="cuda") == 0
