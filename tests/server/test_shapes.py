"""C10, C11, C12, C15, C16: what requests may say, and what answers look like."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from tests.rigs import Oracle, rand_prompts
from tests.server.conftest import canary, go
from tests.server.live import LiveServer, joined

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello there"}]}
PROMPT = {"prompt": "Hello there"}
BODIES = {CHAT: HELLO, TEXT: PROMPT}

# ---- C10


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_c10_usage_in_streams(rand: LiveServer, path: str, n: int, options: Any) -> None:
    fields = {**BODIES[path], "n": n, "max_tokens": 5, "ignore_eos": True}
    events = rand.events(path, stream_options=options, **fields)
    _, whole, _ = rand.post(path, {"model": "tiny", "temperature": 0, **fields})
    asked = bool(options and options.get("include_usage"))
    usages = [event["usage"] for event in events if event.get("usage")]
    assert len(usages) == asked
    if asked:
        assert events[-1]["choices"] == []
        for usage in (usages[0], whole["usage"]):
            usage.pop("prompt_tokens_details")
        assert usages[0] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 5 * n
    for index in range(n):
        finishes = [
            choice["finish_reason"]
            for event in events
            for choice in event["choices"]
            if choice["index"] == index and choice["finish_reason"]
        ]
        assert finishes == ["length"]


def test_c10_usage_of_an_answer_that_ends_at_once(chain: LiveServer) -> None:
    events = chain.events(TEXT, prompt="nothing", stream_options={"include_usage": True})
    assert events[-1]["usage"]["completion_tokens"] == 1
    assert joined(events) == ""


def test_c10_options_without_stream(rand: LiveServer) -> None:
    body = {"model": "tiny", **PROMPT, "stream_options": {"include_usage": True}}
    status, answer, _ = rand.post(TEXT, body)
    assert status == 400
    assert answer["error"]["param"] == "stream_options"


def test_the_cached_tokens_are_always_told(rand: LiveServer) -> None:
    prompt = rand_prompts(1, 49, seed=77)[0]
    rand.complete(prompt, max_tokens=1)
    usage = rand.complete(prompt, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 48}


# ---- C11


def test_c11_scoring_a_prompt(rand: LiveServer, oracle: Oracle) -> None:
    fields = {"echo": True, "max_tokens": 0, "logprobs": 1}
    answer = rand.complete("abc def", return_token_ids=True, **fields)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc def", "length")
    assert answer["usage"]["completion_tokens"] == 0
    ids = choice["prompt_token_ids"]
    expected = oracle.logprobs(ids)
    values = choice["logprobs"]["token_logprobs"]
    assert values[0] is None and choice["logprobs"]["top_logprobs"][0] is None
    for place, token in enumerate(ids[1:], 1):
        assert values[place] == pytest.approx(float(expected[place - 1, token]), abs=1e-3)
    assert "".join(choice["logprobs"]["tokens"]) == "abc def"
    assert choice["logprobs"]["text_offset"][0] == 0
    events = rand.events(TEXT, prompt="abc def", **fields)
    assert joined(events) == "abc def"
    scores = [
        score for event in events for score in event["choices"][0]["logprobs"]["token_logprobs"]
    ]
    assert scores == pytest.approx(values, abs=1e-6)


def test_c11_echo_continues_with_the_answer(chain: LiveServer) -> None:
    answer = chain.complete("say " + go("hello"), echo=True, logprobs=0, max_tokens=2)
    (choice,) = answer["choices"]
    assert choice["text"] == "say <|go:hello|>Hello"
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[-2:] == [len("say <|go:hello|>"), len("say <|go:hello|>Hel")]


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True, 9223372036854775808])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c11_wrong_max_tokens(rand: LiveServer, path: str, value: Any) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        status, answer, _ = rand.post(path, {"model": "tiny", **BODIES[path], name: value})
        assert status == 400
        assert answer["error"]["param"] == "max_tokens" or answer["error"]["param"] == name
        assert answer["error"]["type"] == "invalid_request_error"


def test_c11_null_is_the_default(rand: LiveServer) -> None:
    answer = rand.complete("abc", max_tokens=None, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16
    answer = rand.chat("abc", max_tokens=None, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 512
    answer = rand.complete("abc", max_tokens=9, max_completion_tokens=3, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 3


# ---- C12

LIMIT = 512  # of the server's plan


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [LIMIT - 1, LIMIT, LIMIT + 1])
@pytest.mark.parametrize("max_tokens", [None, 1, 2, 1000])
def test_c12_context_overflow(
    rand: LiveServer, stream: bool, length: int, max_tokens: int | None
) -> None:
    prompt = rand_prompts(1, length, seed=1)[0]
    fields = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    fits = length + (max_tokens or 1) <= LIMIT
    if fits and stream:
        events = rand.events(TEXT, stream_options={"include_usage": True}, **fields)
        assert events[-1]["usage"]["completion_tokens"] == 1
        return
    status, answer, headers = rand.post(TEXT, {"model": "tiny", "stream": stream, **fields})
    assert headers["content-type"] == "application/json"
    if fits:
        assert answer["usage"]["completion_tokens"] == 1
        return
    assert status == 400
    error = answer["error"]
    assert error["code"] == "context_length_exceeded"
    for number in (LIMIT, length, max_tokens or 1):
        assert str(number) in error["message"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c12_as_text(rand: LiveServer, path: str) -> None:
    text = "engine " * 600
    body = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    status, answer, _ = rand.post(path, {"model": "tiny", "stream": True, **body})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


# ---- C15

BAD_BIASES: list[Any] = [
    {"-1": 1},
    {"512": 1},
    {"99999999999": 1},
    {"x": 1},
    {"5": 101},
    {"5": "1"},
    {"5": None, " 6": 1},
    {str(number): 1 for number in range(600)},
    [5],
]
BAD_PROMPTS: list[Any] = [
    [512],
    [-1],
    [2147483648],
    [1.5],
    [True],
    [],
    [[]],
    [[1], []],
    ["a", 1],
    5,
    {"text": "a"},
    None,
]


def test_c15_nothing_in_a_request_harms_another(rand: LiveServer, oracle: Oracle) -> None:
    """All the bad requests while a long one streams; that one ends as the oracle says."""
    prompt = rand_prompts(1, 20, seed=9)[0]
    streamed: list[Any] = []
    fields = {"max_tokens": 200, "ignore_eos": True, "return_token_ids": True}
    reader = threading.Thread(
        target=lambda: streamed.extend(rand.events(TEXT, prompt=prompt, **fields))
    )
    reader.start()
    for bias in BAD_BIASES:
        status, answer, _ = rand.post(TEXT, {"model": "tiny", **PROMPT, "logit_bias": bias})
        assert (status, answer["error"]["param"].split(".")[0]) == (400, "logit_bias"), bias
    for bad in BAD_PROMPTS:
        status, answer, _ = rand.post(TEXT, {"model": "tiny", "prompt": bad})
        assert (status, answer["error"]["param"]) == (400, "prompt"), bad
    for messages in ([], {}, "hi", [1], [{"role": "wizard", "content": "x"}]):
        status, _, _ = rand.post(CHAT, {"model": "tiny", "messages": messages})
        assert status == 400
    nan = b'{"model": "tiny", "prompt": "x", "temperature": NaN}'
    assert rand.post(TEXT, nan)[0] == 400
    reader.join(60)
    tokens = [
        token
        for event in streamed
        for choice in event["choices"]
        for token in choice.get("token_ids", [])
    ]
    assert len(tokens) == 200
    oracle.check_greedy(prompt, tokens)


def test_c15_the_last_id_is_valid(rand: LiveServer) -> None:
    answer = rand.complete([511], max_tokens=1, logit_bias={"511": 100}, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [511]


def test_c15_empty_texts_are_the_begin_token(rand: LiveServer) -> None:
    for prompt, prompts in (("", 1), ([""], 1), (["a", ""], 2)):
        answer = rand.complete(prompt, max_tokens=1, return_token_ids=True)
        assert len(answer["choices"]) == prompts
        assert answer["choices"][-1]["prompt_token_ids"] == [0]


# ---- C16


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c16_seeded_siblings(rand: LiveServer, path: str) -> None:
    fields = {**BODIES[path], "temperature": 1, "n": 4, "seed": 3, "max_tokens": 20}

    def texts(answer: Any) -> list[str]:
        return [choice.get("text") or choice["message"]["content"] for choice in answer["choices"]]

    _, first, _ = rand.post(path, {"model": "tiny", **fields})
    _, again, _ = rand.post(path, {"model": "tiny", **fields})
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
    assert texts(first) == texts(again)
    assert len(set(texts(first))) > 1
    events = rand.events(path, **fields)
    assert [joined(events, index) for index in range(4)] == texts(first)
    alone = rand.post(path, {"model": "tiny", **fields, "n": 1})[1]
    assert texts(alone)[0] == texts(first)[0]


def test_c16_logprobs_stay_with_their_choice(rand: LiveServer) -> None:
    fields = {"temperature": 1, "n": 3, "seed": 5, "max_tokens": 8, "logprobs": 0}
    whole = rand.complete("abc", **fields)
    events = rand.events(TEXT, prompt="abc", **fields)
    for choice in whole["choices"]:
        scores = [
            score
            for event in events
            for part in event["choices"]
            if part["index"] == choice["index"]
            for score in part["logprobs"]["token_logprobs"]
        ]
        assert scores == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-4)
        assert len(choice["logprobs"]["tokens"]) == len(scores)


def test_c16_greedy_siblings_are_equal_and_n_is_capped(rand: LiveServer) -> None:
    answer = rand.complete("abc", n=3, max_tokens=6)
    assert len({choice["text"] for choice in answer["choices"]}) == 1
    status, answer, _ = rand.post(TEXT, {"model": "tiny", "prompt": "a", "n": 17})
    assert (status, answer["error"]["param"]) == (400, "n")


def test_prompts_in_a_list_are_answered_in_order(rand: LiveServer) -> None:
    prompts = rand_prompts(3, 10, seed=4)
    together = rand.complete(prompts, n=2, max_tokens=6, return_token_ids=True)
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    for place, prompt in enumerate(prompts):
        alone = rand.complete(prompt, max_tokens=6, return_token_ids=True)["choices"][0]
        for choice in together["choices"][2 * place : 2 * place + 2]:
            assert choice["prompt_token_ids"] == prompt
            assert choice["token_ids"] == alone["token_ids"]


# ---- sampling and the rest


def test_sampling_fields_reach_the_engine(rand: LiveServer) -> None:
    def tokens(**fields: Any) -> list[int]:
        answer = rand.complete(
            "abc", max_tokens=24, ignore_eos=True, return_token_ids=True, **fields
        )
        return list(answer["choices"][0]["token_ids"])

    greedy = tokens()
    hot = {"temperature": 10, "seed": 1}
    assert tokens(**hot) != greedy
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"top_p": 0}, {"min_p": 1.0}):
        assert tokens(**hot, **narrow) == greedy
    assert tokens(**hot, top_k=-1) == tokens(**hot, top_k=0) == tokens(**hot)
    assert tokens(logit_bias={"7": 100}) == [7] * 24
    assert len(set(tokens(repetition_penalty=5.0))) > len(set(greedy))
    assert tokens(presence_penalty=2.0) != tokens(presence_penalty=-2.0)
    assert tokens(frequency_penalty=2.0) != tokens(frequency_penalty=-2.0)


def test_end_tokens(rand: LiveServer) -> None:
    force = {"logit_bias": {"2": 100}, "max_tokens": 6, "return_token_ids": True}
    stopped = rand.complete("abc", **force)
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["choices"][0]["text"] == ""
    assert stopped["usage"]["completion_tokens"] == 1
    assert rand.complete("abc", ignore_eos=True, **force)["usage"]["completion_tokens"] == 6
    assert rand.complete("abc", min_tokens=4, **force)["usage"]["completion_tokens"] >= 4
    own = {"logit_bias": {"70": 100}, "max_tokens": 6, "stop_token_ids": [70]}
    choice = rand.complete("abc", **own)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", 70, "")


def test_chat_logprobs(rand: LiveServer, oracle: Oracle) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 5, "ignore_eos": True}
    answer = rand.chat("Hello there", return_token_ids=True, **fields)
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    scores = oracle.logprobs([*answer["prompt_token_ids"], *choice["token_ids"]])
    begin = len(answer["prompt_token_ids"]) - 1
    for place, (entry, token) in enumerate(zip(content, choice["token_ids"], strict=True)):
        row = scores[begin + place]
        assert entry["logprob"] == pytest.approx(float(row[token]), abs=1e-3)
        best = [float(value) for value in row.topk(3).values]
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(best, abs=1e-3)
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
    streamed = [
        entry
        for event in rand.events(CHAT, **HELLO, **fields)
        for part in event["choices"]
        if part["logprobs"]
        for entry in part["logprobs"]["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in content]


def test_salted_prefixes_are_apart(rand: LiveServer) -> None:
    prompt = rand_prompts(1, 33, seed=12)[0]

    def cached(salt: str | None) -> int:
        usage = rand.complete(prompt, max_tokens=1, cache_salt=salt)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached("a"), cached("b"), cached(None)] == [0, 0, 0]
    assert [cached("a"), cached("b"), cached(None)] == [32, 32, 32]


def test_fields_without_effect_are_named(rand: LiveServer) -> None:
    body = {"model": "tiny", **PROMPT, "max_tokens": 1, "user": "u", "metadata": {}, "fröl,y": 1}
    status, _, headers = rand.post(TEXT, body)
    assert status == 200
    assert headers["x-ignored-fields"] == "user, metadata, fr?l?y"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"tools": {}}),
        (CHAT, {"tools": [{"type": "function"}]}),
        (CHAT, {"functions": []}),
        (CHAT, {"response_format": {"type": "xml"}}),
        (CHAT, {"tool_choice": "required"}),
        (CHAT, {"regex": "a", "ebnf": 'start: "a"'}),
        (CHAT, {"structured_outputs": {}}),
        (CHAT, {"allowed_token_ids": [512]}),
        (CHAT, {"prompt_logprobs": 1, "stream": True}),
        (TEXT, {"ignore_eos": True, "regex": "a"}),
        (CHAT, {"audio": {"voice": "x"}}),
        (CHAT, {"modalities": ["audio"]}),
        (CHAT, {"chat_template": "{{ 1 }}"}),
        (CHAT, {"top_logprobs": 3}),
        (CHAT, {"logprobs": True, "top_logprobs": 21}),
        (TEXT, {"best_of": 2}),
        (TEXT, {"suffix": "x"}),
        (TEXT, {"guided_json": {}}),
        (TEXT, {"logprobs": -1}),
        (TEXT, {"temperature": "1"}),
        (TEXT, {"temperature": -0.1}),
        (TEXT, {"top_p": 1.1}),
        (TEXT, {"seed": 2**63}),
        (TEXT, {"n": 0}),
        (TEXT, {"stream": 1}),
        (TEXT, {"stop": ["a"] * 65}),
        (TEXT, {"stop": ""}),
        (TEXT, {"stop": [1]}),
        (TEXT, {"stop_token_ids": [512]}),
        (TEXT, {"min_tokens": 1000, "max_tokens": 5}),
        (TEXT, {"cache_salt": "x" * 129}),
        (TEXT, {"repetition_penalty": 0}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    rand: LiveServer, path: str, fields: dict[str, Any]
) -> None:
    status, answer, _ = rand.post(path, {"model": "tiny", **BODIES[path], **fields})
    assert status == 400
    assert re.split(r"[\[.]", answer["error"]["param"])[0] in fields
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_harmless_values_pass(rand: LiveServer) -> None:
    harmless = {
        "response_format": {"type": "text"},
        "tool_choice": "none",
        "modalities": ["text"],
        "seed": -5,
        "stop": [],
        "n": 1,
        "logit_bias": {},
        "top_logprobs": 0,
    }
    assert rand.chat("hi", max_tokens=2, **harmless)


def test_model_names(rand: LiveServer) -> None:
    for path in (CHAT, TEXT):
        status, answer, _ = rand.post(path, {"model": "gpt-9", **BODIES[path]})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        status, answer, _ = rand.post(path, BODIES[path])
        assert (status, answer["error"]["param"]) == (400, "model")
    _, listed, _ = rand.get("/v1/models")
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert rand.get("/v1/models/tiny")[1] == listed["data"][0]
    assert rand.get("/v1/models/a/b")[0] == 404


def test_bodies_that_are_not_requests(rand: LiveServer) -> None:
    for body in (b"", b"{", b"[1]", b'"x"', b'{"a": "\xff"}', b'{"a": "\\ud800"}'):
        status, answer, _ = rand.post(TEXT, body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), body
    status, _, _ = rand.post(TEXT, b"[" * 100_000)
    assert status == 400
    status, answer, headers = rand.post(TEXT, b" " * ((1 << 24) + 1))
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert headers["connection"] == "close"
    assert rand.get("/nowhere")[0] == 404
    assert rand.get("/nowhere")[1]["error"]["code"] == "not_found"
    status, answer, headers = rand.get(TEXT)
    assert (status, answer["error"]["code"]) == (405, "method_not_allowed")
    assert headers["allow"] == "POST"


def test_request_ids(rand: LiveServer) -> None:
    assert rand.get("/livez", **{"X-Request-Id": "abc-1"})[2]["x-request-id"] == "abc-1"
    made = rand.get("/livez")[2]["x-request-id"]
    assert made.startswith("req-")
    assert rand.get("/livez", **{"X-Request-Id": "x" * 200})[2]["x-request-id"].startswith("req-")
    assert "x-request-id" in rand.post(TEXT, b"{")[2]


def test_the_canary_can_fail(rand: LiveServer) -> None:
    assert canary(rand) != rand.complete("Another request", max_tokens=12)["choices"][0]["text"]
