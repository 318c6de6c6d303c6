"""Log-probabilities of answers and prompts, against the oracle (cases C11 and C29)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.rigs import rand_prompts
from tests.rigs.drive import driver
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model
from tokenspeed.request import FinishReason, SamplingParams, TokenLogprobs

TOLERANCE = 1e-3
PROMPT = rand_prompts(1, 100, seed=31)[0]
SCORED = SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=5)


def check_entries(
    entries: Sequence[TokenLogprobs | None], rows: torch.Tensor, tokens: Sequence[int], top: int
) -> None:
    """Entry i is of tokens[i] under the distribution in row i."""
    assert len(entries) == len(tokens) == len(rows)
    for entry, row, token in zip(entries, rows, tokens, strict=True):
        assert entry is not None
        assert entry.token == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=TOLERANCE)
        assert len(entry.top) == top
        best = row.topk(top).values.tolist()
        for (other, logprob), expected in zip(entry.top, best, strict=True):
            assert logprob == pytest.approx(expected, abs=TOLERANCE)
            assert logprob == pytest.approx(float(row[other]), abs=TOLERANCE)


@pytest.mark.parametrize("depth", [0, 1])
def test_logprobs_of_drawn_tokens(llama: Model, depth: int) -> None:
    """Different numbers of alternatives side by side; values are before penalties and bias."""
    prompts = rand_prompts(4, 30, seed=32)
    wanted = (
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(temperature=0.0, logprobs=5, repetition_penalty=1.5),
        SamplingParams(temperature=1.0, seed=1, logprobs=20, logit_bias=((3, 2.0),)),
        SamplingParams(temperature=0.0),
    )
    plan = tiny_plan(llama.folder, in_flight_depth=depth)
    with driver(plan, llama.folder) as run:
        ids = [
            run.submit(prompt, 12, params) for prompt, params in zip(prompts, wanted, strict=True)
        ]
        run.run()
    for request_id, prompt, params in zip(ids, prompts, wanted, strict=True):
        answer = run.answers[request_id]
        if params.logprobs is None:
            assert answer.logprobs == []
            continue
        rows = llama.oracle.logprobs([*prompt, *answer.tokens])[len(prompt) - 1 : -1]
        check_entries(answer.logprobs, rows, answer.tokens, params.logprobs)


@pytest.mark.parametrize("chunk", [1, 7, 16, 99, 100, 101])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("depth", [0, 1])
def test_prompt_logprobs_whatever_the_chunks(
    llama: Model, chunk: int, block_size: int, depth: int
) -> None:
    plan = tiny_plan(
        llama.folder,
        max_running=min(4, chunk),
        max_step_tokens=chunk,
        block_size=block_size,
        num_blocks=600,
        in_flight_depth=depth,
    )
    with driver(plan, llama.folder) as run:
        others = [run.submit(prompt, 30) for prompt in rand_prompts(3, 5, seed=33)]
        if chunk > 1:
            while not all(run.answers[other].tokens for other in others):
                run.turn()
        scored = run.submit(PROMPT, 4, SCORED)
        run.run()
        again = run.submit(PROMPT, 1, SCORED)
        run.run()
    rows = llama.oracle.logprobs(PROMPT)[:-1]
    for request_id in (scored, again):
        entries = run.answers[request_id].prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        check_entries(entries[1:], rows, PROMPT[1:], top=5)
        assert run.answers[request_id].cached_tokens == 0
    llama.oracle.check_greedy(PROMPT, run.answers[scored].tokens)


def test_prompt_logprobs_survive_preemption(llama: Model) -> None:
    plan = tiny_plan(llama.folder, num_blocks=13, block_size=7, max_step_tokens=17)
    prompts = rand_prompts(6, 14, seed=34)
    with driver(plan, llama.folder) as run:
        ids = [run.submit(prompt, 16, SCORED) for prompt in prompts]
        run.run(check=True)
        assert run.loop.stats().preemptions > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        answer = run.answers[request_id]
        rows = llama.oracle.logprobs([*prompt, *answer.tokens])
        assert answer.prompt_logprobs is not None
        check_entries(answer.prompt_logprobs[1:], rows[: len(prompt) - 1], prompt[1:], top=5)
        check_entries(answer.logprobs, rows[len(prompt) - 1 : -1], answer.tokens, top=3)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_scoring_without_new_tokens(llama: Model, length: int) -> None:
    """max_tokens 0 computes the prompt, gives its scores and ends."""
    with driver(tiny_plan(llama.folder, max_step_tokens=16), llama.folder) as run:
        (answer,) = run.generate([PROMPT[:length]], 0, SCORED)
    assert (answer.tokens, answer.logprobs) == ([], [])
    assert answer.finish_reason == FinishReason.LENGTH
    assert answer.prompt_logprobs is not None
    rows = llama.oracle.logprobs(PROMPT[:length])[:-1]
    check_entries(answer.prompt_logprobs[1:], rows, PROMPT[1:length], top=5)


def test_scores_of_a_prompt_longer_than_one_piece(llama: Model) -> None:
    """More rows in one chunk than are scored at once."""
    (prompt,) = rand_prompts(1, 600, seed=35)
    plan = tiny_plan(llama.folder, max_step_tokens=1024)
    with driver(plan, llama.folder) as run:
        (answer,) = run.generate([prompt], 1, SCORED)
    assert answer.prompt_logprobs is not None
    rows = llama.oracle.logprobs(prompt)[:-1]
    check_entries(answer.prompt_logprobs[1:], rows, prompt[1:], top=5)
