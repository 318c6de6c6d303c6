"""The stored format is kept where a kernel computes on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tokenspeed.hardware.types import Hardware
from tokenspeed.resolve.facts import ModelFacts, model_facts


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
