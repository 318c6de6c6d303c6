"""The stored format is kept where a kernel computes on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolve.conftest import DENSE, LATENT, SMALL, Resolver
from tokenspeed.checkpoint.inventory import ATTENTION, EXPERTS, SHARED
from tokenspeed.checkpoint.quantization import QUANTISED
from tokenspeed.hardware.types import Hardware
from tokenspeed.resolve.facts import THIS_BUILD, ModelFacts, model_facts
from tokenspeed.resolve.resolve import resolve


def formats(resolved: Resolver, *args: object, model: ModelFacts | None = None) -> tuple[str, str]:
    plan = resolved(*args, model=model).plan
    return str(plan.model.linear_format), str(plan.model.embedding_format)


def test_blocks_become_bfloat16_on_a_gpu(resolved: Resolver, h200: Hardware) -> None:
    assert formats(resolved, SMALL, h200) == ("bfloat16", "bfloat16")


def test_the_recipe_may_keep_them(resolved: Resolver, h200: Hardware, cpu: Hardware) -> None:
    for hardware in (h200, cpu):
        kept = formats(resolved, SMALL, hardware, "quantization.weights=checkpoint")
        assert kept == ("q4_1", "q8_0")


@pytest.mark.parametrize("wish", ["float32", "bfloat16"])
def test_the_recipe_may_name_a_float_type(resolved: Resolver, cpu: Hardware, wish: str) -> None:
    assert formats(resolved, SMALL, cpu, f"quantization.weights={wish}") == (wish, wish)


def test_blocks_that_only_the_reference_takes_are_dequantised(
    resolved: Resolver, cpu: Hardware
) -> None:
    """No kernel but the reference multiplies blocks with bfloat16."""
    kinds = formats(resolved, SMALL, cpu, "quantization.activations=bfloat16")
    assert kinds == ("bfloat16", "bfloat16")


def test_a_cpu_with_a_kernel_for_the_blocks_keeps_them(resolved: Resolver, cpu: Hardware) -> None:
    assert formats(resolved, SMALL, cpu) == ("q4_1", "q8_0")


def test_formats_that_no_kernel_knows(
    resolved: Resolver, loaded: object, cpu: Hardware, h200: Hardware
) -> None:
    assert callable(loaded)
    facts = replace(
        model_facts(loaded(SMALL)), linear_formats=("q4_k", "q6_k"), embedding_format="q6_k"
    )
    assert formats(resolved, SMALL, cpu, model=facts) == ("float32", "float32")
    assert formats(resolved, SMALL, h200, model=facts) == ("bfloat16", "bfloat16")


def test_float_checkpoints_stay_what_they_are(
    resolved: Resolver, loaded: object, cpu: Hardware, h200: Hardware
) -> None:
    assert callable(loaded)
    assert formats(resolved, DENSE, h200) == ("bfloat16", "bfloat16")
    floats = replace(
        model_facts(loaded(SMALL)), linear_formats=("float32",), embedding_format="float32"
    )
    assert formats(resolved, SMALL, cpu, model=floats) == ("float32", "float32")
    assert formats(resolved, SMALL, h200, model=floats) == ("bfloat16", "bfloat16")


def test_quantised_checkpoints_on_a_cpu(
    resolved: Resolver, loaded: object, cpu: Hardware, h200: Hardware
) -> None:
    """Products become floats where only the reference multiplies; experts keep their size."""
    assert callable(loaded)
    groups = dict.fromkeys(QUANTISED, "fp8_block")
    facts = replace(model_facts(loaded(LATENT)), group_formats=groups)
    kept = {
        name: {group.name: str(group.format) for group in plan.model.weights}
        for name, plan in (
            ("cpu", resolved(LATENT, big(cpu), model=facts).plan),
            (
                "wish",
                resolved(LATENT, big(cpu), "quantization.weights=checkpoint", model=facts).plan,
            ),
            ("h200", resolved(LATENT, h200, model=facts).plan),
        )
    }
    assert kept["h200"][ATTENTION] == kept["wish"][ATTENTION] == "fp8_block"
    assert kept["cpu"][ATTENTION] == kept["cpu"][SHARED] == "float32"
    assert all(one[EXPERTS] == "fp8_block" for one in kept.values())


def test_nvfp4_keeps_its_size_on_a_gpu(resolved: Resolver, loaded: object, h200: Hardware) -> None:
    """Products and experts, and what is said of inputs that the checkpoint would quantise."""
    assert callable(loaded)
    facts = replace(model_facts(loaded(LATENT)), group_formats=dict.fromkeys(QUANTISED, "nvfp4"))
    made = resolved(LATENT, h200, model=facts)
    chosen = {(one.op, one.variant): one.kernel for one in made.plan.kernels}
    assert chosen["linear", "nvfp4"] == "linear_nvfp4_triton"
    assert chosen["experts", "nvfp4"] == "experts_quantised_triton"
    (said,) = (one.reason for one in made.decisions if one.field == "model.linear_format")
    assert "dequantised as they are read, activations stay bfloat16" in said


def test_float8_experts_have_kernels_on_a_gpu(
    resolved: Resolver, loaded: object, h200: Hardware
) -> None:
    """Also where a product's inputs end within a block of scales, as those of V2-Lite's one dense
    layer, of 10,944."""
    assert callable(loaded)
    facts = replace(
        model_facts(loaded(LATENT)), group_formats=dict.fromkeys(QUANTISED, "fp8_block")
    )
    choices = resolved(LATENT, h200, model=facts).plan.kernels
    chosen = {(one.op, one.variant): one.kernel for one in choices}
    assert chosen["linear", "fp8_block"] == "linear_fp8_triton"
    assert chosen["experts", "fp8_block"] == "experts_hopper"


def test_gpt_oss_runs_on_a_cpu_at_its_stored_size(
    resolved: Resolver, loaded: object, cpu: Hardware
) -> None:
    """Experts: 24 layers of 32, each 2880 x 2880 three times, at 4.25 bits."""
    text = "version: 1\nname: oss\nmodel: {source: 'hf:openai/gpt-oss-20b'}\n"
    assert callable(loaded)
    recipe = loaded(text, "limits.max_running=2", "model.max_context=4096")
    made = resolve(recipe.recipe, recipe.origins, model_facts(recipe), big(cpu), THIS_BUILD)
    experts = next(group for group in made.plan.model.weights if group.name == EXPERTS)
    assert (str(experts.format), experts.bytes * 8) == ("mxfp4", 24 * 32 * 3 * 2880**2 * 4.25)
    assert not made.plan.unmet


def big(cpu: Hardware) -> Hardware:
    return replace(cpu, memory_bytes=256 << 30)
