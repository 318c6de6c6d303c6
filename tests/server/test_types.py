"""Whatever JSON comes, it is understood or refused with 400; and what is understood is in range."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenspeed.plan import SamplingDefaults
from tokenspeed.server.anthropic.types import read_request
from tokenspeed.server.openai import messages
from tokenspeed.server.openai.errors import ApiError
from tokenspeed.server.openai.fields import Fields
from tokenspeed.server.openai.responses_types import read_responses
from tokenspeed.server.openai.types import Limits, Options, read_chat, read_completion

LIMITS = Limits(
    vocab_size=512,
    max_choices=8,
    defaults=SamplingDefaults(
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, max_tokens=None
    ),
)
NAMES = [
    "model",
    "messages",
    "prompt",
    "n",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "echo",
    "best_of",
    "suffix",
    "tools",
    "tool_choice",
    "response_format",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "priority",
    "cache_salt",
    "ignore_eos",
    "return_token_ids",
    "chat_template_kwargs",
    "user",
    "chat_template",
    "include_stop_str_in_output",
    "unknown",
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 600)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["m", "auto", "text", "user", "assistant", "5", "511", "512", "-1"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "5", "512", "include_usage", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
bodies = st.dictionaries(st.sampled_from(NAMES), values, max_size=8)
VALID: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
VALID_TEXT: dict[str, Any] = {"model": "m", "prompt": "x"}


def check(options: Options) -> None:
    sampling = options.sampling
    assert options.model
    assert 1 <= options.n <= 8
    assert 0 <= sampling.temperature <= 100 and math.isfinite(sampling.temperature)
    assert 0 < sampling.top_p <= 1 and 0 <= sampling.min_p <= 1 and sampling.top_k >= 0
    assert 0 <= sampling.seed < 2**63
    assert sampling.repetition_penalty > 0
    assert all(0 <= token < 512 and abs(bias) <= 100 for token, bias in sampling.logit_bias)
    assert sampling.logprobs is None or 0 <= sampling.logprobs <= 20
    assert all(0 <= token < 512 for token in options.stop_token_ids)
    assert len(options.stop) <= 64 and all(options.stop)
    seeds = {options.sampling_of(sibling).seed for sibling in range(options.n)}
    assert len(seeds) == options.n and all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("read", "start"),
    [
        (read_chat, {}),
        (read_chat, VALID),
        (read_completion, {}),
        (read_completion, VALID_TEXT),
    ],
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(body=bodies)
def test_any_body_is_understood_or_refused(read: Any, start: Any, body: dict[str, Any]) -> None:
    try:
        request = read({**start, **body}, LIMITS)
    except ApiError as error:
        assert error.status == 400
        assert error.message and error.code
        assert error.param is None or error.param.split(".")[0].split("[")[0] in NAMES
    else:
        check(request.options)


@given(body=values)
def test_a_body_of_any_type(body: Any) -> None:
    for read in (read_chat, read_completion):
        try:
            read(body, LIMITS)
        except ApiError as error:
            assert error.status == 400


def test_what_is_left_out_comes_from_the_plan() -> None:
    sampling = read_completion(VALID_TEXT, LIMITS).options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 40)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.05, 1.1)
    given_zero = {"temperature": 0, "top_k": 0, "min_p": 0, "top_p": 1}
    sampling = read_completion({**VALID_TEXT, **given_zero}, LIMITS).options.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0, 0, 0)
    assert sampling.top_p == 1


@pytest.mark.parametrize("huge", [10**400, -(10**400), float("nan"), float("inf")])
def test_numbers_beyond_any_float_are_out_of_range(huge: float) -> None:
    """JSON has integers of any length."""
    for name in ("temperature", "top_p", "presence_penalty", "max_tokens", "seed"):
        with pytest.raises(ApiError, match=f"'{name}' must be a") as caught:
            read_chat({**VALID, name: huge}, LIMITS)
        assert caught.value.status == 400
    with pytest.raises(ApiError, match=r"'logit_bias\.5' must be a number"):
        read_chat({**VALID, "logit_bias": {"5": huge}}, LIMITS)


def test_numbers_that_float32_cannot_divide_by_reach_no_device() -> None:
    """1e-40 is above 0, and its reciprocal infinite."""
    for tiny in (1e-300, 1e-40, 1e-30):
        fields = {"temperature": tiny, "top_p": tiny}
        sampling = read_chat({**VALID, **fields}, LIMITS).options.sampling
        assert (sampling.temperature, sampling.top_p) == (0.0, 1e-9)
        with pytest.raises(ApiError, match=r"'repetition_penalty' must be a number from 0\.01"):
            read_chat({**VALID, "repetition_penalty": tiny}, LIMITS)
    least = {"temperature": 1e-5, "top_p": 1e-9, "repetition_penalty": 0.01}
    sampling = read_chat({**VALID, **least}, LIMITS).options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (1e-5, 1e-9, 0.01)
    cold = replace(LIMITS, defaults=replace(LIMITS.defaults, temperature=1e-40, top_p=1e-40))
    sampling = read_chat(VALID, cold).options.sampling
    assert (sampling.temperature, sampling.top_p) == (0.0, 1e-9)


@pytest.mark.parametrize("key", ["01", "00", "", "-1", "+1", " 1", "1_0", "\u0661", "512"])
def test_keys_of_biases_are_spelt_in_one_way(key: str) -> None:
    """Else one token has two of them."""
    with pytest.raises(ApiError, match="keys are token ids from 0 to 511"):
        read_chat({**VALID, "logit_bias": {"1": 2, key: 1}}, LIMITS)
    biases = read_chat({**VALID, "logit_bias": {"0": 1, "511": 2}}, LIMITS)
    assert biases.options.sampling.logit_bias == ((0, 1.0), (511, 2.0))


def test_stops_are_as_many_as_evaluations_use() -> None:
    stops = [f"stop {number}" for number in range(64)]
    assert read_chat({**VALID, "stop": stops}, LIMITS).options.stop == tuple(stops)
    with pytest.raises(ApiError, match="up to 64 strings"):
        read_chat({**VALID, "stop": [*stops, "one more"]}, LIMITS)


def test_what_is_no_object_is_named_and_shown() -> None:
    with pytest.raises(ApiError) as caught:
        read_chat({**VALID, "response_format": "json"}, LIMITS)
    assert caught.value.message == "'response_format' must be a JSON object, not 'json'."
    with pytest.raises(ApiError) as caught:
        read_chat([], LIMITS)
    assert caught.value.message == "The body must be a JSON object, not []."


def test_variables_that_the_template_does_not_ask_for_are_listed() -> None:
    limits = replace(LIMITS, template_reads=frozenset({"enable_thinking"}))
    given = {"enable_thinking": False, "mood": "good"}
    read = read_chat({**VALID, "chat_template_kwargs": given}, limits)
    assert "chat_template_kwargs.mood" in read.ignored
    assert "chat_template_kwargs.enable_thinking" not in read.ignored
    assert read.template_variables == given


@pytest.mark.parametrize("read", [read_chat, read_request])
@pytest.mark.parametrize("kind", ["enabled", "adaptive", "auto", "between_tools", "disabled"])
def test_thinking_that_no_model_does_is_listed(read: Any, kind: str) -> None:
    """Not to think is what such a model does."""
    body = {**VALID, "max_tokens": 1, "thinking": {"type": kind}}
    off = kind in ("disabled", "between_tools")
    assert read(body, LIMITS).ignored == (() if off else ("thinking.type",))
    for thinks in ({"reasons": True}, {"template_reads": frozenset({"thinking"})}):
        assert read(body, replace(LIMITS, **thinks)).ignored == ()


@pytest.mark.parametrize(
    ("fields", "variables", "budget"),
    [
        ({}, {}, None),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}, 0),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, {"enable_thinking": True}, 7),
        ({"enable_thinking": False}, {"enable_thinking": False}, 0),
        ({"enable_thinking": True}, {"enable_thinking": True}, None),
        ({"enable_thinking": True, "thinking_token_budget": 9}, {"enable_thinking": True}, 9),
        ({"reasoning_effort": "low", "enable_thinking": True}, {"enable_thinking": True}, 2048),
        (
            {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True},
            0,
        ),
    ],
)
def test_chats_are_told_to_think_as_other_vendors_do(
    fields: dict[str, Any], variables: dict[str, Any], budget: int | None
) -> None:
    limits = replace(LIMITS, reasons=True, template_reads=frozenset({"enable_thinking"}))
    read = read_chat({**VALID, **fields}, limits)
    assert (read.template_variables, read.options.budget, read.ignored) == (variables, budget, ())


def test_a_switch_that_nothing_reads_is_listed() -> None:
    read = read_chat({**VALID, "enable_thinking": True}, LIMITS)
    assert (read.template_variables, read.options.budget) == ({}, None)
    assert read.ignored == ("enable_thinking",)
    assert read_chat({**VALID, "enable_thinking": False}, LIMITS).ignored == ()


TALK: dict[str, Any] = {**VALID, "max_tokens": 1}
ITEMS: dict[str, Any] = {"model": "m", "input": "x"}
# What each endpoint cannot take without another answer than was asked for, and a word that the
# refusal must say beside its name.
LOST: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    *((read_chat, VALID, {name: 1.1}, "not supported") for name in ("repeat_penalty", "top_a")),
    (read_chat, VALID, {"moderation": {"model": "m"}}, "not supported"),
    (read_chat, VALID, {"grammar": 'root ::= "a"'}, "not supported"),
    (read_chat, VALID, {"best_of": 2}, "not supported"),
    *((read_chat, VALID, {name: "x"}, "'messages'") for name in ("prompt", "input", "system")),
    (read_chat, VALID, {"max_output_tokens": 5}, "'max_completion_tokens'"),
    (read_chat, VALID, {"stop_sequences": ["a"]}, "'stop'"),
    (read_completion, VALID_TEXT, {"messages": []}, "'prompt'"),
    (read_completion, VALID_TEXT, {"stop_sequences": ["a"]}, "'stop'"),
    *((read_responses, ITEMS, {name: 5}, "'max_output_tokens'")
      for name in ("max_tokens", "max_completion_tokens")),
    (read_responses, ITEMS, {"messages": []}, "'input'"),
    (read_responses, ITEMS, {"response_format": {"type": "json_object"}}, "'text.format'"),
    (read_responses, ITEMS, {"reasoning_effort": "low"}, "'reasoning.effort'"),
    *((read_responses, ITEMS, {name: value}, "not supported")
      for name, value in (("n", 2), ("logprobs", True), ("regex", "a"), ("moderation", {}))),
    *((read_request, TALK, {"thread": thread}, "send it whole") for thread in (
        {"type": "create"}, {"type": "continue", "previous_message_id": "m"})),
    (read_request, TALK, {"compaction": {}}, "not supported"),
    (read_request, TALK, {"stop": "a"}, "'stop_sequences'"),
    (read_request, TALK, {"max_completion_tokens": 5}, "'max_tokens'"),
    (read_request, TALK, {"response_format": {}}, "'output_config.format'"),
    (read_request, TALK, {"n": 2}, "not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "start", "fields", "word"), LOST)
def test_what_would_change_the_answer_elsewhere_is_refused_by_name(
    read: Any, start: dict[str, Any], fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(ApiError) as refused:
        read({**start, **fields}, LIMITS)
    (name,) = fields
    assert (refused.value.status, refused.value.param) == (400, name)
    assert repr(name) in refused.value.message and word in refused.value.message
    assert read({**start, name: None}, LIMITS).ignored == ()


@pytest.mark.parametrize("read", [read_chat, read_completion, read_responses, read_request])
def test_values_that_change_nothing_are_not_refused(read: Any) -> None:
    start = {read_completion: VALID_TEXT, read_responses: ITEMS, read_request: TALK}.get(
        read, VALID
    )
    off = ("top_a", "mirostat", "dry_multiplier", "xtc_probability", "no_repeat_ngram_size")
    one = ("repeat_penalty", "typical_p", "tfs_z", "n", "best_of")
    neutral = dict.fromkeys(off, 0.0) | dict.fromkeys(one, 1)
    neutral |= {"n_predict": -1, "grammar": "", "logits_processors": []}
    assert set(read({**start, **neutral}, LIMITS).ignored) <= {"best_of"}


@pytest.mark.parametrize(("read", "start"), [(read_responses, ITEMS), (read_request, TALK)])
def test_every_endpoint_samples_as_chats_do(read: Any, start: dict[str, Any]) -> None:
    shares = dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty"), 0.5)
    counts = dict.fromkeys(("top_k", "seed", "min_tokens", "priority", "repetition_penalty"), 3)
    fields = shares | counts | {"frequency_penalty": -1, "logit_bias": {"5": 2}}
    fields |= {"stop_token_ids": [3], "allowed_token_ids": [4, 5], "cache_salt": "s"}
    fields |= {"include_stop_str_in_output": True}
    found, chat = read({**start, **fields}, LIMITS), read_chat({**VALID, **fields}, LIMITS)
    assert found.ignored == ()
    assert replace(found.options, max_tokens=None) == chat.options


def test_unseeded_requests_differ() -> None:
    seeds = {read_completion(VALID_TEXT, LIMITS).options.sampling.seed for _ in range(10)}
    assert len(seeds) == 10


def test_fields_of_messages_are_named_once() -> None:
    message = {"role": "user", "content": "x", "id": 1}
    request = read_chat({**VALID, "messages": [message] * 50}, LIMITS)
    assert request.ignored == ("messages.id",)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x", 1]),
            "content": st.sampled_from(["", "text", None, ["x"], [{"type": "text", "text": "t"}]]),
            "tool_call_id": st.sampled_from(["", "id", "i" * 300, None, 1]),
            "name": st.sampled_from(["n", None]),
            "audio": st.sampled_from([None, {}]),
            "unknown": st.sampled_from([None, 1]),
        },
    )
)
def test_plain_messages_are_what_reading_them_gives(entry: dict[str, Any]) -> None:
    if messages._is_plain(entry):
        fields = Fields(entry, "messages[0]")
        assert messages._message(fields) == entry
        assert fields.unread() == []
