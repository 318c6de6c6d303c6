"""Tokens that a grammar forces are computed in one row: fewer steps, and equal answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rigs import rand_prompts
from tests.rigs.drive import GREEDY, Answer, Driver, driver
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model
from tokenspeed.grammar import lark
from tokenspeed.request import Constraints, FinishReason, SamplingParams, Thinking
from tokenspeed.tokenizer import TextModel, load_text_model

LONG_NAMES = {
    "type": "object",
    "properties": {
        "the_first_of_the_properties": {"type": "string", "maxLength": 8},
        "another_property_of_some_length": {"enum": ["a longer value", "b"]},
        "whether_it_is_the_last_property": {"const": {"it": "is", "indeed": [1, 2, 3]}},
    },
    "required": [
        "the_first_of_the_properties",
        "another_property_of_some_length",
        "whether_it_is_the_last_property",
    ],
    "additionalProperties": False,
}
JSON = Constraints(grammar=lark.write(lark.json_value(LONG_NAMES)))
REGEX = Constraints(grammar=lark.write(lark.pattern("[ab]{2} and then, of course, [0-9]{2}!?")))
HOT = SamplingParams(temperature=1.5, seed=3)
PENALISED = SamplingParams(
    temperature=0.9, seed=5, frequency_penalty=0.7, repetition_penalty=1.3, logit_bias=((7, 2.0),)
)
PROMPTS = rand_prompts(4, 20, seed=31)
NEVER = 0


@pytest.fixture(scope="module")
def text(llama: Model) -> TextModel:
    return load_text_model(llama.folder, tiny_plan(llama.folder))


@contextmanager
def engine(model: Model, **fields: object) -> Iterator[Driver]:
    plan = tiny_plan(model.folder, **{"max_running": 8, "max_model_len": 512, **fields})  # type: ignore[arg-type]
    with driver(plan, model.folder) as run:
        yield run


def submit(run: Driver, text: TextModel, constraints: Constraints | None, **fields: object) -> int:
    given = {"prompt": PROMPTS[0], "max_tokens": 250, "sampling": GREEDY, **fields}
    given.setdefault("stop_token_ids", tuple(text.eos_token_ids))
    return run.submit(**given, constraints=constraints)  # type: ignore[arg-type]


def alone(run: Driver, text: TextModel, constraints: Constraints, **fields: object) -> Answer:
    request = submit(run, text, constraints, **fields)
    run.run(check=True)
    return run.answers[request]


SCHEDULES = {
    "depth 0": {"in_flight_depth": 0},
    "depth 1": {"in_flight_depth": 1},
    "runs in pieces": {"in_flight_depth": 1, "max_step_tokens": 8, "max_mixed_tokens": 3},
    "no room": {"in_flight_depth": 1, "num_blocks": 26, "max_step_tokens": 24},
}


def batch(run: Driver, text: TextModel) -> list[Answer]:
    """Guided and free answers beside each other; the free ones begin when all can run."""
    guided = [
        submit(run, text, JSON),
        submit(run, text, JSON, prompt=PROMPTS[1], sampling=HOT),
        submit(run, text, REGEX, prompt=PROMPTS[2], sampling=HOT),
        submit(run, text, JSON, prompt=PROMPTS[3], sampling=PENALISED),
        submit(run, text, REGEX, sampling=PENALISED, prompt=PROMPTS[1]),
    ]
    while run.loop.only_waits:
        run.turn()
    free = [
        submit(run, text, None, prompt=PROMPTS[2], sampling=sampling, max_tokens=90)
        for sampling in (GREEDY, HOT)
    ]
    run.run(check=True)
    return [run.answers[request] for request in (*guided, *free)]


def test_answers_are_the_same_with_it_and_without(llama: Model, text: TextModel) -> None:
    with engine(llama, jump_ahead=NEVER) as run:
        expected = batch(run, text)
        assert run.loop.stats().forced_tokens == 0
    for name, schedule in SCHEDULES.items():
        with engine(llama, **schedule) as run:
            assert [a.tokens for a in batch(run, text)] == [a.tokens for a in expected], name
            stats = run.loop.stats()
        assert stats.forced_tokens > 100, name
        assert stats.generated_tokens == sum(len(answer.tokens) for answer in expected)
        assert (stats.preemptions > 0) == (name == "no room")
    value = json.loads(text.decode(expected[0].tokens[:-1]))
    assert value["whether_it_is_the_last_property"] == {"it": "is", "indeed": [1, 2, 3]}


@pytest.mark.parametrize("depth", [0, 1])
def test_forced_tokens_take_no_step_each(llama: Model, text: TextModel, depth: int) -> None:
    steps, answers = {}, []
    for jump_ahead in (NEVER, 1):
        with engine(llama, in_flight_depth=depth, jump_ahead=jump_ahead) as run:
            answers.append(alone(run, text, JSON))
            stats = run.loop.stats()
        steps[jump_ahead] = stats.steps
    said = len(answers[0].tokens)
    assert answers[0].tokens == answers[1].tokens
    assert steps[NEVER] >= said
    # At depth 1 the step in flight computes the first token of a run.
    assert steps[1] <= said - stats.forced_tokens + (0 if depth == 0 else stats.forced_tokens // 4)
    assert stats.forced_tokens > said / 2


def test_short_runs_take_a_step_each_where_the_plan_says_so(llama: Model, text: TextModel) -> None:
    """Between the letters two tokens are forced, before the end five."""
    few, many = text.encode_bare("zq"), text.encode_bare("zqzqz")
    assert (len(few), len(many)) == (2, 5)
    grammar = Constraints(grammar=lark.write(lark.pattern("[ab]zq[ab]zqzqz[ab]")))
    forced = {}
    for jump_ahead in (NEVER, 1, 3, 6):
        with engine(llama, jump_ahead=jump_ahead) as run:
            said = alone(run, text, grammar)
            assert len(said.tokens) == 3 + 2 + 5 + 1
            forced[jump_ahead] = run.loop.stats().forced_tokens
    assert forced == {NEVER: 0, 1: 7, 3: 5, 6: 0}


@pytest.mark.parametrize("depth", [0, 1])
def test_answers_end_among_forced_tokens(llama: Model, text: TextModel, depth: int) -> None:
    """By every max_tokens, and by a stop token that the grammar forces."""
    with engine(llama, in_flight_depth=depth, jump_ahead=NEVER) as run:
        whole = alone(run, text, REGEX).tokens
    with engine(llama, in_flight_depth=depth) as run:
        for most in range(1, len(whole)):
            cut = alone(run, text, REGEX, max_tokens=most)
            assert cut.tokens == whole[:most]
            assert cut.finish_reason is FinishReason.LENGTH
        (comma,) = text.encode_bare(",")
        place = whole.index(comma)
        ends = (*text.eos_token_ids, comma)
        ended = alone(run, text, REGEX, stop_token_ids=ends)
        held = alone(run, text, REGEX, stop_token_ids=ends, min_tokens=place + 3)
    assert ended.tokens == whole[: place + 1]
    assert ended.finish_reason is FinishReason.STOP
    assert held.tokens == ended.tokens, "min_tokens cannot hold back what is the only way on"


def test_log_probabilities_are_those_of_sampled_tokens(llama: Model, text: TextModel) -> None:
    """Who wants them gets the model's own of every token, and so nothing is skipped."""
    scored = SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=0)
    with engine(llama) as run:
        plain = alone(run, text, REGEX)
        forced = run.loop.stats().forced_tokens
        assert forced > 0
        answer = alone(run, text, REGEX, sampling=scored)
        assert run.loop.stats().forced_tokens == forced
    assert answer.tokens == plain.tokens
    scores = llama.oracle.logits([*PROMPTS[0], *answer.tokens])[len(PROMPTS[0]) - 1 : -1]
    assert len(answer.logprobs) == len(answer.tokens)
    for row, entry in zip(scores.log_softmax(-1), answer.logprobs, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)


@pytest.mark.parametrize(("budget", "depth"), [(0, 0), (5, 0), (5, 1)])
def test_the_end_of_a_thought_is_forced_and_then_the_grammar(
    llama: Model, text: TextModel, budget: int, depth: int
) -> None:
    closing = tuple(text.encode_bare("</think>"))
    thinking = Thinking(
        begin="<think>", end="</think>", opened=True, max_tokens=budget, closing=closing
    )
    answer = lark.row(lark.text_until("</think>", "thought"), lark.json_value(LONG_NAMES))
    constraints = Constraints(grammar=lark.write(answer), thinking=thinking)
    answers = []
    for jump_ahead in (NEVER, 1):
        with engine(llama, in_flight_depth=depth, jump_ahead=jump_ahead) as run:
            answers.append(alone(run, text, constraints).tokens)
            stats = run.loop.stats()
    assert answers[0] == answers[1]
    assert stats.forced_tokens > len(answers[0]) / 2
    thought, _, value = text.decode(answers[1][:-1]).partition("</think>")
    assert list(json.loads(value)) == LONG_NAMES["required"]
    assert bool(thought) == bool(budget)


def test_the_next_turn_finds_forced_tokens(llama: Model, text: TextModel) -> None:
    with engine(llama, block_size=4) as run:
        said = alone(run, text, JSON).tokens
        following = submit(run, text, None, prompt=[*PROMPTS[0], *said, 9], max_tokens=1)
        run.run(check=True)
    assert run.answers[following].cached_tokens == (len(PROMPTS[0]) + len(said) - 1) // 4 * 4


def test_who_leaves_among_forced_tokens_leaves_nothing_behind(
    llama: Model, text: TextModel
) -> None:
    """At every turn of an answer, and its slot serves the next as if nothing had been."""
    with engine(llama, in_flight_depth=1, max_running=1) as run:
        expected = alone(run, text, JSON, sampling=PENALISED).tokens
        for turns in range(1, 12):
            gone = submit(run, text, JSON, sampling=PENALISED)
            while run.loop.only_waits:
                run.turn()
            for _ in range(turns):
                run.turn(check=True)
            run.abort(gone)
            run.run(check=True)
            assert expected[: len(run.answers[gone].tokens)] == run.answers[gone].tokens
        assert alone(run, text, JSON, sampling=PENALISED).tokens == expected


def test_a_run_longer_than_the_answer_may_be_ends_it(llama: Model, text: TextModel) -> None:
    with engine(llama) as run:
        long = Constraints(grammar=lark.write(lark.pattern("(zq){300}")))
        answer = alone(run, text, long, max_tokens=201)
        assert run.loop.stats().steps == 1
    assert text.decode(answer.tokens) == "zq" * 100 + "z"
    assert answer.finish_reason is FinishReason.LENGTH
