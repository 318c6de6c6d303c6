"""Each shipped recipe resolves on its stored machine to its reviewed plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.recipes.golden import MACHINES, PLANS, RECIPES, WIDTHS, planned, texts
from tokenspeed.cli.schema import plan_schema

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


@pytest.mark.parametrize("name", MACHINES)
def test_the_plan_runs_here_as_far_as_it_says(name: str) -> None:
    assert planned(name).resolution.plan.unmet == ()


@pytest.mark.parametrize("name", MACHINES)
def test_recipes_are_short_and_known_to_editors(name: str) -> None:
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=../schemas/recipe.schema.json"
    assert 8 <= len(lines) <= 12
    assert (RECIPES.parent / Path("schemas/recipe.schema.json")).is_file()


@pytest.mark.parametrize("name", MACHINES)
def test_plans_follow_their_schema(name: str) -> None:
    body = json.loads(texts(name)[f"{name}.json"])
    assert not list(Draft202012Validator(plan_schema()).iter_errors(body["plan"]))
