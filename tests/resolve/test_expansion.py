"""When keys and values are made from latents: the rule, the chunk, and their memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.resolve.conftest import LATENT, SMALL, Resolver
from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.source import parse
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import ExpansionPlan, LatentAttention
from tokenspeed.resolve.expansion import OP, expansion_item
from tokenspeed.resolve.shard import Shard


def lite() -> Shard:
    card = cards.find(parse("hf:deepseek-ai/DeepSeek-V2-Lite-Chat"))
    assert card is not None
    return Shard.over(card.config, 1)


def test_a_gpu_weighs_products_by_their_measured_speeds(resolved: Resolver, h200: Hardware) -> None:
    plan = resolved(LATENT, h200).plan
    assert plan.kernel(OP).kernel == "latent_extend_hopper"
    # 131072 / 620 over 1088 / 265 - 320 / 628. 2^16 x (16 x 256 + 64) x 2 bytes are 520 MiB; twice
    # as many would be over 1024.
    rule = ExpansionPlan(least_reuse=59, launch_tokens=32768, chunk_tokens=65536)
    assert plan.expansion == rule
    (item,) = (item for item in plan.memory.items if item.name == "expansion")
    made, rows = 16 * 256, 8192 * 16 + 2 * 132 * 128
    assert item.bytes == 2 * (65536 * (made + 64 + 512) + made * 512) + rows * (128 + 2) * 4
    assert sum(one.bytes for one in plan.memory.items) <= plan.memory.budget_bytes
    # Absorbed queries meet float8 latents at less than half the speed.
    scaled = resolved(LATENT + "kv:\n  dtype: fp8\n", h200).plan.expansion
    assert scaled is not None and scaled.least_reuse == 25


def test_a_cpu_expands(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(LATENT, replace(cpu, memory_bytes=64 * 2**30)).plan
    assert plan.kernel(OP).kernel == "latent_extend_torch"
    assert plan.expansion is not None and plan.expansion.least_reuse == 171


def test_a_model_without_latents_has_nothing_to_expand(resolved: Resolver, cpu: Hardware) -> None:
    found = resolved(SMALL, cpu)
    assert found.plan.expansion is None
    assert not [one for one in found.decisions if one.field.startswith("expansion")]


@pytest.mark.parametrize("cached", [2_000, 50_000, 1_000_000])
def test_the_rule_is_where_the_products_of_both_forms_are_equal(cached: int) -> None:
    """By counting: absorbed and expanded products of a row's new tokens, but for those of the new
    tokens themselves, whose keys and values take what absorbing their queries does."""
    (facts,) = {layer.mixer for layer, _ in lite().config.kinds()}
    assert isinstance(facts, LatentAttention)
    made = facts.kv_rank * (facts.nope_dim + facts.value_dim)

    def absorbed(new: int) -> int:
        return new * cached * (2 * facts.kv_rank + facts.rope_dim)

    def expanded(new: int) -> int:
        return new * cached * (facts.nope_dim + facts.rope_dim + facts.value_dim) + cached * made

    assert expanded(171) < absorbed(171) and expanded(170) > absorbed(170)
    assert Fraction(made, 2 * facts.kv_rank - facts.nope_dim - facts.value_dim) < 171


def test_memory_of_a_chunk_grows_with_what_a_step_holds() -> None:
    plan = ExpansionPlan(least_reuse=171, chunk_tokens=1024)
    small, large = (
        expansion_item(plan, lite(), "cuda", "bfloat16", tokens).bytes for tokens in (64, 8192)
    )
    assert large - small == (8192 - 64) * 16 * 130 * 4
    assert expansion_item(None, lite(), "cuda", "bfloat16", 64).bytes == 0
