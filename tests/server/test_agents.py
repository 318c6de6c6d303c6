"""What real agents send beside what is documented: it works, and what had no effect is named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.server.live import LiveServer
from tokenspeed.server.app import App, create_app
from tokenspeed.server.keys import Keys
from tokenspeed.tokenizer import load_text_model

# Puts content into a row, as many templates do: one that is none would break it.
STRICT = """\
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for message in messages -%}
{{ message.role + ':' + message.content -}}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor -%}
{%- endfor -%}"""
USER = {"role": "user", "content": "hi"}
RUN = {
    "name": "run",
    "description": "runs it",
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"cmd": {"type": "string"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
SCHEMA = RUN["parameters"]
TOOL = {"type": "function", "function": {**RUN, "strict": True}}
CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd":"ls"}'}}
CALLED = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
CACHED = {"cache_control": {"type": "ephemeral"}}
BLOCK = {"type": "text", "text": "hi"}
USED = {"type": "tool_use", "id": "t1", "name": "run", "input": {"cmd": "ls"}}
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
SHELL = {"type": "function", **RUN, "strict": False}


@pytest.fixture(scope="module")
def strict(agent_live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """The agents' model behind another template."""
    source = Path(agent_live.plan.model.source.removeprefix("path:"))
    folder = Path(shutil.copytree(source, tmp_path_factory.mktemp("strict") / "m"))
    (folder / "chat_template.jinja").write_text(STRICT)
    text = load_text_model(folder, agent_live.plan)
    app = create_app(agent_live.plan, agent_live.engine, text, Keys())
    yield app
    app.close()


def tool_says(words: Any, **message: Any) -> list[Any]:
    said = {"role": "tool", "tool_call_id": "c1", "content": words}
    return [*CALLED[:1], {**CALLED[1], **message}, said]


def result(**block: Any) -> list[Any]:
    return [
        USER,
        {"role": "assistant", "content": [USED]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", **block}]},
    ]


# name: (fields, what X-Ignored-Fields must say)
CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "calls and null": ({"messages": tool_says("a")}, ""),
    "calls and nothing": ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, ""),
    "calls and ''": ({"messages": tool_says("a", content="")}, ""),
    "calls and []": ({"messages": tool_says("a", content=[])}, ""),
    "no calls and null": (
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": []}, USER]},
        "",
    ),
    "reasoning alone": (
        {"messages": [USER, {"role": "assistant", "content": None, "reasoning": "hm"}, USER]},
        "",
    ),
    "what the SDK sends back": (
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": "a",
                    "refusal": None,
                    "audio": None,
                    "function_call": None,
                    "tool_calls": None,
                    "annotations": [],
                },
                USER,
            ]
        },
        "messages.annotations",
    ),
    "a refusal": (
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                USER,
            ]
        },
        "",
    ),
    "results in parts": ({"messages": tool_says([BLOCK])}, ""),
    "results of nothing": ({"messages": tool_says([])}, ""),
    "results of null": ({"messages": tool_says(None)}, ""),
    "arguments of ''": (
        {
            "messages": tool_says(
                "a", tool_calls=[{**CALL, "function": {"name": "run", "arguments": ""}}]
            )
        },
        "",
    ),
    "calls with an index": (
        {"messages": tool_says("a", tool_calls=[{**CALL, "index": 0}])},
        "",
    ),
    "calls with what other vendors add": (
        {
            "messages": tool_says(
                "a",
                tool_calls=[
                    {**CALL, "extra_content": {"google": {}}},
                    {**CALL, "function": {"name": "run", "arguments": {}, "strict": True}},
                ],
            )
        },
        "messages.tool_calls.extra_content, messages.tool_calls.function.strict",
    ),
    "cache marks of litellm": (
        {
            "messages": [
                {"role": "system", "content": [{**BLOCK, **CACHED}]},
                {**USER, **CACHED},
            ],
            "tools": [{**TOOL, **CACHED}],
        },
        "messages.content.cache_control, messages.cache_control, tools.cache_control",
    ),
    "a tool without a schema": (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "mcp__git__log.v2",
                        "description": None,
                        "parameters": None,
                        "strict": None,
                    },
                }
            ]
        },
        "",
    ),
    "a developer": ({"messages": [{"role": "developer", "content": "x"}, USER]}, ""),
    "both limits": ({"max_completion_tokens": 1, "max_tokens": 1}, ""),
    "no tools": ({"tools": None, "tool_choice": "auto", "parallel_tool_calls": True}, ""),
    "everything that is null": (
        dict.fromkeys(("stop", "seed", "n", "logprobs", "response_format", "functions", "user")),
        "",
    ),
    "options of streams": (
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        "stream_options.include_obfuscation",
    ),
    "openai's extras": (
        {"store": False, "metadata": {"a": "b"}, "prompt_cache_key": "k", "verbosity": "low"},
        "store, metadata, prompt_cache_key, verbosity",
    ),
}
MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "claude code": (
        {
            "system": [{**BLOCK, **CACHED}, {**BLOCK, **CACHED}],
            "tools": [{"name": "Bash", "description": "x", "input_schema": SCHEMA, **CACHED}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "metadata": {"user_id": "user_a_account__session_b"},
            "output_config": {"effort": "medium"},
            "stream": True,
        },
        "cache_control, metadata, context_management",
    ),
    "results in blocks": ({"messages": result(content=[BLOCK])}, ""),
    "results of nothing": ({"messages": result(content=[])}, ""),
    "results without any": ({"messages": result(is_error=True)}, "messages.content.is_error"),
    "an empty turn": ({"messages": [USER, {"role": "assistant", "content": []}, USER]}, ""),
    "empty lists": ({"system": [], "tools": [], "stop_sequences": [], "mcp_servers": []}, ""),
    "a system message late": ({"messages": [USER, {"role": "system", "content": [BLOCK]}]}, ""),
    "a tool's kind": (
        {
            "tools": [
                {
                    "type": "custom",
                    "name": "Bash",
                    "input_schema": SCHEMA,
                    "eager_input_streaming": True,
                    "strict": True,
                }
            ]
        },
        "tools.eager_input_streaming",
    ),
}
RESPONSES: dict[str, tuple[dict[str, Any], str]] = {
    "codex": (
        {
            "instructions": "x",
            "input": [{**ITEM, "role": "developer"}, ITEM],
            "tools": [SHELL, {"type": "web_search", "external_web_access": False}],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "text": {"verbosity": "medium"},
        },
        "text.verbosity, tools.web_search, reasoning.summary, include, prompt_cache_key",
    ),
    "its second turn": (
        {
            "input": [
                ITEM,
                {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "z"},
                {"type": "function_call", "name": "run", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": [ITEM["content"][0]]},  # type: ignore[index]
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"role": "user", "content": "hi"},
            ]
        },
        "input.encrypted_content",
    ),
    "marks in parts": (
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi", **CACHED}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
                    ],
                },
                {"type": "function_call", "name": "run", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "output": "without an id"},
            ]
        },
        "input.cache_control",
    ),
    "a form with more than is known": (
        {
            "text": {
                "format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
                | {"mood": "good"}
            }
        },
        "text.format.mood",
    ),
    "everything that is null": (
        dict.fromkeys(("store", "background", "truncation", "prompt", "conversation", "text")),
        "",
    ),
}
CASES = [
    *(("/v1/chat/completions", name, *case) for name, case in CHATS.items()),
    *(("/v1/messages", name, *case) for name, case in MESSAGES.items()),
    *(("/v1/responses", name, *case) for name, case in RESPONSES.items()),
]


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    talk, most = (
        ("input", "max_output_tokens") if "responses" in path else ("messages", "max_tokens")
    )
    return {"model": "tiny", talk: [USER], most: 1, **fields}


@pytest.mark.parametrize(
    ("path", "fields", "ignored"),
    [(path, fields, ignored) for path, _, fields, ignored in CASES],
    ids=[f"{path.rpartition('/')[2]}-{name}" for path, name, _, _ in CASES],
)
def test_it_works_and_says_what_had_no_effect(
    agent: LiveServer, strict: App, path: str, fields: dict[str, Any], ignored: str
) -> None:
    response = agent.response_of(strict, path, body_of(path, fields))
    assert response.status_code == 200, response.text
    found = response.headers.get("x-ignored-fields", "").split(", ")
    # This model does not reason under that template, so what asks it to is named too.
    found = [name for name in found if not name.endswith(("effort", "thinking.type"))]
    assert sorted(found) == sorted(ignored.split(", "))
    if fields.get("stream"):
        assert '"error":{' not in response.text


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}]},
     "messages[0].content", "a string or a list of text parts"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages[0].content[0].type", "not 'image_url'"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
     "messages[0].content[0].text", "a string"),
    ("/v1/chat/completions", {"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
     "messages[0].content[0].type", "not 'image'"),
    ("/v1/messages", {"messages": result(content=[{"type": "image"}])},
     "messages[2].content[0].content[0].type", "not 'image'"),
    ("/v1/messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]},
     "tools[0].type", "'custom'"),
    ("/v1/messages", {"messages": [USER, {"role": "assistant", "content": "{"}]},
     "messages", "continue"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
     "input[0].content", "not 'input_image'"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "x", "": "hi"}]}]},
     "input[0].content", "not 'x'"),
    ("/v1/chat/completions", {"messages": tool_says("a", tool_calls=[{"id": "c"}])},
     "messages[1].tool_calls[0].function", "an object with a name"),
    ("/v1/chat/completions", {"messages": tool_says("a", tool_calls=[{"function": {"name": 1}}])},
     "messages[1].tool_calls[0].function.name", "a string"),
    ("/v1/responses", {"tools": [{"type": "local_shell"}]}, "tools[0].type", "'function'"),
    ("/v1/responses", {"previous_response_id": "r"}, "previous_response_id", "not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param", "words"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(
    agent: LiveServer, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    status, answer, _ = agent.post(path, body_of(path, fields))
    assert status == 400
    assert words in answer["error"]["message"]
    # Anthropic's envelope has no place for it but the message.
    assert answer["error"].get("param", param) == param


def test_anthropic_clients_list_models(agent: LiveServer) -> None:
    with anthropic.Anthropic(base_url=agent.url, api_key="x", max_retries=0) as api:
        page = api.models.list()
        assert [(model.id, model.display_name) for model in page] == [("tiny", "tiny")]
        assert api.models.retrieve("tiny").created_at == page.data[0].created_at
        assert not page.has_more
