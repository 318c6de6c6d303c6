"""Each shipped recipe resolves on its stored machine to its reviewed plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tokenspeed_kernels import registry

from tests.recipes.golden import (
    MACHINES,
    PLANS,
    RECIPES,
    TABLE_MACHINES,
    TABLE_RECIPE,
    TABLES,
    WIDTHS,
    kernel_table,
    planned,
    texts,
)
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.cli.schema import plan_schema
from tokenspeed.hardware.profiles import load_hardware

WAY_OUT = "if this change is meant: python -m tests.recipes.golden, and review the difference"


def test_every_recipe_has_a_machine() -> None:
    assert {path.stem for path in RECIPES.glob("*.yaml")} == set(MACHINES)


def test_nothing_is_left_over() -> None:
    kinds = ("json", *(f"{columns}.txt" for columns in WIDTHS))
    expected = {f"{name}.{kind}" for name in MACHINES for kind in kinds}
    assert {path.name for path in PLANS.iterdir()} == expected


@pytest.mark.parametrize("name", MACHINES)
def test_the_plan_is_the_reviewed_one(name: str) -> None:
    for file, content in texts(name).items():
        assert content == (PLANS / file).read_text(), WAY_OUT


# What `up` boots as it is; the others name what they need in their plans.
RUN_HERE = {
    "deepseek-v2-lite-h200x1-agentic",
    "deepseek-v2-lite-h200x1-latency",
    "gpt-oss-20b-h200x1-latency",
    "moonlight-16b-a3b-h200x1-latency",
    "qwen3-30b-a3b-h200x1-fp8",
    "qwen3-30b-a3b-h200x1-throughput",
    "qwen3-06b-laptop-private",
    "smollm2-135m-cpu",
    "qwen3-8b-h200x1-agentic",
    "qwen3-8b-h200x1-latency",
    "llama31-8b-h200x1-fp8",
    "llama31-8b-h200x1-latency",
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_plan_runs_here_as_far_as_it_says(name: str) -> None:
    unmet = planned(name).resolution.plan.unmet
    assert (not unmet) is (name in RUN_HERE)
    assert all(need.need and need.detail for need in unmet)


@pytest.mark.parametrize("name", MACHINES)
def test_recipes_are_short_and_known_to_editors(name: str) -> None:
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=../schemas/recipe.schema.json"
    assert 8 <= len(lines[1:]) <= 15
    assert f"name: {name}" in lines
    assert (RECIPES.parent / Path("schemas/recipe.schema.json")).is_file()


@pytest.mark.parametrize("machine", TABLE_MACHINES)
def test_kernel_tables(machine: str) -> None:
    """For each op the winner with its reason, and each loser with what it missed."""
    table = kernel_table(machine)
    assert table == (TABLES / f"{machine}.md").read_text(), WAY_OUT
    plan = plan_recipe(TABLE_RECIPE, (), load_hardware(machine)).resolution.plan
    for choice in plan.kernels:
        known = {spec.name for spec in registry.specs(choice.op)} if choice.kernel else set()
        named = {choice.kernel, *(loser.kernel for loser in choice.rejected)}
        assert known <= named, "every kernel of the op won or says why not"
        assert choice.reason
        assert all(loser.reason for loser in choice.rejected)


@pytest.mark.parametrize("name", MACHINES)
def test_plans_follow_their_schema(name: str) -> None:
    body = json.loads(texts(name)[f"{name}.json"])
    assert not list(Draft202012Validator(plan_schema()).iter_errors(body["plan"]))
