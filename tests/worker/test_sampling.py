"""Sampling parameters, one request beside others: each row gets what it asked for, and what it
gets does not depend on the batch, on chunks or on preemption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from tests.rigs import TIE, rand_prompts
from tests.rigs.drive import GREEDY, driver
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model
from tokenspeed.request import FinishReason, SamplingParams

NEW_TOKENS = 16
PROMPTS = rand_prompts(6, 14, seed=21)

PENALTIES = SamplingParams(
    temperature=0.0, repetition_penalty=1.4, presence_penalty=0.8, frequency_penalty=0.6
)
DRAWN = SamplingParams(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01, seed=5)
MIXED = (
    GREEDY,
    DRAWN,
    PENALTIES,
    SamplingParams(temperature=1.5, seed=-3, repetition_penalty=1.2),
    SamplingParams(temperature=0.0, logit_bias=((7, 3.0), (9, -3.0))),
    SamplingParams(temperature=2.0, seed=2**64 - 1, logprobs=2),
)


def alone(model: Model, params: SamplingParams, prompt: list[int]) -> list[int]:
    with driver(tiny_plan(model.folder), model.folder) as run:
        return run.generate([prompt], NEW_TOKENS, params)[0].tokens


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("room", ["wide", "preempting"])
def test_mixed_batch_gives_each_what_it_gets_alone(llama: Model, depth: int, room: str) -> None:
    expected = [alone(llama, params, prompt) for params, prompt in zip(MIXED, PROMPTS, strict=True)]
    narrow = {"num_blocks": 13, "block_size": 7, "max_step_tokens": 17}
    plan = tiny_plan(
        llama.folder, in_flight_depth=depth, **(narrow if room == "preempting" else {})
    )
    with driver(plan, llama.folder) as run:
        for _ in range(2):
            ids = [
                run.submit(prompt, NEW_TOKENS, params)
                for params, prompt in zip(MIXED, PROMPTS, strict=True)
            ]
            run.run(check=True)
            assert [run.answers[request_id].tokens for request_id in ids] == expected
        assert (run.loop.stats().preemptions > 0) == (room == "preempting")


def test_seeds_decide_the_draws(llama: Model) -> None:
    def drawn(seed: int) -> list[int]:
        return alone(llama, SamplingParams(temperature=1.0, seed=seed), PROMPTS[0])

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(6)}) == 6


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_narrowest_sampling_is_greedy(llama: Model, params: dict[str, float]) -> None:
    hot = SamplingParams(temperature=5.0, seed=3, **params)
    llama.oracle.check_greedy(PROMPTS[1], alone(llama, hot, PROMPTS[1]))


def test_draws_follow_the_distribution(llama: Model) -> None:
    """First tokens of many seeds against the model's own probabilities."""
    prompt, count = PROMPTS[2], 1000
    probabilities = llama.oracle.logprobs(prompt)[-1].exp()
    plan = tiny_plan(llama.folder, max_running=64, max_step_tokens=1024)
    with driver(plan, llama.folder) as run:
        ids = [
            run.submit(prompt, 1, SamplingParams(temperature=1.0, seed=seed))
            for seed in range(count)
        ]
        run.run()
    seen = Counter(run.answers[request_id].tokens[0] for request_id in ids)
    for token in probabilities.topk(5).indices.tolist():
        expected = float(probabilities[token])
        deviation = (expected * (1 - expected) / len(ids)) ** 0.5
        assert abs(seen[token] / len(ids) - expected) < 4 * deviation


def penalised(logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
    """The penalties of `PENALTIES`, written out token by token."""
    changed = logits.clone()
    for token in {*prompt, *output}:
        value = float(logits[token])
        factor = PENALTIES.repetition_penalty
        changed[token] = value / factor if value > 0 else value * factor
    for token, times in Counter(output).items():
        changed[token] -= PENALTIES.presence_penalty + PENALTIES.frequency_penalty * times
    return changed


@pytest.mark.parametrize("depth", [0, 1])
def test_penalties_count_what_was_said(llama: Model, depth: int) -> None:
    plan = tiny_plan(llama.folder, in_flight_depth=depth)
    with driver(plan, llama.folder) as run:
        answers = run.generate(PROMPTS, NEW_TOKENS, PENALTIES)
    changed_something = False
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        scores = llama.oracle.logits([*prompt, *answer.tokens])[len(prompt) - 1 : -1]
        for place, (row, token) in enumerate(zip(scores, answer.tokens, strict=True)):
            expected = penalised(row, prompt, answer.tokens[:place])
            changed_something |= int(expected.argmax()) != int(row.argmax())
            assert float(expected.max() - expected[token]) < TIE
    assert changed_something


def test_bias_forces_and_forbids(llama: Model) -> None:
    (plain,) = rand_prompts(1, 9, seed=23)
    greedy = alone(llama, GREEDY, plain)
    forced = SamplingParams(temperature=0.0, logit_bias=((7, 100.0),))
    assert alone(llama, forced, plain) == [7] * NEW_TOKENS
    forbidden = SamplingParams(temperature=0.0, logit_bias=((greedy[0], -100.0),))
    assert greedy[0] not in alone(llama, forbidden, plain)


def test_a_stop_token_ends_the_answer_and_is_not_drawn_before_min_tokens(llama: Model) -> None:
    (prompt,) = rand_prompts(1, 9, seed=24)
    greedy = alone(llama, GREEDY, prompt)
    stop = greedy[4]
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        early = run.submit(prompt, NEW_TOKENS, stop_token_ids=(stop,))
        late = run.submit(prompt, NEW_TOKENS, stop_token_ids=(stop,), min_tokens=6)
        run.run()
    assert run.answers[early].tokens == greedy[: greedy.index(stop) + 1]
    assert run.answers[early].finish_reason == FinishReason.STOP
    tokens = run.answers[late].tokens
    assert stop not in tokens[:6]
    assert tokens[:4] == greedy[:4]
    scores = llama.oracle.logits([*prompt, *tokens])[len(prompt) - 1 : -1]
    for place, (row, token) in enumerate(zip(scores, tokens, strict=True)):
        allowed = row.clone()
        if place < 6:
            allowed[stop] = float("-inf")
        assert float(allowed.max() - allowed[token]) < TIE
