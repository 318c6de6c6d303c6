"""C21, C22 and structured output on a live server."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from tests.server.agent import FUNCTIONS, TOOLS
from tests.server.live import LiveServer, Raw, joined, sse_frames, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    inner = {"name": "x", "schema": schema, **fields}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


def drawn(server: LiveServer, path: str = CHAT, **fields: Any) -> str:
    """The text of an answer that was drawn at random and ended by itself."""
    prompt = {"prompt": "x"} if path == TEXT else {"messages": [{"role": "user", "content": "x"}]}
    body = {"model": "tiny", "temperature": 1.0, "seed": 7, "max_tokens": 300, **prompt, **fields}
    status, answer, headers = server.post(path, body)
    assert status == 200, answer
    assert "x-ignored-fields" not in headers
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"] if path == TEXT else choice["message"]["content"])


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "fields",
    [
        schema_format(SCHEMA, strict=True),
        schema_format(SCHEMA),
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"json_schema": json.dumps(SCHEMA)},
    ],
)
def test_json_satisfies_its_schema(rand: LiveServer, path: str, fields: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(drawn(rand, path, **fields)), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[a-f]{2,5}/\\d"}, "[a-f]{2,5}/[0-9]"),
        ({"structured_outputs": {"regex": "(yes|no)!"}}, "(yes|no)!"),
        ({"structured_outputs": {"choice": ["yes", "no", 'a "b"']}}, 'yes|no|a "b"'),
        ({"ebnf": 'root ::= "<" [0-9]+ ">"'}, "<[0-9]+>"),
        ({"structured_outputs": {"grammar": 'start: "a" B\nB: /b{2,4}/'}}, "ab{2,4}"),
    ],
)
def test_text_matches_what_was_asked_for(
    rand: LiveServer, fields: dict[str, Any], pattern: str
) -> None:
    for path in (CHAT, TEXT):
        assert re.fullmatch(pattern, drawn(rand, path, logit_bias=DIGITS_END, **fields))


# So that a loop of digits ends: the quote, the bracket and the end are liked.
DIGITS_END = {"2": 3}


def test_json_objects_and_structural_tags(rand: LiveServer) -> None:
    short = {"structured_outputs": {"json": {"type": "object", "maxProperties": 0}}}
    assert json.loads(drawn(rand, **short)) == {}
    structure = {"begin": "<f=a>", "schema": {"enum": [1, 22]}, "end": "</f>"}
    tag = {"type": "structural_tag", "triggers": ["<f"], "structures": [structure]}
    body = {"model": "tiny", "prompt": "x", "response_format": tag, "seed": 1, "max_tokens": 400}
    status, answer, _ = rand.post(TEXT, body)
    assert status == 200
    text = answer["choices"][0]["text"]
    cut = text[: text.rfind("<f")] if "<f" in text else text
    assert all(re.match("<f=a>(1|22)</f>", part) for part in re.findall("<f.{0,12}", cut))


def test_streams_equal_buffered_answers_and_siblings_differ(rand: LiveServer) -> None:
    fields = {"prompt": "x", "temperature": 1.0, "seed": 5, "n": 3, "max_tokens": 200}
    fields |= schema_format(SCHEMA)
    status, answer, _ = rand.post(TEXT, {"model": "tiny", **fields})
    assert status == 200
    texts = [choice["text"] for choice in answer["choices"]]
    events = rand.events(TEXT, **fields)
    assert [joined(events, index) for index in range(3)] == texts
    assert len(set(texts)) > 1
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_an_answer_that_the_limit_cuts_is_a_beginning(rand: LiveServer) -> None:
    fields = {"prompt": "x", "temperature": 1.0, "seed": 5, **schema_format(SCHEMA)}
    whole = rand.complete(max_tokens=200, **fields)["choices"][0]
    cut = rand.complete(max_tokens=4, **fields)["choices"][0]
    assert cut["finish_reason"] == "length"
    assert whole["text"].startswith(cut["text"])


def test_stop_strings_and_min_tokens_work_beside_a_grammar(rand: LiveServer) -> None:
    stopped = rand.complete("x", regex="[ab]{20}", stop=["a"], temperature=1.0, max_tokens=40)
    assert set(stopped["choices"][0]["text"]) <= {"b"}
    ends = dict.fromkeys(map(str, rand.text.eos_token_ids), 100)
    answer = rand.complete("x", regex="[ab]*", min_tokens=7, logit_bias=ends, max_tokens=40)
    assert answer["usage"]["completion_tokens"] == 8


FORCED = {"temperature": 1.0, "seed": 3, "max_tokens": 200} | {
    "regex": "[ab]{2} and a middle of the answer that is given [ab]{2}"
}


def test_what_a_grammar_forces_is_computed_at_once_and_counts(rand: LiveServer) -> None:
    before = rand.stats()
    answer = rand.complete("x", n=2, return_token_ids=True, **FORCED)
    after = rand.stats()
    choices, said = answer["choices"], answer["usage"]["completion_tokens"]
    assert all(re.fullmatch(str(FORCED["regex"]), choice["text"]) for choice in choices)
    assert said == sum(len(choice["token_ids"]) for choice in choices)
    assert after.generated_tokens - before.generated_tokens == said
    assert after.forced_tokens - before.forced_tokens > said / 2
    assert after.steps - before.steps < said / 4, "two answers at once, half of each forced"
    events = rand.events(TEXT, prompt="x", **FORCED)
    assert joined(events) == choices[0]["text"]
    assert max(len(event["choices"][0]["text"]) for event in events if event["choices"]) > 20
    forced = rand.stats().forced_tokens
    scored = rand.complete("x", logprobs=1, **FORCED)
    assert rand.stats().forced_tokens == forced, "whoever asks for their figures has all sampled"
    assert scored["choices"][0]["text"] == choices[0]["text"]
    figures = scored["choices"][0]["logprobs"]["token_logprobs"]
    assert len(figures) == len(choices[0]["token_ids"]) - 1, "the end has none"


def test_a_stop_string_among_forced_tokens_ends_text_and_usage(rand: LiveServer) -> None:
    whole = rand.complete("x", **FORCED)["choices"][0]["text"]
    answer = rand.complete("x", stop=["answer"], return_token_ids=True, **FORCED)
    (choice,) = answer["choices"]
    assert choice["text"] == whole[: whole.index("answer")]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "answer")
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
    *before, last = choice["token_ids"]
    assert "answer" not in rand.text.decode(before), "nothing behind the stop counts"
    assert "answer" in rand.text.decode([*before, last])


class Step(pydantic.BaseModel):
    what: str = pydantic.Field(max_length=6)
    done: bool


class Steps(pydantic.BaseModel):
    steps: list[Step] = pydantic.Field(max_length=2)


def test_the_openai_client_parses_what_it_asked_for(rand: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{rand.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.parse(
        model="tiny",
        messages=[{"role": "user", "content": "x"}],
        response_format=Steps,
        seed=3,
        max_tokens=300,
    )
    assert isinstance(answer.choices[0].message.parsed, Steps)
    response = client.responses.parse(
        model="tiny", input="x", text_format=Steps, max_output_tokens=300
    )
    assert isinstance(response.output_parsed, Steps)
    client.close()


def test_anthropics_format_is_the_same(rand: LiveServer) -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_format": wanted}, {"output_config": {"format": wanted}}):
        messages = [{"role": "user", "content": "x"}]
        body = {"model": "tiny", "messages": messages, "max_tokens": 300, **fields}
        status, answer, _ = rand.post("/v1/messages", body)
        assert status == 200, answer
        jsonschema.validate(json.loads(answer["content"][0]["text"]), SCHEMA)


# ---- C21


BAD_SCHEMAS = [
    {"properties": {"foo": "bar"}},
    {"type": "strnig"},
    {"$ref": "#/$defs/nowhere"},
    {"$ref": "#"},
    {"enum": []},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "string", "pattern": "(["},
    {"type": "string", "pattern": "(?<=a)b"},
    {"type": "array", "uniqueItems": True},
    {"$ref": "http://127.0.0.1:1/schema.json"},
    False,
    [],
    None,
    "text",
]
BAD_FORMS = [
    *({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
      for schema in BAD_SCHEMAS),
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    {"response_format": {"type": "yaml"}},
    {"response_format": []},
    {"regex": "(["},
    {"regex": ""},
    {"regex": "a(?=b)"},
    {"ebnf": 'root ::= "a'},
    {"ebnf": "start: nothing"},
    {"ebnf": 'start: start "a"'},
    {"ebnf": "start: <|nobody|>"},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"choice": [1]}},
    {"structured_outputs": {"yaml": 1}},
    {"structured_outputs": {"regex": "a", "choice": ["a"]}},
]  # fmt: skip


def test_c21_a_bad_form_is_400_and_its_neighbours_notice_nothing(rand: LiveServer) -> None:
    body = {"prompt": "A long one", "max_tokens": 300, "temperature": 0}
    expected = rand.complete(**body)["choices"][0]["text"]
    neighbour = Raw(rand.port)
    neighbour.post(TEXT, {"model": "tiny", "stream": True, **body})
    neighbour.read_until(b"data: ")
    worker = rand.worker.pid
    for fields in BAD_FORMS:
        for stream in (False, True):
            request = {"model": "tiny", "prompt": "x", "max_tokens": 5, "stream": stream, **fields}
            status, answer, _ = rand.post(TEXT, request)
            assert status == 400, (fields, answer)
            (name,) = fields
            assert answer["error"]["param"].startswith(name), (fields, answer)
            assert "<state>" not in answer["error"]["message"]
    _, _, streamed = neighbour.answer()
    events = [json.loads(frame) for frame in sse_frames(streamed)[:-1]]
    assert joined(events) == expected
    assert rand.worker.pid == worker
    assert rand.worker.poll() is None


def test_c21_unsupported_keywords_are_named(rand: LiveServer) -> None:
    body = {"model": "tiny", "prompt": "x", **schema_format({"not": {"type": "string"}})}
    _, answer, _ = rand.post(TEXT, body)
    assert "'response_format.json_schema.schema' cannot be used" in answer["error"]["message"]
    assert '"not"' in answer["error"]["message"]
    assert answer["error"]["code"] == "invalid_grammar"


# ---- C22


def nested(depth: int, begin: str, middle: str, end: str) -> bytes:
    """A request whose schema is written that deep, without building it."""
    head = b'{"model":"tiny","prompt":"x","max_tokens":2,"structured_outputs":{"json":'
    return head + (begin * depth + middle + end * depth).encode() + b"}}"


@pytest.mark.parametrize("depth", [100, 1000, 60_000])
@pytest.mark.parametrize(
    ("begin", "end"),
    [('{"type":"object","properties":{"a":', "}}"), ('{"anyOf":[', "]}"), ('{"items":', "}")],
)
def test_c22_nesting_is_refused_before_anything_walks_into_it(
    rand: LiveServer, depth: int, begin: str, end: str
) -> None:
    headers = {"content-type": "application/json"}
    status, answer, _ = rand.request("POST", TEXT, nested(depth, begin, "{}", end), headers)
    assert status == 400, answer
    assert rand.worker.poll() is None


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(" * 60_000 + "a" + ")" * 60_000},
        {"regex": "(a{1,1000}){1,1000}" * 200},
        {"ebnf": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000},
        {"ebnf": "root ::= " + "(" * 7_000 + '"a"' + ")" * 7_000},
        {"ebnf": 'root ::= "' + "a" * 20_000 + '"'},
        {"structured_outputs": {"json": {"enum": ["x" * 300_000]}}},
        {"structured_outputs": {"json": "[" * 200_000}},
    ],
    ids=["groups", "repeats", "lark", "gbnf", "long gbnf", "large", "text"],
)
def test_c22_large_grammars_are_refused_quickly(rand: LiveServer, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2, **fields}
    status, answer, _ = rand.post(TEXT, body)
    assert status == 400, answer
    assert rand.worker.poll() is None


def test_c22_bodies_that_are_all_brackets_or_far_too_large(rand: LiveServer) -> None:
    headers = {"content-type": "application/json"}
    brackets = b"[" * 200_000 + b"]" * 200_000
    assert rand.request("POST", TEXT, brackets, headers)[0] == 400
    schema = {"enum": ["x" * 1000] * 20_000}
    body = {"model": "tiny", "prompt": "x", "structured_outputs": {"json": schema}}
    assert rand.post(TEXT, body)[0] in (400, 413)


def test_c22_recursive_schemas_work(rand: LiveServer) -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"v": {"enum": [1]}, "k": {"items": {"$ref": "#"}, "maxItems": 1}},
        "required": ["v", "k"],
        "additionalProperties": False,
    }
    tree["properties"]["k"]["type"] = "array"
    value = json.loads(drawn(rand, max_tokens=400, **schema_format(tree)))
    jsonschema.validate(value, tree)


# ---- C23


def test_c23_a_client_who_leaves_while_its_grammar_compiles(rand: LiveServer) -> None:
    for round_ in range(4):
        names = {f"p{round_}_{n}": {"type": "string", "pattern": f"^a{n}"} for n in range(900)}
        raw = Raw(rand.port)
        schema = {"type": "object", "properties": names}
        raw.post(TEXT, {"model": "tiny", "prompt": "x", "structured_outputs": {"json": schema}})
        until(lambda: rand.engine.open_requests == 1)
        raw.reset()
        rand.assert_idle()


# ---- C19: forced calls


@pytest.mark.parametrize("choice", ["required", "named"])
def test_c19_forced_calls_end_alike_in_streams_and_bodies(agent: LiveServer, choice: str) -> None:
    """Every budget from 1 token to the whole answer; the model itself would say nothing."""
    named = {"type": "function", "function": {"name": "weather"}}
    fields = {"tools": TOOLS, "tool_choice": named if choice == "named" else choice}
    messages = [{"role": "user", "content": "x"}]
    ended = set()
    for budget in (1, 2, 7, 20, 60, 120, 200):
        more = {**fields, "messages": messages, "max_tokens": budget, "parallel_tool_calls": False}
        status, answer, _ = agent.post(CHAT, {"model": "tiny", "temperature": 0, **more})
        assert status == 200, answer
        message, finish = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
        calls = [(c["function"]["name"], c["function"]["arguments"])
                 for c in message.get("tool_calls", [])]  # fmt: skip
        deltas = [e["choices"][0] for e in agent.events(CHAT, **more)]
        streamed = [c["function"] for d in deltas for c in d["delta"].get("tool_calls", [])]
        assert deltas[-1]["finish_reason"] == finish
        assert [f["name"] for f in streamed if "name" in f] == [name for name, _ in calls]
        assert not (message["content"] or "")
        assert not any(d["delta"].get("content") for d in deltas)
        if finish == "length":
            assert not calls
        else:
            assert finish == ("stop" if choice == "named" else "tool_calls")
            ((name, arguments),) = calls
            assert "".join(f["arguments"] for f in streamed) == arguments
            schema = next(f["parameters"] for f in FUNCTIONS if f["name"] == name)
            jsonschema.validate(json.loads(arguments), schema)
        ended.add(finish)
    assert ended == {"length", "stop" if choice == "named" else "tool_calls"}


def test_anthropics_forced_calls(agent: LiveServer) -> None:
    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in FUNCTIONS]
    messages = [{"role": "user", "content": "x"}]
    choices: list[dict[str, Any]] = [{"type": "any"}, {"type": "tool", "name": "weather"}]
    for choice in choices:
        choice["disable_parallel_tool_use"] = True
        fields = {"tools": tools, "tool_choice": choice, "messages": messages}
        body = {"model": "tiny", "max_tokens": 200, "temperature": 0, **fields}
        status, answer, _ = agent.post("/v1/messages", body)
        assert status == 200, answer
        *thoughts, block = answer["content"]
        assert all(one["type"] == "thinking" for one in thoughts)
        assert block["type"] == "tool_use"
        assert answer["stop_reason"] == "tool_use"
        assert block["name"] == choice.get("name", block["name"])
