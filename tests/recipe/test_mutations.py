"""Three hundred ways to get a recipe wrong by one edit: each is found on its line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.recipe.mutate import KINDS, RICH, Corruption, corruptions
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.errors import ExitCode, Problem, TokenspeedError
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.recipe.load import load_recipe

REPO = Path(__file__).resolve().parents[2]
EACH = 38
ALL = list(corruptions(REPO / "recipes", EACH, seed=20261129))


def refused(one: Corruption, path: Path) -> list[Problem]:
    """The problems; anything else than a TokenspeedError passes through and fails the test."""
    path.write_text(one.text, encoding="utf-8")
    try:
        if one.machine is None:
            load_recipe(path)
        else:
            plan_recipe(path, (), load_hardware(one.machine))
    except TokenspeedError as error:
        assert error.exit_code in (ExitCode.INVALID_RECIPE, ExitCode.UNSATISFIABLE)
        return list(error.problems)
    return []


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_each_is_refused_on_its_line(kind: str, tmp_path: Path) -> None:
    ours = [one for one in ALL if one.kind.lower().replace(" ", "_") == kind]
    assert len(ours) == EACH
    for one in ours:
        problems = refused(one, tmp_path / "recipe.yaml")
        named = {problem.where.line for problem in problems if problem.where}
        assert named & set(one.lines), f"{one.lines} not in {named}: {problems}\n{one.text}"
        assert all(problem.code and problem.where for problem in problems)
        assert any(problem.hint for problem in problems)


def test_three_hundred_in_equal_parts() -> None:
    assert len(ALL) >= 300
    assert set(Counter(one.kind for one in ALL).values()) == {EACH}
    assert len({one.text for one in ALL}) > 250


def test_what_is_corrupted_was_valid(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RICH)
    plan_recipe(path, (), load_hardware("nvidia-h200"))
