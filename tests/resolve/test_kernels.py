"""One kernel for each op of the model, with the reason for it and against the others."""

from __future__ import annotations

import pytest
from tokenspeed_kernels import registry

from tests.resolve.conftest import DENSE, LATENT, SMALL, Resolver
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.types import Hardware


def test_every_op_of_the_tables_is_chosen_once(resolved: Resolver, h200: Hardware) -> None:
    found = set()
    for text in (DENSE, LATENT):
        plan = resolved(text, h200).plan
        keys = [(choice.op, choice.variant) for choice in plan.kernels]
        assert len(keys) == len(set(keys))
        found |= {choice.op for choice in plan.kernels}
    assert found == set(registry.ops())


def test_every_other_kernel_is_rejected_with_a_reason(
    resolved: Resolver, cpu: Hardware, h200: Hardware
) -> None:
    for text, hardware in ((SMALL, cpu), (DENSE, h200)):
        for choice in resolved(text, hardware).plan.kernels:
            names = {spec.name for spec in registry.specs(choice.op)}
            rejected = {rejection.kernel: rejection.reason for rejection in choice.rejected}
            assert names == {choice.kernel, *rejected}
            assert all(rejected.values())
            assert choice.reason


def test_the_chosen_kernel_is_the_first_that_fits(resolved: Resolver, h200: Hardware) -> None:
    for choice in resolved(DENSE, h200).plan.kernels:
        order = [spec.name for spec in registry.specs(choice.op)]
        for rejection in choice.rejected:
            if order.index(rejection.kernel) < order.index(choice.kernel):
                assert "comes first" not in rejection.reason


def test_a_tied_output_is_a_product_of_the_embedding_s_format(
    resolved: Resolver, cpu: Hardware
) -> None:
    plan = resolved(SMALL, cpu, "quantization.weights=checkpoint").plan
    variants = {choice.variant for choice in plan.kernels if choice.op == "linear"}
    assert variants == {"q4_1", "q8_0"}
    assert plan.kernel("embedding", "q8_0")


def test_an_override_is_taken_and_named(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu, "kernels.overrides={linear: linear_reference}").plan
    linear = [choice for choice in plan.kernels if choice.op == "linear"]
    assert {choice.kernel for choice in linear} == {"linear_reference"}
    assert all(choice.reason == "asked for by name" for choice in linear)


def test_an_override_of_one_variant(resolved: Resolver, cpu: Hardware) -> None:
    checkpoint = "quantization.weights=checkpoint"
    override = "kernels.overrides={linear:q8_0: linear_reference}"
    plan = resolved(SMALL, cpu, checkpoint, override).plan
    usual = resolved(SMALL, cpu, checkpoint).plan
    assert plan.kernel("linear", "q8_0").kernel == "linear_reference"
    assert plan.kernel("linear", "q4_1") == usual.kernel("linear", "q4_1")


def test_an_override_that_fails_in_every_variant_is_one_mistake(
    resolved: Resolver, cpu: Hardware
) -> None:
    checkpoint = "quantization.weights=checkpoint"
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, checkpoint, "kernels.overrides={linear: nothing}")
    (problem,) = caught.value.problems
    assert "has no kernel called nothing" in problem.message


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("{linear: linear_torch_float32}", "TS-K001", "cannot run"),
        ("{linear: nothing}", "TS-K001", "no kernel called nothing"),
        ("{linear:q4_1: linear_reference}", "TS-K002", "no such op"),
        ("{rmsnorm: rms_norm_reference}", "TS-K002", "no such op"),
    ],
)
def test_an_impossible_override_is_an_error(
    resolved: Resolver, h200: Hardware, override: str, code: str, message: str
) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(DENSE, h200, f"kernels.overrides={override}")
    (problem,) = caught.value.problems
    assert problem.code == code
    assert message in problem.message
    assert problem.hint


def test_a_misspelt_op_names_the_nearest(resolved: Resolver, h200: Hardware) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(DENSE, h200, "kernels.overrides={rmsnorm: rms_norm_reference}")
    assert "did you mean rms_norm?" in caught.value.problems[0].hint
