"""Greedy answers are those of transformers, whatever the engine does to get them."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.rigs import FAMILIES, rand_prompts
from tests.rigs.drive import Answer, Driver, driver
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model
from tokenspeed.request import FinishReason

NEW_TOKENS = 20
SHARED = rand_prompts(1, 50, seed=1)[0]


def mixed_prompts() -> list[list[int]]:
    """16 prompts of 1 to 130 tokens; every other one begins with the same 50."""
    lengths = (1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 80, 3, 5, 70, 20)
    tails = [rand_prompts(1, length, seed=2)[0] for length in lengths]
    return [SHARED + tail if place % 2 else tail for place, tail in enumerate(tails)]


def check(model: Model, prompts: list[list[int]], answers: list[Answer]) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.finish_reason == FinishReason.LENGTH
        assert len(answer.tokens) == NEW_TOKENS
        model.oracle.check_greedy(prompt, answer.tokens)


def cached_by_rule(prompt: list[int], block_size: int = 16) -> int:
    return (len(prompt) - 1) // block_size * block_size


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "whole"])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "nocache"])
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("depth", [0, 1])
def test_tokens_equal_transformers(
    models: dict[str, Model], family: str, chunked: bool, cache: bool, batch: int, depth: int
) -> None:
    model = models[family]
    plan = tiny_plan(
        model.folder,
        max_running=batch,
        max_step_tokens=24 if chunked else 256,
        chunked_prefill=chunked,
        prefix_cache=cache,
        in_flight_depth=depth,
    )
    prompts = mixed_prompts() if batch > 1 else mixed_prompts()[5:8]
    with driver(plan, model.folder) as run:
        cold = run.generate(prompts, NEW_TOKENS)
        warm = run.generate(prompts, NEW_TOKENS)
    check(model, prompts, cold)
    check(model, prompts, warm)
    for prompt, answer in zip(prompts, warm, strict=True):
        assert answer.cached_tokens == (cached_by_rule(prompt) if cache else 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [0, 1])
def test_the_next_turn_finds_all_but_the_last_token(
    models: dict[str, Model], family: str, depth: int
) -> None:
    """The end of a history is copied: it rarely fills a block. Sixteen go on from it at once."""
    model = models[family]
    plan = tiny_plan(model.folder, max_running=16, max_step_tokens=64, in_flight_depth=depth)
    prompts = mixed_prompts()[:4]
    with driver(plan, model.folder) as run:
        first = run.generate(prompts, NEW_TOKENS)
        said = [prompt + answer.tokens for prompt, answer in zip(prompts, first, strict=True)]
        turns = [[*history, place, 7] for history in said for place in range(4)]
        second = run.generate(turns, NEW_TOKENS)
    check(model, prompts, first)
    check(model, turns, second)
    for turn, answer in zip(turns, second, strict=True):
        computed = len(turn) - 3  # the last of an answer is never computed
        enough = computed % 16 >= 4
        assert answer.cached_tokens == (computed if enough else computed // 16 * 16)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "nocache"])
def test_preemption_cannot_be_seen(
    models: dict[str, Model], family: str, depth: int, cache: bool
) -> None:
    """Six requests that need 5 blocks each at the end, in a pool of 12 (case C27)."""
    model = models[family]
    plan = tiny_plan(
        model.folder, num_blocks=13, block_size=7, in_flight_depth=depth, prefix_cache=cache
    )
    prompts = rand_prompts(6, 14, seed=3)
    with driver(plan, model.folder) as run:
        ids = [run.submit(prompt, NEW_TOKENS) for prompt in prompts]
        run.run(check=True)
        assert run.loop.stats().preemptions > 0
        check(model, prompts, [run.answers[request_id] for request_id in ids])


# ---- C40: the answer does not depend on who else is there


def test_answer_depends_on_nobody_else(llama: Model) -> None:
    prompts = rand_prompts(20, 37, seed=4)
    strangers = rand_prompts(50, 29, seed=5)
    shuffle = random.Random(0)
    for chunk in (1, 16, 256):
        plan = tiny_plan(
            llama.folder, max_running=min(16, chunk), max_step_tokens=chunk, num_blocks=400
        )
        with driver(plan, llama.folder) as run:
            for size in (1, 2, 7, 16):
                order = shuffle.sample(prompts, len(prompts)) if chunk > 1 else prompts[:4]
                for group in _batches(order, size):
                    check(llama, group, run.generate(group, NEW_TOKENS))
            run.generate(strangers if chunk > 1 else strangers[:5], 3)
            check(llama, prompts[:4], run.generate(prompts[:4], NEW_TOKENS))


def _batches(prompts: list[list[int]], size: int) -> list[list[list[int]]]:
    return [prompts[begin : begin + size] for begin in range(0, len(prompts), size)]


# ---- C24: prompts that the cache holds whole, and lengths around multiples of the block

BLOCK = 4


@pytest.mark.parametrize("chunk", [BLOCK - 1, BLOCK, BLOCK + 1, 256])
@pytest.mark.parametrize("depth", [0, 1])
def test_prompts_around_block_borders(llama: Model, chunk: int, depth: int) -> None:
    plan = tiny_plan(
        llama.folder,
        block_size=BLOCK,
        max_running=min(4, chunk),
        max_step_tokens=chunk,
        in_flight_depth=depth,
    )
    lengths = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 8 * BLOCK)
    with driver(plan, llama.folder) as run:
        for length, max_tokens in itertools.product(lengths, (1, BLOCK - 1, BLOCK, BLOCK + 1)):
            (prompt,) = rand_prompts(1, length, seed=max_tokens)
            _repeat(llama, run, prompt, max_tokens)


def _repeat(model: Model, run: Driver, prompt: list[int], max_tokens: int) -> None:
    """Three times in a row, then four at once; all but the first find what the rule allows."""
    groups = [run.generate([prompt] * count, max_tokens) for count in (1, 1, 1, 4)]
    for place, group in enumerate(groups):
        for answer in group:
            assert len(answer.tokens) == max_tokens
            model.oracle.check_greedy(prompt, answer.tokens)
            assert answer.cached_tokens == (cached_by_rule(prompt, BLOCK) if place else 0)


def test_prompt_one_longer_and_one_shorter_than_a_cached_one(llama: Model) -> None:
    plan = tiny_plan(llama.folder, block_size=BLOCK)
    (prompt,) = rand_prompts(1, 2 * BLOCK + 1, seed=9)
    with driver(plan, llama.folder) as run:
        for part, cached in ((prompt[:-1], 0), (prompt, 2 * BLOCK), (prompt[:-2], BLOCK)):
            (answer,) = run.generate([part], 6)
            assert answer.cached_tokens == cached
            llama.oracle.check_greedy(part, answer.tokens)


def test_equal_cold_prompts_are_computed_once(llama: Model) -> None:
    """16 cold requests with one prefix: the blocks of the first serve the others at once."""
    plan = tiny_plan(llama.folder, max_step_tokens=256)
    prompts = [SHARED + tail for tail in rand_prompts(16, 7, seed=6)]
    with driver(plan, llama.folder) as run:
        answers = run.generate(prompts, NEW_TOKENS)
    check(llama, prompts, answers)
    assert sorted(answer.cached_tokens or 0 for answer in answers) == [0] + [48] * 15


# ---- C26: cancel and retry on a shared prefix


@pytest.mark.parametrize("depth", [0, 1])
def test_cancel_and_retry_harms_nobody(llama: Model, depth: int) -> None:
    block = 8
    plan = tiny_plan(
        llama.folder,
        block_size=block,
        num_blocks=1 + 40,
        max_running=12,
        max_step_tokens=20,
        in_flight_depth=depth,
    )
    (prefix,) = rand_prompts(1, 8 * block, seed=7)
    prompts = [prefix + tail for tail in rand_prompts(8, 5, seed=8)] + rand_prompts(4, 21, seed=8)
    with driver(plan, llama.folder) as run:
        for seed in range(40):
            run.scheduler.reset_prefix_cache()
            _storm(llama, run, prompts, random.Random(seed))
        assert run.loop.stats().requests_aborted > 60


def _storm(model: Model, run: Driver, prompts: list[list[int]], chance: random.Random) -> None:
    """All prompts at once; two are cancelled at random turns and sent again at once."""
    ids = {place: run.submit(prompt, 8) for place, prompt in enumerate(prompts)}
    cancels = {turn: chance.randrange(8) for turn in chance.sample(range(1, 12), 2)}
    turn = 0
    while run.loop.busy:
        run.turn(check=True)
        turn += 1
        if turn in cancels:
            place = cancels[turn]
            run.abort(ids[place])
            ids[place] = run.submit(prompts[place], 8)
    run.run()
    for place, prompt in enumerate(prompts):
        answer = run.answers[ids[place]]
        assert answer.finish_reason == FinishReason.LENGTH
        model.oracle.check_greedy(prompt, answer.tokens)
