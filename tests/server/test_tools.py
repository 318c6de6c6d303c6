"""C18, C19, C20 on a live server: calls and reasoning, streamed and whole, always the same."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.server.agent import DEEP, ONE, STARTS, TEXTS, THOUGHT, TOOLS
from tests.server.conftest import go
from tests.server.live import LiveServer

CHAT = "/v1/chat/completions"


def messages(name: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": STARTS.get(name) or go(name)}]


def allowing(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def whole(server: LiveServer, name: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "temperature": 0, "messages": messages(name), **fields}
    status, answer, _ = server.post(CHAT, body)
    assert status == 200, answer
    choice: dict[str, Any] = answer["choices"][0]
    assert choice["message"].get("tool_calls") != []
    return choice


def streamed(server: LiveServer, name: str, **fields: Any) -> dict[str, Any]:
    """The choice that a client builds from the stream, with every rule for deltas checked."""
    content, reasoning, finish, calls = "", "", None, []
    for event in server.events(CHAT, messages=messages(name), **fields):
        (choice,) = event["choices"]
        delta = choice["delta"]
        assert finish is None
        finish = choice["finish_reason"]
        content += delta.get("content") or ""
        assert delta.get("reasoning") == delta.get("reasoning_content")
        reasoning += delta.get("reasoning") or ""
        if "tool_calls" not in delta:
            continue
        (part,) = delta["tool_calls"]
        if part["index"] == len(calls):
            assert part["function"]["arguments"] == ""
            assert part["type"] == "function"
            calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
        else:
            assert set(part) == {"index", "function"}
            assert part["index"] == len(calls) - 1
            assert set(part["function"]) == {"arguments"}
            calls[-1]["arguments"] += part["function"]["arguments"]
    assert len({entry["id"] for entry in calls}) == len(calls)
    return {"content": content, "reasoning": reasoning, "finish": finish, "calls": calls}


def both(server: LiveServer, name: str, **fields: Any) -> tuple[str, str, list[Any], str]:
    """(content, reasoning, calls, finish_reason), equal for stream and buffer, and for a token per
    character and one for everything."""
    seen = []
    for script in (
        (name, f"{name}-whole") if name in TEXTS and "max_tokens" not in fields else [name]
    ):
        stream = streamed(server, script, **fields)
        choice = whole(server, script, **fields)
        message = choice["message"]
        found = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", [])
        ]
        assert message.get("reasoning") == message.get("reasoning_content")
        seen.append(
            (message["content"] or "", message.get("reasoning", ""), found, choice["finish_reason"])
        )
        calls = [(call["name"], call["arguments"]) for call in stream["calls"]]
        seen.append((stream["content"], stream["reasoning"], calls, stream["finish"]))
    assert all(entry == seen[0] for entry in seen), seen
    content, reasoning, found, finish = seen[0]
    return content, reasoning, [(name, json.loads(text)) for name, text in found], finish


@pytest.mark.parametrize(
    ("name", "content", "calls"),
    [
        ("one", "", [("weather", DEEP)]),
        ("two", "", [("weather", {"n": 1}), ("weather", {})]),
        ("aba", "", [("weather", {}), ("clock", {}), ("weather", {})]),
        ("mixed", "First.Then.Done.", [("clock", {}), ("weather", {"n": 2})]),
    ],
)
def test_c18_calls(agent: LiveServer, name: str, content: str, calls: list[Any]) -> None:
    assert both(agent, name, tools=TOOLS) == (content, "", calls, "tool_calls")


def test_c18_one_call_where_only_one_is_wanted(agent: LiveServer) -> None:
    found = both(agent, "aba", tools=TOOLS, parallel_tool_calls=False)
    assert found == ("", "", [("weather", {})], "tool_calls")


def test_c19_no_call(agent: LiveServer) -> None:
    assert both(agent, "plain", tools=TOOLS) == ("Just text.", "", [], "stop")
    assert both(agent, "broken", tools=TOOLS) == (TEXTS["broken"], "", [], "stop")
    # Calls are text where they were not asked for.
    assert both(agent, "one") == (ONE, "", [], "stop")
    assert both(agent, "one", tools=TOOLS, tool_choice="none") == (ONE, "", [], "stop")


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_c19_every_budget(agent: LiveServer, choice: str) -> None:
    for budget in range(1, len(ONE) + 3):
        content, _, calls, finish = both(
            agent, "one", tools=TOOLS, tool_choice=choice, max_tokens=budget
        )
        # The end token is one more.
        is_cut = budget <= len(ONE)
        made = choice == "auto" and budget >= len(ONE)
        assert finish == ("length" if is_cut else "tool_calls" if made else "stop")
        assert calls == ([("weather", DEEP)] if made else [])
        if choice == "none":
            assert content == ONE[:budget]
        else:
            assert content == (ONE[:budget] if budget < len("<tool_call>") else "")


def test_c19_a_stop_string_within_a_call(agent: LiveServer) -> None:
    assert both(agent, "one", tools=TOOLS, stop=["arguments"]) == ("", "", [], "stop")


@pytest.mark.parametrize(
    ("name", "reasoning", "content"),
    [
        ("think", "ab", "cd"),
        ("empty", "", "b"),
        ("blocks", "a", "b<think>c</think>"),
        ("almost", "a</thing", "b"),
        ("split", "aü", "b"),
        ("opened", "a", "b"),
        ("plain", "", "Just text."),
    ],
)
def test_c20_reasoning(agent: LiveServer, name: str, reasoning: str, content: str) -> None:
    assert both(agent, name) == (content, reasoning, [], "stop")


def test_c20_reasoning_then_text_then_a_call(agent: LiveServer) -> None:
    found = both(agent, "thought", tools=TOOLS)
    assert found == ("So.", "Hm ü\n", [("weather", DEEP)], "tool_calls")
    answer = agent.post(
        CHAT, {"model": "tiny", "temperature": 0, "messages": messages("thought"), "tools": TOOLS}
    )[1]
    details = answer["usage"]["completion_tokens_details"]
    # From the token that completes the first mark to the one that completes the last.
    inside = THOUGHT.index("</think>") + len("</think>") - len("<think>") + 1
    assert details == {"reasoning_tokens": inside}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "watch"}}},
            "tool_choice",
        ),
        ({"tools": TOOLS, "tool_choice": "often"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "often"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": allowing("watch")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowing()}, "tool_choice.allowed_tools.tools"),
        (
            {"tools": TOOLS, "tool_choice": allowing("clock", mode="often")},
            "tool_choice.allowed_tools.mode",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_refusals_name_the_field(agent: LiveServer, fields: dict[str, Any], param: str) -> None:
    status, answer, _ = agent.post(CHAT, {"model": "tiny", "messages": messages("one"), **fields})
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_model_without_a_known_way_to_call_takes_no_tools(chain: LiveServer) -> None:
    body = {"model": "tiny", "messages": messages("hello"), "tools": TOOLS}
    status, answer, _ = chain.post(CHAT, body)
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert "takes no tools" in answer["error"]["message"]
    assert chain.get("/v1/models/tiny")[1]["tool_format"] is None


def test_models_tell_the_formats(agent: LiveServer) -> None:
    _, entry, _ = agent.get("/v1/models/tiny")
    assert (entry["tool_format"], entry["reasoning_format"]) == ("hermes", "think")


def test_the_template_sees_tools_calls_and_results(agent: LiveServer) -> None:
    """The conversation of an agent, and what is made of it, as ids."""
    conversation = [
        {"role": "user", "content": "w?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"n": 1}'},
                },
                {"id": "call_2", "type": "function", "function": {"name": "clock"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "18°"}]},
        {"role": "user", "content": go("plain")},
    ]
    body = {"model": "tiny", "messages": conversation, "tools": TOOLS, "return_token_ids": True}
    status, answer, headers = agent.post(CHAT, body)
    assert status == 200, answer
    assert "x-ignored-fields" not in headers
    shown = b"".join(agent.text.token_bytes(token) for token in answer["prompt_token_ids"])
    text = shown.decode()
    assert text.startswith("TOOLS:[{")
    assert "Says <|im_end|> and more" in text
    assert agent.text.eos_token_ids[0] not in answer["prompt_token_ids"]
    assert 'assistant:hm<tool_call>call_1={"name": "weather", "arguments": {"n": 1}}' in text
    assert 'call_2={"name": "clock", "arguments": {}}' in text
    assert "tool:call_118°" in text


def prompt_of(server: LiveServer, **fields: Any) -> str:
    body = {"model": "tiny", "messages": messages("plain"), "return_token_ids": True, **fields}
    status, answer, _ = server.post(CHAT, body)
    assert status == 200, answer
    ids = answer["prompt_token_ids"]
    return b"".join(server.text.token_bytes(token) for token in ids).decode()


def test_only_allowed_tools_are_shown_and_forced(agent: LiveServer) -> None:
    alone = prompt_of(agent, tools=TOOLS[:1])
    assert "clock" in alone and "weather" not in alone
    for mode in ("auto", "required"):
        chosen = allowing("clock", "clock", mode=mode)
        assert prompt_of(agent, tools=TOOLS, tool_choice=chosen, max_tokens=1) == alone
    forced = whole(agent, "plain", tools=TOOLS, tool_choice=allowing("clock", mode="required"))
    assert [c["function"]["name"] for c in forced["message"]["tool_calls"]] == ["clock"]
    free = whole(agent, "plain", tools=TOOLS, tool_choice=allowing("clock"))
    assert free["message"]["content"] == "Just text."


def test_words_and_no_tools_in_other_forms(agent: LiveServer) -> None:
    hidden = prompt_of(agent, tools=TOOLS, tool_choice={"type": "none"})
    assert hidden == prompt_of(agent) == prompt_of(agent, tools=[], tool_choice="auto")
    shown = prompt_of(agent, tools=TOOLS)
    assert prompt_of(agent, tools=TOOLS, tool_choice={"type": "auto"}) == shown != hidden


def test_what_a_choice_holds_beside_its_names_is_listed_once(agent: LiveServer) -> None:
    chosen = allowing("clock", "weather") | {"mood": "good"}
    for tool in chosen["allowed_tools"]["tools"]:
        tool["function"]["strict"] = True
    body = {"model": "tiny", "messages": messages("plain"), "tools": TOOLS, "tool_choice": chosen}
    _, _, headers = agent.post(CHAT, body)
    assert headers["x-ignored-fields"] == (
        "tool_choice.mood, tool_choice.allowed_tools.tools.function.strict"
    )


def test_openai_client(agent: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as api:
        with api.chat.completions.stream(
            model="tiny",
            messages=messages("mixed"),  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
            temperature=0,
        ) as events:
            final = events.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls"
        assert final.message.tool_calls is not None
        names = [call.function.name for call in final.message.tool_calls]
        assert names == ["clock", "weather"]
        assert final.message.tool_calls[1].function.arguments == '{"n": 2}'


@pytest.mark.parametrize(
    ("path", "fields", "shown"),
    [
        (CHAT, {}, ""),
        (CHAT, {"reasoning_effort": "none"}, "THINK=False"),
        (CHAT, {"reasoning_effort": "high"}, "THINK=True"),
        (
            CHAT,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "THINK=True",
        ),
        ("/v1/responses", {"reasoning": {"effort": "none"}}, "THINK=False"),
        ("/v1/responses", {"reasoning": {"effort": "low"}}, "THINK=True"),
        ("/v1/messages", {"thinking": {"type": "disabled"}}, "THINK=False"),
        ("/v1/messages", {"thinking": {"type": "adaptive"}}, "THINK=True"),
    ],
)
def test_effort_reaches_the_template(
    agent: LiveServer, path: str, fields: dict[str, Any], shown: str
) -> None:
    """By the length of the prompt, which every endpoint tells: a byte is a token there."""

    def length(fields: dict[str, Any]) -> int:
        talk, most = "messages", "max_tokens"
        if path.endswith("/responses"):
            talk, most = "input", "max_output_tokens"
        body = {"model": "tiny", talk: messages("plain"), most: 20}
        status, answer, headers = agent.post(path, body | fields)
        assert status == 200, answer
        assert "effort" not in headers.get("x-ignored-fields", "")
        usage = answer["usage"]
        cached = usage.get("cache_read_input_tokens", 0)
        return int(usage.get("prompt_tokens", usage.get("input_tokens", 0)) + cached)

    assert length(fields) - length({}) == len(shown)


def test_effort_that_no_template_hears_is_listed(chain: LiveServer) -> None:
    body = {"model": "tiny", "messages": messages("hello"), "reasoning_effort": "low"}
    assert chain.post(CHAT, body)[2]["x-ignored-fields"] == "reasoning_effort"
    body["reasoning_effort"] = "much"
    assert chain.post(CHAT, body)[1]["error"]["param"] == "reasoning_effort"
