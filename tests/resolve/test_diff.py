"""Differences are named by what they are about, causes before what follows from them."""

from __future__ import annotations

from dataclasses import replace

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import Rejection, Unmet
from tokenspeed.resolve.diff import Difference, differences, view_of_plan


def test_equal_plans(resolved: Resolver, cpu: Hardware) -> None:
    view = view_of_plan(resolved(SMALL, cpu).plan)
    assert differences(view, view) == ()


def test_values_and_the_reasons_of_both_sides(resolved: Resolver, cpu: Hardware) -> None:
    before, after = resolved(SMALL, cpu), resolved(SMALL, cpu, "serve.port=9000")
    assert differences(
        view_of_plan(before.plan, before.decisions), view_of_plan(after.plan, after.decisions)
    ) == (
        Difference(
            "plan.serve.port", 8000, 9000, "default: the default port", "recipe: as the recipe says"
        ),
    )


def test_entries_are_compared_by_name_not_by_position(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu).plan
    turned = replace(
        plan,
        kernels=plan.kernels[::-1],
        memory=replace(plan.memory, items=plan.memory.items[::-1]),
    )
    assert differences(view_of_plan(plan), view_of_plan(turned)) == ()


def test_a_kernel_is_a_value_and_its_losers_are_talk(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu).plan
    first, *others = plan.kernels
    talk = replace(first, reason="other", rejected=(Rejection(kernel="x", reason="y"),))
    assert (
        differences(view_of_plan(plan), view_of_plan(replace(plan, kernels=(talk, *others)))) == ()
    )
    other = replace(first, kernel="another", reason="it is better")
    (found,) = differences(
        view_of_plan(plan), view_of_plan(replace(plan, kernels=(other, *others)))
    )
    assert (found.after, found.reason_after) == ("another", "it is better")
    assert first.op in found.field


def test_needs_come_and_go(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu).plan
    needy = replace(plan, unmet=(Unmet(need="a host tier", detail="not here"),))
    (found,) = differences(view_of_plan(plan), view_of_plan(needy))
    assert str(found) == "plan.unmet.a host tier: - -> true"
    assert found.reason_after == "not here"


def test_sizes_have_units_unless_they_would_look_alike() -> None:
    assert str(Difference("a.bytes", 2**30, 2**31, "", "")) == "a.bytes: 1GiB -> 2GiB"
    alike = Difference("a.bytes", 2**30, 2**30 + 1, "", "")
    assert str(alike) == f"a.bytes: {2**30} -> {2**30 + 1}"
    assert str(Difference("a.b", None, [True, "x"], "", "")) == "a.b: - -> true, x"


def test_of_a_predicted_step_its_time(resolved: Resolver, h200: Hardware) -> None:
    before, after = (
        resolved(DENSE, h200, *o).plan for o in ((), ("quantization.weights=float32",))
    )
    found = differences(view_of_plan(before), view_of_plan(after))
    predicted = [str(one) for one in found if one.field.startswith("plan.prediction.steps")]
    assert predicted
    assert all(line.endswith(" ms") for line in predicted)
