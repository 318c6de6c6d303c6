"""What does not fit names the smallest change that does: proven, and nothing milder fits.

python -m tests.resolve.test_change      prints the recipes and their changes
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.resolve.conftest import BUILD, DENSE, SMALL
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware
from tokenspeed.recipe.load import LoadedRecipe, load_recipe
from tokenspeed.resolve.change import ORDER, Edits, edited
from tokenspeed.resolve.facts import model_facts
from tokenspeed.resolve.resolve import Resolution, resolve


def recipe(source: str, *lines: str) -> str:
    text = f"version: 1\nname: tight\nmodel:\n  source: {source}\n  load: dummy\n"
    return text + "".join(f"{line}\n" for line in lines)


# name -> (recipe, machine, the change)
TIGHT = {
    "too many requests": (
        recipe("hf:Qwen/Qwen3-8B", "limits:", "  max_running: 4096", "  memory: 20GiB"),
        "nvidia-l40s",
        {"limits.memory"},
    ),
    "too many states": (
        recipe("hf:Qwen/Qwen3-Next-80B-A3B-Instruct", "quantization: {weights: fp8}",
               "limits: {max_running: 1024}"),
        "nvidia-h200",
        {"limits.max_running"},
    ),
    "a context too long": (
        recipe("hf:meta-llama/Llama-3.1-8B-Instruct", "  max_context: 131072"),
        "nvidia-l4",
        {"model.max_context"},
    ),
    "a cache a little too large": (
        recipe("hf:Qwen/Qwen3-32B", "  max_context: 40960", "limits: {max_running: 8}"),
        "nvidia-a100-80g",
        {"model.max_context"},
    ),
    "weights too large for the card": (
        recipe("hf:Qwen/Qwen3-8B"),
        "nvidia-rtx-4090-16g",
        {"quantization.weights"},
    ),
    "a model for many cards": (
        recipe("hf:deepseek-ai/DeepSeek-V3-0324"),
        "nvidia-h200x8",
        {"parallel.attention.tp"},
    ),
    "a model for more cards than there are": (
        recipe("hf:moonshotai/Kimi-K2-Instruct"),
        "nvidia-h200",
        {"parallel.attention.tp"},
    ),
    "a pool larger than the device": (
        SMALL + "kv: {size: 100GiB}\n",
        "cpu",
        {"kv.size"},
    ),
    "too many fronts": (SMALL + "serve: {fronts: 64}\n", "cpu", {"serve.fronts"}),
    "a pool of no use": (SMALL + "kv: {blocks: 3}\nlimits: {max_running: 2}\n", "cpu", set()),
}  # fmt: skip
REFUSED = [name for name, (_, _, keys) in TIGHT.items() if keys]


def machine(name: str) -> Hardware:
    if name == "nvidia-rtx-4090-16g":
        known = load_hardware("nvidia-rtx-4090")
        return replace(known, gpus=(replace(known.gpus[0], memory_bytes=16 * 2**30),))
    return load_hardware(name)


def load(text: str, *overrides: str) -> LoadedRecipe:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(text)
        return load_recipe(path, overrides)


def resolved(text: str, hardware: Hardware, *overrides: str) -> Resolution:
    loaded = load(text, *overrides)
    return resolve(loaded.recipe, loaded.origins, model_facts(loaded), hardware, BUILD)


def refusal(text: str, hardware: Hardware) -> ResolveError:
    with pytest.raises(ResolveError) as caught:
        resolved(text, hardware)
    return caught.value


@pytest.mark.parametrize("name", REFUSED)
def test_the_suggestion_fits(name: str) -> None:
    text, where, keys = TIGHT[name]
    hardware = machine(where)
    error = refusal(text, hardware)
    assert {key for key, _ in error.suggestion} == keys
    assert "smallest change that fits: " in error.problems[0].hint
    plan = resolved(text, hardware, *(f"{key}={value}" for key, value in error.suggestion)).plan
    assert sum(item.bytes for item in plan.memory.items) == plan.memory.budget_bytes
    assert (plan.cache.num_blocks - 1) * plan.cache.block_size >= plan.scheduler.max_model_len


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_earlier_in_the_order_fits(name: str) -> None:
    """Every value of every earlier step is refused, and so is every milder value of this one;
    a plan that needs more of the machine than the suggested one does not count as fitting."""
    text, where, _ = TIGHT[name]
    hardware = machine(where)
    suggestion = refusal(text, hardware).suggestion
    assert len(suggestion) == 1
    ((key, value),) = suggestion
    lacks = {unmet.need for unmet in resolved(text, hardware, f"{key}={value}").plan.unmet}
    loaded = load(text)
    failed = attempt_of(loaded, hardware)
    for step in ORDER:
        values = step.values(loaded.recipe, failed)
        if step.key == key:
            spelt = [step.spell(candidate) for candidate in values]
            values = values[: spelt.index(value)] if value in spelt else values[:0]
        for candidate in values:
            assert not fits(loaded, hardware, ((step.key, candidate),), lacks), (
                step.key,
                candidate,
            )
        if step.key == key:
            return
    raise AssertionError("the suggested key is none of the order's")


@pytest.mark.parametrize(("name", "grain"), [("too many states", 1), ("a context too long", 64)])
def test_the_mildest_number_is_found(name: str, grain: int) -> None:
    text, where, _ = TIGHT[name]
    hardware = machine(where)
    ((key, value),) = refusal(text, hardware).suggestion
    resolved(text, hardware, f"{key}={value}")
    with pytest.raises(ResolveError):
        resolved(text, hardware, f"{key}={int(value) + grain}")


def attempt_of(loaded: LoadedRecipe, hardware: Hardware):  # type: ignore[no-untyped-def]
    """The failed attempt that the search started from."""
    from tokenspeed.resolve import resolve as module
    from tokenspeed.resolve.change import Attempt
    from tokenspeed.resolve.ledger import Ledger

    ledger = Ledger(loaded.origins)
    plan = module._plan(loaded.recipe, model_facts(loaded), hardware, BUILD, ledger)
    return Attempt(plan, tuple(ledger.failures), tuple(ledger.unmet), tuple(ledger.decisions))


def fits(loaded: LoadedRecipe, hardware: Hardware, edits: Edits, lacks: set[str]) -> bool:
    changed = edited(loaded.recipe, edits)
    try:
        plan = resolve(changed, loaded.origins, model_facts(loaded), hardware, BUILD).plan
    except ResolveError:
        return False
    return {unmet.need for unmet in plan.unmet} <= lacks


def test_what_fits_suggests_nothing() -> None:
    text, where, _ = TIGHT["a pool of no use"]
    assert resolved(text, machine(where)).plan.cache.num_blocks == 3


def test_other_mistakes_are_not_mended_by_size() -> None:
    error = refusal(DENSE + "kernels: {overrides: {sample: nothing}}\n", load_hardware("nvidia-l4"))
    assert error.suggestion == ()


def test_what_the_plan_then_lacks_is_said() -> None:
    text, where, _ = TIGHT["a model for more cards than there are"]
    error = refusal(text, machine(where))
    said = "(this build cannot run that: parallel groups; the machine lacks devices)"
    assert said in error.problems[0].hint


@settings(deadline=None, max_examples=25)
@given(
    memory=st.integers(min_value=600, max_value=24_000),
    running=st.integers(min_value=1, max_value=2048),
    context=st.integers(min_value=64, max_value=8_192),
)
def test_any_suggestion_is_true(memory: int, running: int, context: int) -> None:
    overrides = (
        f"limits.max_running={running}",
        f"model.max_context={context}",
        "quantization.weights=float32",
    )
    known = load_hardware("nvidia-l4")
    small = replace(known, gpus=(replace(known.gpus[0], memory_bytes=memory * 2**20),))
    try:
        resolved(SMALL, small, *overrides)
    except ResolveError as error:
        changes = tuple(f"{key}={value}" for key, value in error.suggestion)
        if changes:
            resolved(SMALL, small, *overrides, *changes)


@pytest.mark.parametrize("size", ["kv.size=16MiB", "kv.blocks=4"])
def test_a_cache_that_no_room_would_make_large_enough_is_told_at_once(size: str) -> None:
    known = load_hardware("nvidia-l4")
    small = replace(known, gpus=(replace(known.gpus[0], memory_bytes=600 * 2**20),))
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, small, size, "model.max_context=8192")
    assert [problem.code for problem in caught.value.problems] == ["TS-M001", "TS-M004"]
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, known, size, "model.max_context=8192")
    assert [problem.code for problem in caught.value.problems] == ["TS-M004"]


def main() -> None:
    for name in REFUSED:
        text, where, _ = TIGHT[name]
        try:
            resolved(text, machine(where))
        except ResolveError as error:
            print(f"{name} ({where}): {error.problems[0].message}")
            print(f"    {error.problems[0].hint}")


if __name__ == "__main__":
    main()
