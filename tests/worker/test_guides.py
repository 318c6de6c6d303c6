"""Grammars, reasoning budgets and min_tokens in the loop: whatever the schedule does, equal answers
that keep the rules, and neighbours who notice nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.rigs import rand_prompts
from tests.rigs.drive import GREEDY, Answer, Driver, driver
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model
from tokenspeed.grammar import lark
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.plan import Plan
from tokenspeed.request import Constraints, FinishReason, Request, SamplingParams, Thinking
from tokenspeed.tokenizer import TextModel, load_text_model
from tokenspeed.worker import loop
from tokenspeed.worker.guides import Guides

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["red", "green"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
JSON = Constraints(grammar=lark.write(lark.json_value(SCHEMA)))
REGEX = Constraints(grammar=lark.write(lark.pattern("[a-f]{4,9}-[0-9]{2}")))
HOT = SamplingParams(temperature=1.5, seed=3)
PROMPTS = rand_prompts(4, 20, seed=31)


@pytest.fixture(scope="module")
def text(llama: Model) -> TextModel:
    return load_text_model(llama.folder, tiny_plan(llama.folder))


def submit(run: Driver, text: TextModel, constraints: Constraints | None, **fields: object) -> int:
    given = {"prompt": PROMPTS[0], "max_tokens": 120, "sampling": HOT, **fields}
    ends = tuple(text.eos_token_ids)
    return run.submit(**given, stop_token_ids=ends, constraints=constraints)  # type: ignore[arg-type]


def said(text: TextModel, answer: Answer) -> str:
    assert answer.finish_reason is FinishReason.STOP, answer
    return text.decode(answer.tokens[:-1])


PLANS = {
    "depth 0": {"in_flight_depth": 0},
    "depth 1": {"in_flight_depth": 1},
    "chunks of 8": {"in_flight_depth": 1, "max_step_tokens": 8},
    "no room": {"in_flight_depth": 1, "num_blocks": 10, "max_step_tokens": 16},
}


def plans(model: Model) -> Iterator[tuple[str, Plan]]:
    for name, fields in PLANS.items():
        yield name, tiny_plan(model.folder, **{"max_running": 6, "max_model_len": 256, **fields})


def test_answers_keep_their_grammar_and_equal_each_other_in_every_schedule(
    llama: Model, text: TextModel
) -> None:
    seen: dict[str, list[tuple[int, ...]]] = {}
    preemptions = {}
    for name, plan in plans(llama):
        with driver(plan, llama.folder) as run:
            guided = [
                submit(run, text, JSON),
                submit(run, text, REGEX, prompt=PROMPTS[2]),
                submit(run, text, JSON, prompt=PROMPTS[3], sampling=GREEDY),
            ]
            while run.loop.only_waits:
                run.turn()
            free = [
                run.submit(PROMPTS[1], 80, HOT),
                run.submit(PROMPTS[3], 80, GREEDY),
            ]
            run.run(check=True)
            ids = [guided[0], free[0], guided[1], guided[2], free[1]]
            preemptions[name] = run.loop.stats().preemptions
            answers = [run.answers[i] for i in ids]
        for place in (0, 3):
            value = json.loads(said(text, answers[place]))
            assert list(value) == ["name", "kind", "sizes"]
        assert re.fullmatch("[a-f]{4,9}-[0-9]{2}", said(text, answers[2]))
        seen[name] = [tuple(answer.tokens) for answer in answers]
    assert preemptions["no room"] > 0
    first = seen["depth 0"]
    assert all(tokens == first for tokens in seen.values()), seen
    with driver(tiny_plan(llama.folder, max_model_len=256), llama.folder) as run:
        alone = run.submit(PROMPTS[1], 80, HOT)
        run.run()
    assert tuple(run.answers[alone].tokens) == first[1]


def test_a_grammar_costs_nobody_a_step(llama: Model, text: TextModel) -> None:
    """Every step computes a token of both, though each is launched before the last one is known."""
    long = Constraints(grammar=lark.write(lark.pattern("[ab]{60}")))
    with driver(tiny_plan(llama.folder, in_flight_depth=1), llama.folder) as run:
        held = submit(run, text, long, max_tokens=60)
        while run.loop.only_waits:
            run.turn()
        free = run.submit(PROMPTS[1], 60, HOT)
        run.run()
    assert len(run.answers[held].tokens) > 30
    assert len(run.answers[free].tokens) == 60
    assert run.loop.stats().steps <= 63


def test_the_vocabulary_can_be_loaded_before_it_is_wanted(llama: Model, text: TextModel) -> None:
    vocabulary = Vocabulary(text, 512)
    loads = []
    guides = Guides(lambda: loads.append(1) or vocabulary, 512, 1)  # type: ignore[func-returns-value]
    assert guides.warm().result() is vocabulary
    request = Request(request_id=1, tokens=b"\0" * 4, max_tokens=1, sampling=HOT, constraints=REGEX)
    guide = guides.of(request)
    assert isinstance(guide, Future)
    assert guide.result().matcher is not None
    assert loads == [1]
    guides.close()


def test_a_queue_of_grammars_is_full_for_grammars_only(
    llama: Model, text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_COMPILING", 0)
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        held, free = submit(run, text, JSON), run.submit(PROMPTS[1], 4)
        run.run()
    assert run.answers[held].finish_reason == FinishReason.FULL
    assert "wait for their grammar" in run.answers[held].error
    llama.oracle.check_greedy(PROMPTS[1], run.answers[free].tokens)


@pytest.mark.parametrize("constraints", [None, REGEX])
def test_an_end_that_the_model_does_not_have_holds_nobody_up(
    llama: Model, constraints: Constraints | None
) -> None:
    """A tokenizer may name tokens beyond the logits."""
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        ids = [
            run.submit(PROMPTS[0], 6, HOT, (2**20,), min_tokens=2, constraints=constraints),
            run.submit(PROMPTS[1], 6),
        ]
        run.run()
    assert [len(run.answers[request_id].tokens) for request_id in ids] == [6, 6]


def test_the_prefix_cache_changes_nothing(llama: Model, text: TextModel) -> None:
    with driver(tiny_plan(llama.folder, max_model_len=256), llama.folder) as run:
        cold = submit(run, text, JSON)
        run.run()
        warm = submit(run, text, JSON)
        run.run()
    assert run.answers[warm].cached_tokens
    assert run.answers[cold].tokens == run.answers[warm].tokens


def test_grammars_leave_log_probabilities_and_bias_what_they_are(
    llama: Model, text: TextModel
) -> None:
    """The former are the model's own; the latter cannot bring in what the grammar forbids."""
    grammar = Constraints(grammar=lark.write(lark.pattern("[0-9]{6}")))
    (letter,), (nine,) = text.encode_bare("x"), text.encode_bare("9")
    biased = SamplingParams(temperature=0.0, logit_bias=((letter, 100.0), (nine, 50.0)), logprobs=2)
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        request = submit(run, text, grammar, sampling=biased)
        run.run()
    answer = run.answers[request]
    assert said(text, answer) == "999999"
    scores = llama.oracle.logits([*PROMPTS[0], *answer.tokens])[len(PROMPTS[0]) - 1 : -1]
    for row, entry in zip(scores.log_softmax(-1), answer.logprobs, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
        assert [token for token, _ in entry.top] == row.topk(2).indices.tolist()


def test_penalties_count_under_a_grammar(llama: Model, text: TextModel) -> None:
    grammar = Constraints(grammar=lark.write(lark.pattern("[ab]{8}")))
    pushed = {"temperature": 0.0, "logit_bias": tuple((t, 30.0) for t in text.encode_bare("a"))}
    counted = SamplingParams(**pushed, frequency_penalty=2.0, repetition_penalty=1.0)
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        ids = [submit(run, text, grammar, sampling=s) for s in (SamplingParams(**pushed), counted)]
        run.run()
    plain, penalised = (said(text, run.answers[i]) for i in ids)
    assert plain == "aaaaaaaa"
    assert penalised.startswith("a")


def test_min_tokens_holds_back_the_end_as_long_as_the_grammar_can_go_on(
    llama: Model, text: TextModel
) -> None:
    grammar = Constraints(grammar=lark.write(lark.pattern("(x|y)*")))
    bounded = Constraints(grammar=lark.write(lark.pattern("(x|y){0,3}")))
    eager = SamplingParams(temperature=1.0, logit_bias=tuple((e, 90.0) for e in text.eos_token_ids))
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        long = submit(run, text, grammar, sampling=eager, min_tokens=9)
        short = submit(run, text, bounded, sampling=eager, min_tokens=9)
        run.run()
    assert len(run.answers[long].tokens) == 10
    assert len(said(text, run.answers[short])) == 3


def test_only_the_allowed_tokens_are_drawn(llama: Model, text: TextModel) -> None:
    allowed = tuple(range(50, 60))
    with driver(tiny_plan(llama.folder, in_flight_depth=1), llama.folder) as run:
        request = submit(run, text, Constraints(allowed_token_ids=allowed), max_tokens=40)
        run.run()
    assert set(run.answers[request].tokens) <= set(allowed)
    assert len(set(run.answers[request].tokens)) > 3


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thoughts_end_at_their_budget(
    llama: Model, text: TextModel, budget: int, depth: int
) -> None:
    closing = tuple(text.encode_bare("</think>"))
    thinking = Thinking(
        begin="<think>", end="</think>", opened=True, max_tokens=budget, closing=closing
    )
    with driver(tiny_plan(llama.folder, in_flight_depth=depth), llama.folder) as run:
        free = submit(run, text, None, sampling=GREEDY, max_tokens=40)
        held = submit(run, text, Constraints(thinking=thinking), sampling=GREEDY, max_tokens=40)
        run.run()
    free_tokens, tokens = run.answers[free].tokens, run.answers[held].tokens
    begin = tokens.index(closing[0])
    assert tokens[begin : begin + len(closing)] == list(closing)
    assert tokens[:begin] == free_tokens[:begin]
    # At most three more to finish a character.
    assert budget <= begin <= budget + 3


def test_a_bad_grammar_ends_its_request_alone(llama: Model, text: TextModel) -> None:
    with driver(tiny_plan(llama.folder, in_flight_depth=1), llama.folder) as run:
        bad = submit(run, text, Constraints(grammar="start: nothing"))
        nobody = submit(run, text, Constraints(grammar='start: start "a"'))
        good = submit(run, text, REGEX)
        run.run()
    assert run.answers[bad].finish_reason is FinishReason.INVALID
    assert "unknown name" in run.answers[bad].error
    assert run.answers[nobody].error == "no text satisfies it"
    assert re.fullmatch("[a-f]{4,9}-[0-9]{2}", said(text, run.answers[good]))


def test_requests_can_leave_while_their_grammar_compiles(llama: Model, text: TextModel) -> None:
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        gone = submit(run, text, JSON)
        run.abort(gone)
        assert not run.loop.busy
        assert run.answers[gone].finish_reason is FinishReason.ABORT
        submit(run, text, JSON)
        assert run.loop.abort_front("test") == 1
        assert not run.loop.busy
        last = submit(run, text, JSON)
        for _, delta in run.loop.end_all(FinishReason.ABORT):
            run.answers[delta.request_id].take(delta)
        assert run.answers[last].finish_reason is FinishReason.ABORT
        assert not run.loop.busy
