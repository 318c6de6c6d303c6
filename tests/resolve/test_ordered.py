"""`advanced.deterministic`: which kernels are taken, what it costs by the plan, and refusals."""

from __future__ import annotations

import pytest
from tokenspeed_kernels import registry

from tests.resolve.conftest import DENSE, LATENT, SMALL, Resolver
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.types import Hardware

ASKED = "advanced: {deterministic: true}\n"


def test_only_ordered_kernels_are_taken(resolved: Resolver, h200: Hardware) -> None:
    usual, asked = resolved(DENSE, h200).plan, resolved(DENSE + ASKED, h200).plan
    taken = {choice.op: choice.kernel for choice in asked.kernels}
    assert all(registry.is_ordered(kernel) for kernel in taken.values())
    assert taken["linear"] == "linear_ordered"
    assert taken["paged_attention"] == "paged_attention_ordered"
    reasons = {one.kernel: one.reason for one in asked.kernel("linear", "bfloat16").rejected}
    assert reasons["linear_triton"] == "the order of its sums depends on the batch"
    assert not any(choice.kernel.endswith("_ordered") for choice in usual.kernels)
    (item,) = (item for item in asked.memory.items if item.name == "ordered sums")
    assert item.bytes == (132 * 128 * 4 * 130 + 2 * 8192 * 6144) * 4
    assert asked.cache.num_blocks < usual.cache.num_blocks
    steps = zip(asked.prediction.steps, usual.prediction.steps, strict=True)
    assert all(mine.step_s >= other.step_s for mine, other in steps)


@pytest.mark.parametrize(
    ("recipe", "ops"),
    [
        (DENSE + "quantization: {weights: fp8}\n", "linear:fp8"),
        (LATENT, "latent_attention"),
        (DENSE + "kernels: {overrides: {linear: linear_triton}}\n", "linear_triton"),
    ],
)
def test_what_has_none_is_named(resolved: Resolver, h200: Hardware, recipe: str, ops: str) -> None:
    with pytest.raises(ResolveError) as error:
        resolved(recipe + ASKED, h200)
    assert any(ops in problem.message for problem in error.value.problems)


def test_a_cpu_has_none_for_attention(resolved: Resolver, cpu: Hardware) -> None:
    with pytest.raises(ResolveError) as error:
        resolved(SMALL + ASKED, cpu)
    (problem,) = error.value.problems
    assert problem.code == "TS-K005" and problem.path == "advanced.deterministic"
    assert "no kernel of paged_attention keeps" in problem.message
