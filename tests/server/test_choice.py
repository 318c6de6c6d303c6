"""What a client sees does not depend on how the engine's deltas were merged on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tests.rigs.tokens import byte_names
from tests.tokenizer.conftest import trained
from tokenspeed.engine.answer import merged
from tokenspeed.plan import SamplingDefaults
from tokenspeed.request import Delta, FinishReason, TokenLogprobs
from tokenspeed.server.openai.choice import Choice
from tokenspeed.server.openai.errors import ApiError
from tokenspeed.server.openai.types import Limits, Options, read_completion
from tokenspeed.tokenizer.assets import TokenizerAssets
from tokenspeed.tokenizer.text import TextModel

TOKENIZER = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
TEXT = TextModel(TokenizerAssets(TOKENIZER, "<s>", "</s>", (1,), None, ""), ())
BYTES = [TOKENIZER.token_to_id(byte_names()[byte]) for byte in "ab🦙".encode()]
LIMITS = Limits(
    vocab_size=700,
    max_choices=4,
    defaults=SamplingDefaults(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=None
    ),
)


def options(**fields: Any) -> Options:
    return read_completion({"model": "m", "prompt": "x", **fields}, LIMITS).options


def seen(deltas: list[Delta], chosen: Options) -> tuple[Any, ...]:
    """Text, tokens with log-probabilities, counts and the end, as the client gets them."""
    choice = Choice(0, TEXT, chosen)
    text, scored = "", []
    for delta in deltas:
        piece = choice.push(delta)
        text += piece.text
        scored += [(entry.token, entry.begin) for entry in piece.scored]
        if piece.finish is not None:
            return text, scored, choice.completion_tokens, piece.finish, piece.stop_reason
    raise AssertionError("the answer never ended")


@given(
    tokens=st.lists(st.sampled_from([*BYTES, 1]), min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["ab", "ba", "🦙", "aab"]), max_size=3),
    include=st.booleans(),
    end=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    cuts=st.data(),
)
def test_merging_changes_nothing(
    tokens: list[int], stop: list[str], include: bool, end: FinishReason, cuts: st.DataObject
) -> None:
    deltas = [
        Delta(request_id=1, tokens=(token,), logprobs=(TokenLogprobs(token, -1.0),))
        for token in tokens[:-1]
    ]
    final = (TokenLogprobs(tokens[-1], -1.0),)
    deltas.append(Delta(request_id=1, tokens=(tokens[-1],), logprobs=final, finish_reason=end))
    groups: list[list[Delta]] = [[]]
    for delta in deltas:
        if groups[-1] and cuts.draw(st.booleans()):
            groups.append([])
        groups[-1].append(delta)
    chosen = options(
        stop=stop or None, logprobs=0, include_stop_str_in_output=include, max_tokens=50
    )
    assert seen([merged(group) for group in groups], chosen) == seen(deltas, chosen)


def test_an_end_token_is_no_text_but_counts() -> None:
    delta = Delta(request_id=1, tokens=(BYTES[0], 1), finish_reason=FinishReason.STOP)
    assert seen([delta], options()) == ("a", [], 2, "stop", None)


def test_min_tokens_hold_stop_strings_back() -> None:
    tokens = (BYTES[0], BYTES[1], BYTES[0], BYTES[1])
    delta = Delta(request_id=1, tokens=tokens, finish_reason=FinishReason.LENGTH)
    assert seen([delta], options(stop="b", min_tokens=3))[:1] == ("aba",)


def test_one_that_waited_too_long_is_told_to_come_again() -> None:
    choice = Choice(0, TEXT, options())
    with pytest.raises(ApiError) as raised:
        choice.push(Delta(request_id=1, finish_reason=FinishReason.EXPIRED))
    error = raised.value
    assert (error.status, error.code, error.headers()) == (
        429,
        "queue_timeout",
        {"retry-after": "1"},
    )


def test_one_that_found_a_full_queue_is_told_to_come_again() -> None:
    choice = Choice(0, TEXT, options())
    with pytest.raises(ApiError) as raised:
        why = "the queue is full: 3 requests wait already"
        choice.push(Delta(request_id=1, finish_reason=FinishReason.FULL, error=why))
    error = raised.value
    assert (error.status, error.code, error.headers()) == (429, "queue_full", {"retry-after": "1"})
    assert error.message == "The queue is full: 3 requests wait already. Try again shortly."


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.ABORT])
def test_an_engine_that_gave_up_is_an_error(reason: FinishReason) -> None:
    choice = Choice(0, TEXT, options())
    with pytest.raises(ApiError) as failed:
        choice.push(Delta(request_id=1, finish_reason=reason, error="CUDA error in /secret/x.cu"))
    assert failed.value.status == 503
    assert "secret" not in failed.value.message
