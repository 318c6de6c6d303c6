"""What is said where no cache fits: the cause, and only what would help."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.resolve.conftest import BUILD, DENSE, SMALL, Resolver
from tokenspeed.cli.messages import problem_text
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.errors import Problem, ResolveError
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware

RECIPES = Path(__file__).parents[2] / "recipes"
GIB = 2**30


def laptop(gibibytes: float = 24) -> Hardware:
    return replace(load_hardware("cpu"), name="this machine", memory_bytes=int(gibibytes * GIB))


def refusal(recipe: Path, hardware: Hardware, *overrides: str) -> Problem:
    with pytest.raises(ResolveError) as caught:
        plan_recipe(recipe, overrides, hardware, BUILD)
    (problem,) = caught.value.problems
    return problem


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_weights_that_no_limit_makes_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECIPES.parent)
    problem = refusal(Path("recipes/deepseek-v3-h200x8-agentic.yaml"), laptop())
    assert problem_text(problem) == (
        "error[TS-M001]: model.source: weights 139.91GiB, runtime 0.50GiB, activations 0.37GiB, "
        "communication 0.28GiB, logits 0.25GiB, expansion 0.11GiB, "
        "sampling state 0.05GiB, rope table 0.04GiB: no room for a cache within 19.20GiB\n"
        "  --> recipes/deepseek-v3-h200x8-agentic.yaml:5:11\n"
        "    |\n"
        "  5 |   source: hf:deepseek-ai/DeepSeek-V3-0324\n"
        "    |           ^\n"
        "  help: no change of one or two keys makes it fit this machine; 122.31GiB are missing, "
        "and no lower limit frees that much: take a device with at least 176.89GiB; to plan it for "
        "another machine: --hardware nvidia-h200x8\n"
    )


def test_limits_that_are_the_cause(tmp_path: Path) -> None:
    text = DENSE + "limits:\n  max_step_tokens: 8192\n  max_running: 2048\n"
    problem = refusal(written(tmp_path, text), load_hardware("nvidia-l4"))
    assert problem.path == "limits.max_running"
    assert problem.where is not None
    assert problem.where.line == 8
    assert problem.message == (
        "weights 15.26GiB, logits 4.64GiB, graphs 3.65GiB, sampling state 1.74GiB, "
        "runtime 1.50GiB, activations 0.69GiB, rope table 0.02GiB: no room for a cache within "
        "20.24GiB"
    )
    change = re.match(r"smallest change that fits: limits.max_running: (\d+); else ", problem.hint)
    assert change
    assert problem.hint[change.end() :] == (
        "7.27GiB are missing: lower limits.max_running and limits.max_step_tokens, or take a "
        "device with at least 30.57GiB"
    )


def test_a_change_that_this_build_cannot_run_is_no_way_out_here() -> None:
    problem = refusal(RECIPES / "deepseek-v2-lite-h200x1-latency.yaml", laptop())
    assert problem.hint == (
        "smallest change that fits: quantization.weights: fp8; "
        "else 11.59GiB are missing, and no lower limit frees that much: "
        "take a device with at least 38.48GiB; "
        "to plan it for another machine: --hardware nvidia-l40s"
    )


def test_the_named_machine_is_the_smallest_that_holds_it() -> None:
    recipe = RECIPES / "deepseek-v3-h200x8-agentic.yaml"
    hint = refusal(recipe, laptop()).hint
    name = hint.rpartition("--hardware ")[2]
    plan = plan_recipe(recipe, (), load_hardware(name), BUILD).resolution.plan
    assert all(unmet.need != "devices" for unmet in plan.unmet)
    for smaller in ("nvidia-gb200-nvl4", "nvidia-h200x4"):
        try:
            plan = plan_recipe(recipe, (), load_hardware(smaller), BUILD).resolution.plan
        except ResolveError:
            continue
        assert any(unmet.need == "devices" for unmet in plan.unmet)


def test_no_machine_is_named_that_does_not_hold_it(tmp_path: Path) -> None:
    """A trillion parameters on one rank."""
    text = DENSE.replace("Qwen/Qwen3-8B", "moonshotai/Kimi-K2-Instruct")
    problem = refusal(written(tmp_path, text), laptop())
    assert problem.hint.startswith("no change of one or two keys makes it fit this machine; ")
    assert "--hardware" not in problem.hint


def test_a_budget_of_the_recipe_is_the_cause_where_the_device_has_more(
    resolved: Resolver, cpu: Hardware
) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, "limits.memory=300MiB")
    (problem,) = caught.value.problems
    assert problem.path == "limits.memory"
    assert "no lower limit frees that much" in problem.hint  # the runtime alone is 512 MiB
    budget = re.search(r"write limits.memory: (\S+) or more", problem.hint)
    assert budget
    resolved(SMALL, cpu, f"limits.memory={budget[1]}")


def test_a_context_that_was_asked_for_is_not_a_second_mistake(
    resolved: Resolver, cpu: Hardware
) -> None:
    """The cache that is not there holds no context: the device named holds both."""
    asked = "model.max_context=32768"
    with pytest.raises(ResolveError) as caught:
        resolved(DENSE, replace(cpu, memory_bytes=4 * GIB), asked)
    (problem,) = caught.value.problems
    device = device_of(problem)
    resolved(DENSE, replace(cpu, memory_bytes=device), asked)


def device_of(problem: Problem) -> int:
    found = re.search(r"take a device with at least (\d+\.\d\d)GiB", problem.hint)
    assert found, problem.hint
    return int(float(found[1]) * GIB)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("mebibytes", [3_000, 14_000])
@pytest.mark.parametrize("running", [8, 4096])
@pytest.mark.parametrize(
    "overrides", [(), ("model.max_context=20000",), ("kv.size=3GiB",), ("kv.block_size=128",)]
)
def test_the_device_that_is_named_holds_it_and_limits_are_named_where_they_help(
    resolved: Resolver, on_gpu: bool, mebibytes: int, running: int, overrides: tuple[str, ...]
) -> None:
    known = load_hardware("nvidia-l4" if on_gpu else "cpu")

    def sized(count: int) -> Hardware:
        if not on_gpu:
            return replace(known, memory_bytes=count)
        return replace(known, gpus=(replace(known.gpus[0], memory_bytes=count),))

    asked = (f"limits.max_running={running}", "limits.max_step_tokens=8192", *overrides)
    try:
        resolved(DENSE, sized(mebibytes * 2**20), *asked)
    except ResolveError as error:
        problem = error.problems[0]
    else:
        raise AssertionError("the weights alone are more than this")
    resolved(DENSE, sized(device_of(problem)), *asked)
    lowest = ("limits.max_running=1", "limits.max_step_tokens=1", *overrides)
    try:
        resolved(DENSE, sized(mebibytes * 2**20), *lowest)
    except ResolveError as error:
        if error.problems[0].code == "TS-M001":
            assert "no lower limit frees that much" in problem.hint
    else:
        assert ": lower limits." in problem.hint
