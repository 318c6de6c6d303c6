"""Anthropic's Messages API, by the unmodified `anthropic` client and byte by byte."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.server.agent import DEEP, FUNCTIONS, STARTS, TEXTS
from tests.server.conftest import go
from tests.server.live import LiveServer, Raw, until
from tests.server.test_types import LIMITS
from tokenspeed.server.anthropic.types import read_request

PATH = "/v1/messages"
TOOLS: list[Any] = [
    {
        "name": f["name"],
        "description": f.get("description", "says"),
        "input_schema": f["parameters"],
    }
    for f in FUNCTIONS
]


def client(server: LiveServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def body(name: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": STARTS.get(name) or go(name)}]
    return {"model": "tiny", "max_tokens": 400, "temperature": 0, "messages": messages, **fields}


def arguments(name: str, **fields: Any) -> dict[str, Any]:
    """The same for the client, whose own parameters have no temperature."""
    given = body(name, **fields)
    return given | {"extra_body": {"temperature": given.pop("temperature")}}


def whole(server: LiveServer, name: str, **fields: Any) -> dict[str, Any]:
    status, answer, _ = server.post(PATH, body(name, **fields))
    assert status == 200, answer
    return dict(answer)


def events(server: LiveServer, name: str, **fields: Any) -> list[dict[str, Any]]:
    raw = Raw(server.port)
    raw.post(PATH, body(name, stream=True, **fields))
    status, headers, data = raw.answer()
    assert status == 200, data
    assert headers["content-type"].startswith("text/event-stream")
    found = []
    for frame in data.decode().split("\n\n")[:-1]:
        kind, _, line = frame.partition("\ndata: ")
        event = json.loads(line)
        assert kind == f"event: {event['type']}"
        found.append(event)
    return found


def rebuilt(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events describe; every rule of their order is checked."""
    assert [e["type"] for e in found[:1] + found[-2:]] == [
        *("message_start", "message_delta", "message_stop")
    ]
    message = found[0]["message"]
    assert message["content"] == []
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] > 0
    blocks: list[dict[str, Any]] = message["content"]
    is_open = False
    for event in found[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                is_open = True
                blocks.append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                match delta["type"]:
                    case "text_delta":
                        blocks[-1]["text"] += delta["text"]
                    case "thinking_delta":
                        blocks[-1]["thinking"] += delta["thinking"]
                    case "signature_delta":
                        assert found[found.index(event) + 1]["type"] == "content_block_stop"
                        blocks[-1]["signed"] = delta["signature"]
                    case "input_json_delta":
                        blocks[-1]["json"] += delta["partial_json"]
                    case other:
                        raise AssertionError(other)
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    for block in blocks:
        if block["type"] == "thinking":
            assert block.pop("signed") == block["signature"]
        if text := block.pop("json"):
            assert block["input"] == {}
            block["input"] = json.loads(text)
    usage = message["usage"] | found[-2]["usage"]
    assert usage["output_tokens_details"]["thinking_tokens"] <= usage["output_tokens"]
    assert message["usage"]["output_tokens"] == 0
    told = {"output_tokens", "output_tokens_details"}
    assert {name for name, value in usage.items() if message["usage"].get(name) != value} <= told
    return message | found[-2]["delta"] | {"usage": usage}


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between any two answers."""
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    usage = {name: message["usage"][name] for name in ("output_tokens", "output_tokens_details")}
    return message | {"id": "", "content": blocks, "usage": usage}


@pytest.mark.parametrize(
    "name", ["one", "two", "aba", "mixed", "thought", "broken", "plain", "opened"]
)
def test_streams_build_what_whole_answers_say(agent: LiveServer, name: str) -> None:
    for fields in ({}, {"tools": TOOLS}, {"tools": TOOLS, "max_tokens": 30}):
        expected = comparable(whole(agent, name, **fields))
        assert comparable(rebuilt(events(agent, name, **fields))) == expected


def test_blocks_in_the_order_of_the_answer(agent: LiveServer) -> None:
    answer = whole(agent, "mixed", tools=TOOLS)
    shown = [block.get("text") or block["name"] for block in answer["content"]]
    assert shown == ["First.", "clock", "Then.", "weather", "Done."]
    assert answer["content"][3]["input"] == {"n": 2}
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    ids = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 2


def test_thinking(agent: LiveServer) -> None:
    answer = whole(agent, "thought", tools=TOOLS)
    thought, text, call = answer["content"]
    # As the chats say it: from the token that completes the mark to the one that completes its end.
    told = answer["usage"]["output_tokens_details"]
    assert told == {"thinking_tokens": len("<think>\nHm ü\n</think>") - len("<think>") + 1}
    assert thought == {"type": "thinking", "thinking": "Hm ü\n", "signature": ""}
    assert text == {"type": "text", "text": "So."}
    assert call["input"] == DEEP


def test_stop_reasons(agent: LiveServer) -> None:
    assert whole(agent, "plain")["stop_reason"] == "end_turn"
    assert whole(agent, "plain", max_tokens=3)["stop_reason"] == "max_tokens"
    stopped = whole(agent, "plain", stop_sequences=["tex", "?"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "tex")
    assert stopped["content"] == [{"type": "text", "text": "Just "}]
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(whole(agent, "aba", tools=TOOLS, tool_choice=one)["content"]) == 1
    hidden = whole(agent, "one", tools=TOOLS, tool_choice={"type": "none"})
    assert hidden["content"] == [{"type": "text", "text": TEXTS["one"]}]


def test_the_client(agent: LiveServer) -> None:
    with client(agent) as api:
        message = api.messages.create(**arguments("mixed", tools=TOOLS))
        assert message.stop_reason == "tool_use"
        assert message._request_id
        with api.messages.stream(**arguments("thought", tools=TOOLS)) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
        assert final.content[2].input == DEEP  # type: ignore[union-attr]
        assert final.usage.output_tokens > 0
        count = api.messages.count_tokens(
            model="tiny", messages=[{"role": "user", "content": go("plain")}], tools=TOOLS
        )
        usage = message.usage
        cached = usage.cache_read_input_tokens or 0
        mixed = api.messages.count_tokens(model="tiny", messages=body("mixed")["messages"],
                                          tools=TOOLS)  # fmt: skip
        assert mixed.input_tokens == usage.input_tokens + cached
        assert count.input_tokens > 0


def test_the_tool_runner_goes_on_without_threads(agent: LiveServer) -> None:
    """It asks for a conversation that is kept, and sends what is new alone where that is taken."""
    asked: list[str] = []

    def clock() -> str:
        """Tells the time."""
        asked.append("clock")
        return go("plain")  # what the model says to a result

    with client(agent) as api:
        runner = api.beta.messages.tool_runner(
            model="tiny",
            max_tokens=100,
            tools=[anthropic.beta_tool(clock), anthropic.beta_tool(clock, name="weather")],
            messages=[{"role": "user", "content": go("aba-whole")}],
            max_iterations=2,
            extra_body={"temperature": 0},
        )
        first, last = list(runner)
    assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
    assert asked == ["clock"] * 3
    # The whole conversation came: the second prompt begins with the first one and its answer.
    assert (last.usage.cache_read_input_tokens or 0) > (first.usage.input_tokens or 0)


def test_cached_tokens_are_told_apart(agent: LiveServer) -> None:
    fields = {"system": "A long system prompt of more than one block of the cache. " * 2}
    whole(agent, "plain", **fields)
    again = rebuilt(events(agent, "plain", **fields))["usage"]
    assert again["cache_read_input_tokens"] > 0
    assert again["cache_creation_input_tokens"] == 0
    count = agent.post(f"{PATH}/count_tokens", body("plain", **fields))[1]["input_tokens"]
    assert again["input_tokens"] + again["cache_read_input_tokens"] == count


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "w?", "cache_control": {"type": "e"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "look"},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"n": 1}},
            {"type": "tool_use", "id": "t2", "name": "clock", "input": {}},
        ],
    },
    {"role": "system", "content": "reminder"},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "18"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True,
             "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"type": "text", "text": "so?"},
        ],
    },
]  # fmt: skip


def test_a_conversation_becomes_messages(agent: LiveServer) -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0af3;"},
        {"type": "text", "text": "You are.", "cache_control": {"type": "ephemeral"}},
    ]
    fields = body("plain", messages=CONVERSATION, system=system, metadata={"user_id": "u"})
    request = read_request(fields, agent.call(lambda: _limits(agent)))
    call = {"type": "function", "function": {"name": "weather", "arguments": {"n": 1}}}
    clock = {"type": "function", "function": {"name": "clock", "arguments": {}}}
    assert list(request.messages) == [
        {"role": "system", "content": "You are."},
        {"role": "user", "content": "w?"},
        {
            "role": "assistant",
            "content": "look",
            "tool_calls": [{"id": "t1", **call}, {"id": "t2", **clock}],
            "reasoning_content": "hm",
        },
        {"role": "system", "content": "reminder"},
        {"role": "tool", "tool_call_id": "t1", "content": "18"},
        {"role": "tool", "tool_call_id": "t2", "content": "a\nb"},
        {"role": "user", "content": "so?"},
    ]
    assert set(request.ignored) == {
        *("cache_control", "metadata", "messages.content.is_error", "messages.content.data")
    }


def test_neighbours_of_the_user_are_one_and_an_empty_system_is_none(agent: LiveServer) -> None:
    said = [{"role": "user", "content": text} for text in ("a", "b", "c")]
    fields = body("plain", messages=[*said, {"role": "system", "content": "s"}, said[0]], system="")
    request = read_request(fields, agent.call(lambda: _limits(agent)))
    assert list(request.messages) == [
        {"role": "user", "content": "a\nb\nc"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
    ]


def test_neighbours_of_the_assistant_are_one_turn_with_all_that_they_hold() -> None:
    def use(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "run", "input": {}}

    blocks: list[list[dict[str, Any]]] = [
        [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, use("t1")],
        [],
        [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "b"}, use("t2")],
    ]
    turns = [{"role": "assistant", "content": content} for content in blocks]
    user = {"role": "user", "content": "u"}

    def read(*turns: dict[str, Any]) -> dict[str, Any]:
        fields = {"model": "m", "max_tokens": 1, "messages": [user, *turns, user]}
        _, turn, last = read_request(fields, LIMITS).messages
        assert last == user
        return turn

    joined = read(*turns)
    assert (joined["content"], joined["reasoning_content"]) == ("a\nb", "hm\nso")
    assert [call["id"] for call in joined["tool_calls"]] == ["t1", "t2"]
    assert read(turns[1], turns[1]) == {"role": "assistant", "content": ""}
    only_calls = {"role": "assistant", "content": [use("t3")]}
    assert read(turns[1], only_calls) == read(only_calls)


def test_many_neighbours_are_joined_once() -> None:
    # One after the other they would be copied for minutes.
    said = [{"role": "user", "content": "x" * 1000}] * 20_000
    request = read_request({"model": "m", "max_tokens": 1, "messages": said}, LIMITS)
    assert request.messages == ({"role": "user", "content": "\n".join(["x" * 1000] * 20_000)},)


def _limits(server: LiveServer) -> Any:
    from tokenspeed.server.service import Service

    service = Service(server.plan, server.engine, server.text, 1.0)
    service.close()
    return service.limits


def test_what_real_clients_send(agent: LiveServer) -> None:
    """The shape of a request of Claude Code: betas, contexts, budgets, a huge max_tokens."""
    fields = body(
        "plain",
        max_tokens=32000,
        thinking={"type": "enabled", "budget_tokens": 31999},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        metadata={"user_id": "user_x_account__session_y"},
        tools=[{**TOOLS[0], "eager_input_streaming": True, "cache_control": {"type": "ephemeral"}}],
    )
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "x-api-key": "none",
        "x-app": "cli",
        "x-stainless-retry-count": "0",
    }
    status, answer, answered = agent.post(f"{PATH}?beta=true", fields, **headers)
    assert status == 200, answer
    assert answered["request-id"] == answered["x-request-id"]
    assert set(answered["x-ignored-fields"].split(", ")) == {
        *("context_management", "metadata"),
        *("tools.eager_input_streaming", "cache_control"),
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": []}]},
        {"system": [{"type": "image"}]},
        {"system": 5},
        {"temperature": -1},
        {"stop_sequences": "x"},
        {"stop_sequences": [""]},
        {"thinking": {"type": "perhaps"}},
        {"tools": [{"name": "x", "type": "web_search_20250305"}]},
        {"tools": [{"description": "x"}]},
        {"tool_choice": {"type": "any"}},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "watch"}},
        {"tools": TOOLS, "tool_choice": {"type": "tool"}},
        {"mcp_servers": [{"url": "http://127.0.0.1:1"}]},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"model": None},
    ],
)
def test_refusals(agent: LiveServer, fields: dict[str, Any]) -> None:
    for stream in (False, True):
        status, answer, headers = agent.post(PATH, body("plain", stream=stream, **fields))
        assert status == 400, answer
        assert answer["type"] == "error"
        assert answer["error"]["type"] == "invalid_request_error"
        assert next(iter(reversed(fields))) in answer["error"]["message"]
        assert answer["request_id"] == headers["request-id"]


def test_errors_by_the_client(agent: LiveServer) -> None:
    with client(agent) as api:
        with pytest.raises(anthropic.NotFoundError) as missing:
            api.messages.create(**arguments("plain") | {"model": "claude"})
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        long = [{"role": "user", "content": "a " * 5000}]
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
            api.messages.create(**arguments("plain", messages=long))
    assert agent.get(PATH)[1]["type"] == "error"
    assert agent.post(PATH, b"{")[1]["error"]["type"] == "invalid_request_error"


def test_no_tools_where_calls_cannot_be_read(chain: LiveServer) -> None:
    status, answer, _ = chain.post(PATH, body("hello", tools=TOOLS))
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert whole(chain, "hello")["content"] == [{"type": "text", "text": "Hello world"}]


def test_leaving_a_stream_aborts(chain: LiveServer) -> None:
    aborted = chain.stats().requests_aborted
    with client(chain) as api, api.messages.stream(**arguments("long", max_tokens=3000)) as stream:
        for _ in stream.text_stream:
            break
    until(lambda: chain.stats().requests_aborted == aborted + 1)
