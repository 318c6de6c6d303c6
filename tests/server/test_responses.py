"""/v1/responses, by the unmodified `openai` client and event by event."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.server.agent import DEEP, FUNCTIONS, STARTS
from tests.server.conftest import go
from tests.server.live import LiveServer, Raw
from tests.server.test_types import LIMITS
from tokenspeed.server.openai.responses_types import read_responses
from tokenspeed.server.service import Service

PATH = "/v1/responses"
TOOLS: list[Any] = [{"type": "function", **function} for function in FUNCTIONS]


def body(name: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "temperature": 0, "input": STARTS.get(name) or go(name), **fields}


def whole(server: LiveServer, name: str, **fields: Any) -> dict[str, Any]:
    status, answer, _ = server.post(PATH, body(name, **fields))
    assert status == 200, answer
    return dict(answer)


def events(raw: Raw) -> list[dict[str, Any]]:
    status, _, data = raw.answer()
    assert status == 200, data
    found = []
    for frame in data.decode().split("\n\n")[:-1]:
        kind, _, line = frame.partition("\ndata: ")
        found.append(json.loads(line))
        assert kind == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def streamed(server: LiveServer, name: str, **fields: Any) -> list[dict[str, Any]]:
    raw = Raw(server.port)
    raw.post(PATH, body(name, stream=True, **fields))
    return events(raw)


ITEM = {
    "message": (
        *("content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
    ),
    "reasoning": (
        *("content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        "content_part.done",
    ),
    "function_call": ("function_call_arguments.delta", "function_call_arguments.done"),
}


def check(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The response at the end of a stream, after checking that every event says what it ends in."""
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds[:2] == ["created", "in_progress"]
    assert found[0]["response"]["output"] == []
    final = found[-1]["response"]
    assert kinds[-1] == final["status"]
    at = 2
    for index, item in enumerate(final["output"]):
        added = found[at]
        assert (kinds[at], added["output_index"]) == ("output_item.added", index)
        assert added["item"]["id"] == item["id"]
        assert added["item"]["status"] == "in_progress"
        assert not added["item"].get("content")
        assert not added["item"].get("arguments")
        end = kinds.index("output_item.done", at)
        assert found[end]["item"] == item
        inner = [kind for n, kind in enumerate(kinds[at + 1 : end]) if kind != kinds[at + n]]
        assert tuple(inner) == ITEM[item["type"]]
        between = found[at + 1 : end]
        assert all(e["item_id"] == item["id"] for e in between)
        text = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert "".join(e["delta"] for e in between if e["type"].endswith(".delta")) == text
        done = next(e for e in between if e["type"].endswith(("text.done", "arguments.done")))
        assert done.get("text", done.get("arguments")) == text
        at = end + 1
    assert at == len(found) - 1
    return dict(final)


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    output = [
        {k: v for k, v in i.items() if k not in ("id", "call_id")} for i in response["output"]
    ]
    usage = response["usage"]["output_tokens"]
    return response | {"id": "", "created_at": 0, "output": output, "usage": usage}


@pytest.mark.parametrize("name", ["one", "two", "mixed", "thought", "broken", "plain", "opened"])
def test_streams_end_in_what_whole_answers_say(agent: LiveServer, name: str) -> None:
    for fields in ({}, {"tools": TOOLS}, {"tools": TOOLS, "max_output_tokens": 30}):
        expected = comparable(whole(agent, name, **fields))
        assert comparable(check(streamed(agent, name, **fields))) == expected


def test_items(agent: LiveServer) -> None:
    answer = whole(agent, "thought", tools=TOOLS)
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    assert json.loads(answer["output"][2]["arguments"]) == DEEP
    assert (answer["status"], answer["store"], answer["object"]) == ("completed", False, "response")
    usage = answer["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0
    # The client's own type wants both.
    assert usage["input_tokens_details"].keys() == {"cached_tokens", "cache_write_tokens"}
    mixed = whole(agent, "mixed", tools=TOOLS)["output"]
    assert [item.get("name") or item["content"][0]["text"] for item in mixed] == [
        *("First.", "clock", "Then.", "weather", "Done.")
    ]
    assert len({item["id"] for item in mixed}) == 5
    one = whole(agent, "aba", tools=TOOLS, parallel_tool_calls=False)["output"]
    assert [item["name"] for item in one] == ["weather"]


def test_a_limit_makes_it_incomplete(agent: LiveServer) -> None:
    found = streamed(agent, "plain", max_output_tokens=4)
    final = check(found)
    assert final["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}
    assert final["output"][0]["status"] == "incomplete"


def test_the_client(agent: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as api:
        answer = api.responses.create(**body("plain", store=False))
        assert answer.output_text == "Just text."
        assert answer.usage is not None
        assert answer.usage.output_tokens == len("Just text.") + 1
        with api.responses.stream(**body("mixed", tools=TOOLS)) as stream:
            final = stream.get_final_response()
        calls = [item for item in final.output if item.type == "function_call"]
        assert [call.name for call in calls] == ["clock", "weather"]
        assert final.output_text == "First.Then.Done."
        following = [
            {"role": "user", "content": "w?"},
            *(item.model_dump(exclude_none=True) for item in answer.output),
            {"type": "function_call_output", "call_id": calls[1].call_id, "output": "18"},
            {"role": "user", "content": [{"type": "input_text", "text": go("plain")}]},
        ]
        again = api.responses.create(model="tiny", input=following)  # type: ignore[arg-type]
        assert again.output_text == "Just text."
        raw = api.responses.with_raw_response.create(model="tiny", input="x", store=True)
        assert (raw.headers["x-ignored-fields"], raw.parse().store) == ("store", False)
        with pytest.raises(openai.BadRequestError) as refused:
            api.responses.create(model="tiny", input="x", previous_response_id=answer.id)
        assert refused.value.param == "previous_response_id"


def test_items_become_messages(agent: LiveServer) -> None:
    service = Service(agent.plan, agent.engine, agent.text, 1.0)
    service.close()
    items = [
        {"role": "developer", "content": "be"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "w?"}]},
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "look", "annotations": []}],
        },
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"n": 1}'},
        {"type": "function_call", "call_id": "b", "name": "clock", "arguments": "{cut"},
        {"type": "function_call_output", "call_id": "a", "output": "18"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "12"}],
        },
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "so"},
    ]
    request = read_responses(body("plain", input=items, instructions="sys"), service.limits)
    weather = {"name": "weather", "arguments": {"n": 1}}
    clock = {"name": "clock", "arguments": "{cut"}
    assert list(request.messages) == [
        {"role": "system", "content": "sys"},
        {"role": "system", "content": "be"},
        {"role": "user", "content": "w?"},
        {
            "role": "assistant",
            "content": "look",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": weather},
                {"id": "b", "type": "function", "function": clock},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "18"},
        {"role": "tool", "tool_call_id": "b", "content": "12"},
        {"role": "assistant", "content": "so"},
    ]
    assert request.ignored == ("input.encrypted_content",)


def test_what_has_no_effect_is_listed(agent: LiveServer) -> None:
    """The shape of a request of Codex."""
    fields = body(
        "plain",
        store=False,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "medium", "summary": "auto"},
        prompt_cache_key="k",
        text={"verbosity": "low"},
        tool_choice="auto",
        parallel_tool_calls=False,
        tools=[{**TOOLS[0], "strict": False}],
    )
    status, answer, headers = agent.post(PATH, fields)
    assert status == 200, answer
    assert set(headers["x-ignored-fields"].split(", ")) == {
        *("include", "reasoning.summary", "prompt_cache_key", "text.verbosity")
    }


def test_allowed_tools_and_stop_strings() -> None:
    names = [{"type": "function", "name": "clock"}]
    chosen = {"type": "allowed_tools", "mode": "required", "tools": names}
    fields = {"model": "m", "input": "x", "tools": TOOLS, "tool_choice": chosen, "stop": "END"}
    read = read_responses(fields, LIMITS)
    assert read.tools is not None
    assert (list(read.tools.schemas), read.tools.must) == (["clock"], True)
    assert (read.options.stop, read.ignored) == (("END",), ())


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "c"},
        {"background": True},
        {"truncation": "auto"},
        {"text": {"format": {"type": "json_schema"}}},
        {"tools": [{"type": "file_search"}]},
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "watch"}},
        {"tools": TOOLS, "tool_choice": {"type": "web_search"}},
        {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "tools": TOOLS[:1]} | {"mode": 1},
        },
        {"input": []},
        {"input": None},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": [{"role": "nobody", "content": "x"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "function_call", "arguments": "{}"}]},
        {"max_output_tokens": 0},
        {"max_output_tokens": 100_000},
    ],
)
def test_refusals_name_the_field(agent: LiveServer, fields: dict[str, Any]) -> None:
    for stream in (False, True):
        status, answer, _ = agent.post(PATH, body("plain", stream=stream, **fields))
        assert status == 400, answer
        param = answer["error"]["param"]
        root = param.split("[")[0].split(".")[0]
        assert root == next(reversed(fields)) or fields == {"max_output_tokens": 100_000}


def test_a_dead_engine_fails_the_response(agent: LiveServer, chain: LiveServer) -> None:
    raw = Raw(chain.port)
    raw.post(PATH, body("long", stream=True, max_output_tokens=3000))
    raw.read_until(b"output_text.delta")
    chain.kill_worker()
    found = events(raw)
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["error"]["code"] == "server_error"
    chain.start_worker()


def test_many_thoughts_are_joined_once() -> None:
    # One after the other they would be copied for minutes.
    thought = {"type": "reasoning_text", "text": "x" * 1000}
    items = [{"type": "reasoning", "content": [thought]}] * 20_000
    request = read_responses({"model": "m", "input": items}, LIMITS)
    (turn,) = request.messages
    assert turn == {"role": "assistant", "content": None, "reasoning_content": "x" * 20_000_000}
