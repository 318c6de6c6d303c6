"""Experts, latent attention, windows and sinks: greedy answers are those of transformers, whatever
the engine does to get them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rigs import Oracle, rand_prompts
from tests.rigs.drive import Answer, driver
from tests.rigs.experts import EXPERT_FAMILIES, build_experts
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model

NEW_TOKENS = 12
SHARED = rand_prompts(1, 50, seed=1)[0]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """The model of a family, built once."""
    built: dict[str, Model] = {}

    def get(family: str) -> Model:
        if family not in built:
            folder = build_experts(tmp_path_factory.mktemp(family) / "model", family, seed=11)
            built[family] = Model(folder, Oracle(folder))
        return built[family]

    return get


def mixed_prompts() -> list[list[int]]:
    lengths = (1, 2, 7, 8, 9, 16, 17, 31, 33, 48, 64, 65, 3, 5, 70, 20)
    tails = [rand_prompts(1, length, seed=2)[0] for length in lengths]
    return [SHARED + tail if place % 2 else tail for place, tail in enumerate(tails)]


def check(
    model: Model, prompts: list[list[int]], answers: list[Answer], count: int = NEW_TOKENS
) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer.tokens) == count
        model.oracle.check_greedy(prompt, answer.tokens)


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_first_token_decides_continuations(rig: Callable[[str], Model], family: str) -> None:
    oracle = rig(family).oracle
    changed = 0
    for prompt in rand_prompts(12, 60):
        other = [3 + prompt[0] % 500, *prompt[1:]]
        changed += oracle.greedy(prompt, 4) != oracle.greedy(other, 4)
    assert changed >= 6


# Rows of many tokens are expanded, where a model has latents, or every query is absorbed.
FORMS = [
    *(pytest.param(family, True, id=family) for family in EXPERT_FAMILIES),
    *(
        pytest.param(f"deepseek_{one}", False, id=f"deepseek_{one}-absorbed")
        for one in ("v2", "v3")
    ),
]


@pytest.mark.parametrize(("family", "expands"), FORMS)
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "nocache"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "whole"])
@pytest.mark.parametrize(("batch", "depth"), [(1, 0), (16, 1)])
def test_tokens_equal_transformers(
    rig: Callable[[str], Model],
    family: str,
    expands: bool,
    cache: bool,
    chunked: bool,
    batch: int,
    depth: int,
) -> None:
    model = rig(family)
    plan = tiny_plan(
        model.folder,
        max_running=batch,
        max_step_tokens=24 if chunked else 256,
        chunked_prefill=chunked,
        prefix_cache=cache,
        in_flight_depth=depth,
        expands=expands,
    )
    prompts = mixed_prompts() if batch > 1 else mixed_prompts()[5:8]
    with driver(plan, model.folder) as run:
        cold = run.generate(prompts, NEW_TOKENS)
        warm = run.generate(prompts, NEW_TOKENS) if cache else []
    check(model, prompts, cold)
    if not cache:
        assert not any(answer.cached_tokens for answer in cold)
        return
    check(model, prompts, warm)
    for prompt, answer in zip(prompts, warm, strict=True):
        assert answer.cached_tokens == (len(prompt) - 1) // 16 * 16


@pytest.mark.parametrize(("family", "expands"), FORMS)
@pytest.mark.parametrize(("cache", "depth"), [(True, 0), (True, 1), (False, 1)])
def test_preemption_cannot_be_seen(
    rig: Callable[[str], Model], family: str, expands: bool, cache: bool, depth: int
) -> None:
    model = rig(family)
    plan = tiny_plan(
        model.folder,
        num_blocks=17,
        block_size=7,
        in_flight_depth=depth,
        prefix_cache=cache,
        expands=expands,
    )
    # Windows get no room of their own: they compete with what grows.
    plan = dataclasses.replace(plan, cache=dataclasses.replace(plan.cache, request_slots=0))
    prompts = rand_prompts(6, 6, seed=3)
    with driver(plan, model.folder) as run:
        ids = [run.submit(prompt, 30) for prompt in prompts]
        run.run(check=True)
        assert run.loop.stats().preemptions > 0
        check(model, prompts, [run.answers[request_id] for request_id in ids], 30)


@pytest.mark.parametrize(("family", "layers"), [("qwen3_moe", (0, 1)), ("deepseek_v2", (1, 2))])
def test_each_token_is_counted_for_each_expert_that_it_has(
    rig: Callable[[str], Model], family: str, layers: tuple[int, ...]
) -> None:
    model = rig(family)
    plan = tiny_plan(model.folder, max_step_tokens=24, prefix_cache=False)
    prompts = mixed_prompts()[:8]
    with driver(dataclasses.replace(plan, expert_load=True), model.folder) as run:
        check(model, prompts, run.generate(prompts, NEW_TOKENS))
        load = run.loop.expert_load()
    # The last token of an answer is not computed further.
    computed = sum(len(prompt) + NEW_TOKENS - 1 for prompt in prompts)
    assert tuple(one.layer for one in load) == layers
    for one in load:
        assert len(one.tokens) == 8 and sum(one.tokens) == 3 * computed
    assert load[0].tokens != load[1].tokens
    with driver(plan, model.folder) as run:
        run.generate(prompts[:1], 2)
        assert run.loop.expert_load() == ()


# ---- C39: windows against pages


@pytest.mark.parametrize("chunk", [1, 3, 8, 9, 64])
def test_c39_window_is_that_of_the_reference(tmp_path: Path, chunk: int) -> None:
    """Window 8, blocks of 4, lengths around both; every chunk size gives the oracle's tokens."""
    folder = build_experts(tmp_path / "model", "gpt_oss", seed=12)
    model = Model(folder, Oracle(folder))
    plan = tiny_plan(
        folder, block_size=4, num_blocks=64, max_running=min(4, chunk), max_step_tokens=chunk
    )
    prompts = [rand_prompts(1, length, seed=5)[0] for length in (1, 4, 7, 8, 9, 15, 16, 17, 40)]
    with driver(plan, folder) as run:
        check(model, prompts, run.generate(prompts, NEW_TOKENS))
        check(model, prompts, run.generate(prompts, NEW_TOKENS))


# ---- C40: the answer does not depend on who else is there


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss"])
def test_c40_answer_depends_on_nobody_else(rig: Callable[[str], Model], family: str) -> None:
    """Alone, among others, in another order, cold and warm: the oracle's tokens each time."""
    model = rig(family)
    prompts = rand_prompts(8, 21, seed=4)
    for chunk in (16, 256):
        plan = tiny_plan(model.folder, max_running=8, max_step_tokens=chunk)
        with driver(plan, model.folder) as run:
            for group in (prompts[:1], prompts[1:3], prompts[::-1], prompts):
                check(model, group, run.generate(group, NEW_TOKENS))
