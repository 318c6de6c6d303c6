"""What this build cannot run yet is data of the plan, for every architecture with a card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolve.conftest import BUILD, DENSE, Resolver
from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.source import parse
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.recipe.load import LoadedRecipe
from tokenspeed.resolve.facts import model_facts
from tokenspeed.resolve.resolve import resolve
from tokenspeed.resolve.runnable import model_parts

PARTS = {
    "hf:Qwen/Qwen3-8B": set(),
    "hf:Qwen/Qwen2.5-7B-Instruct": set(),
    "hf:openai/gpt-oss-20b": {"attention windows", "attention sinks", "experts"},
    "hf:Qwen/Qwen3-30B-A3B": {"experts"},
    "hf:Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "gated delta nets",
        "gated attention",
        "experts",
        "gated shared experts",
    },
    "hf:deepseek-ai/DeepSeek-V2-Lite-Chat": {"latent attention", "experts"},
    "hf:MiniMaxAI/MiniMax-M2": {"norms over all heads", "experts"},
    "hf:moonshotai/Kimi-Linear-48B-A3B-Instruct": {
        "channel-wise delta nets",
        "latent attention",
        "latent attention without positions",
        "experts",
    },
    "hf:moonshotai/Kimi-K3": {
        "channel-wise delta nets",
        "latent attention",
        "latent attention without positions",
        "gated attention",
        "experts",
        "experts in a latent space",
        "situ activations",
        "attention over depth",
    },
}


@pytest.mark.parametrize("source", PARTS)
def test_parts_by_name(source: str) -> None:
    card = cards.find(parse(source))
    assert card is not None
    assert set(model_parts(card.config)) == PARTS[source]


@pytest.mark.parametrize("source", cards.known())
def test_every_card_becomes_a_plan(resolved: Resolver, source: str) -> None:
    """On eight large GPUs; what cannot run is said, and memory keeps its budget."""
    text = f"version: 1\nname: any\nmodel: {{source: '{source}'}}\nkv: {{dtype: fp8}}\n"
    machine = load_hardware("nvidia-b300x8")
    card = cards.find(parse(source))
    assert card is not None
    (tp, *_) = (n for n in (8, 4, 3, 1) if _splits(card, n))
    plan = resolved(text, machine, f"parallel.attention.tp={tp}").plan
    assert sum(item.bytes for item in plan.memory.items) == plan.memory.budget_bytes
    assert plan.prediction.steps
    needs = {unmet.need for unmet in plan.unmet}
    assert set(model_parts(card.config)) - BUILD.computes <= needs
    assert all(unmet.detail for unmet in plan.unmet)


def _splits(card: cards.Card, tp: int) -> bool:
    from tokenspeed.resolve.parallel import heads_split

    return heads_split(card.config, tp) and all(
        getattr(layer.feed_forward, "inner", 1) % tp == 0 for layer, _ in card.config.kinds()
    )


def test_formats_that_cannot_be_loaded(loaded: object) -> None:
    assert callable(loaded)
    recipe: LoadedRecipe = loaded(DENSE, "quantization.weights=nvfp4")
    for build in (BUILD, replace(BUILD, formats=frozenset({"bfloat16"}))):
        plan = resolve(
            recipe.recipe, recipe.origins, model_facts(recipe), load_hardware("nvidia-h200"), build
        ).plan
        lacking = "weights in nvfp4" in {unmet.need for unmet in plan.unmet}
        assert lacking == (build is not BUILD)


def test_a_build_that_can_is_believed(loaded: object) -> None:
    """Nothing but the build's own list decides."""
    assert callable(loaded)
    text = "version: 1\nname: moe\nmodel: {source: 'hf:Qwen/Qwen3-30B-A3B', load: dummy}\n"
    recipe: LoadedRecipe = loaded(text)
    able = replace(BUILD, computes=frozenset({"experts"}))
    needs = [
        {unmet.need for unmet in resolve(
            recipe.recipe, recipe.origins, model_facts(recipe), load_hardware("nvidia-h200"), build
        ).plan.unmet}
        for build in (BUILD, able)
    ]  # fmt: skip
    assert needs[0] - needs[1] == {"experts"}
