"""Bodies of the Messages API: the same requests in other words.

Blocks become messages as chat templates take them: tool results messages of their own, thinking
the reasoning of its turn. What has no effect is listed, as everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

from tokenspeed.server.anthropic.errors import UNTHREADED
from tokenspeed.server.bodies import Entries
from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.fields import Fields
from tokenspeed.server.openai.form import read_format
from tokenspeed.server.openai.tools import (
    MAX_TOOLS,
    Choice,
    ToolUse,
    read_function,
    require_tools,
    tool_use,
)
from tokenspeed.server.openai.types import (
    REFUSED_THERE,
    SHARED,
    Effort,
    Limits,
    Options,
    read_effort,
    read_options,
    read_stops,
    read_thinking,
)

_SAME = (*SHARED, "max_tokens")
_REFUSED: Mapping[str, Collection[Any]] = {
    **REFUSED_THERE,
    "container": (),
    "mcp_servers": ([],),
    "compaction": (),
}
_ELSEWHERE: Mapping[str, str] = {
    "input": "messages",
    "prompt": "messages",
    "instructions": "system",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_tokens_to_sample": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "functions": "tools",
    "function_call": "tool_choice",
}
# Claude Code puts a line before its system prompt that differs from request to request, which
# would make every prefix a new one.
_ATTRIBUTION = "x-anthropic-billing-header:"


# What a message became, and names of its fields without effect.
_Read: TypeAlias = tuple[list[dict[str, Any]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """`thinking` is None where the request does not say whether to think."""

    options: Options
    messages: tuple[dict[str, Any], ...]
    tools: ToolUse | None
    thinking: bool | None
    effort: Effort
    ignored: tuple[str, ...]


def read_request(body: object, limits: Limits, *, counting: bool = False) -> MessagesRequest:
    """`counting`: the request asks for its length only. Raises ApiError 400."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    fields.elsewhere(_ELSEWHERE)
    if fields.take("thread") is not None:
        message = "'thread' is not supported: this server keeps no conversation; send it whole."
        raise bad_request(message, "thread", UNTHREADED)
    same = {name: fields.take(name) for name in _SAME}
    if same["max_tokens"] is None and not counting:
        code = "missing_required_parameter"
        raise bad_request("'max_tokens' is required.", "max_tokens", code)
    ignored: dict[str, None] = {}
    stops = read_stops(fields, "stop_sequences", alone=False)
    options = replace(read_options(Fields(same), limits, None, 1), stop=stops)
    turns = _Turns(ignored)
    turns.system(fields)
    turns.read(fields)
    effort, form = Effort(), read_format(fields, "output_format")
    output = fields.object("output_config")
    if output is not None:
        effort = read_effort(output, "effort", limits)
        form = read_format(output, "format") or form
        ignored |= dict.fromkeys(output.unread())
    tools = _tools(fields, ignored)
    thinking, budget = read_thinking(fields, limits)
    ignored |= dict.fromkeys(fields.unread())
    options = replace(options, form=form, budget=effort.budget if budget is None else budget)
    messages = tuple(turns.messages)
    if not counting and messages and messages[-1]["role"] == "assistant":
        message = "This server does not continue a message: the last one must be the user's."
        raise bad_request(message, "messages")
    return MessagesRequest(options, messages, tools, thinking, effort, tuple(ignored))


def _tools(fields: Fields, ignored: dict[str, None]) -> ToolUse | None:
    given = fields.object("tool_choice")
    parallel = given is None or not given.boolean("disable_parallel_tool_use")
    choice = _choice(given)
    value = fields.take("tools")
    if value is None or value == []:
        require_tools(choice)
        return None
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise fields.fail("tools", f"a list of at most {MAX_TOOLS} tools")
    functions = []
    for place, entry in enumerate(value):
        tool = Fields(entry, f"tools[{place}]")
        if tool.take("type") not in (None, "custom"):
            raise tool.fail("type", "'custom': this server runs no tools of its own")
        functions.append(read_function(tool, "input_schema"))
        ignored |= {_short(name, "tools"): None for name in tool.unread()}
    return tool_use(functions, parallel, choice)


def _choice(given: Fields | None) -> Choice:
    match None if given is None else given.take("type"):
        case "none":
            return Choice(none=True)
        case "any":
            return Choice(must=True)
        case "tool" if given is not None:
            return Choice(must=True, named=_required(given, "name"))
        case "auto":
            return Choice()
    if given is None:
        return Choice()
    raise given.fail("type", "'auto', 'any', 'tool' or 'none'")


def _short(name: str, root: str) -> str:
    """`tools[3].strict` -> `tools.strict`: the header must not grow with the request."""
    field = name.rpartition(".")[2]
    return field if field == "cache_control" else f"{root}.{field}"


class _Turns:
    """Gathers the messages for the template."""

    def __init__(self, ignored: dict[str, None]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._ignored = ignored

    def system(self, fields: Fields) -> None:
        texts = self._texts(fields, "system", optional=True)
        # An empty one is none: a model's own default must not give way to it.
        texts = [text for text in texts if text and not text.startswith(_ATTRIBUTION)]
        if texts:
            self.messages.append({"role": "system", "content": "\n".join(texts)})

    def read(self, fields: Fields) -> None:
        value = fields.take("messages")
        if not isinstance(value, list) or not value:
            raise fields.fail("messages", "a list of at least one message")
        read: list[_Read] = value.read if isinstance(value, Entries) else []
        for place, entry in enumerate(value[len(read) :], len(read)):
            turn = _Turns({})
            turn._message(Fields(entry, f"messages[{place}]"))
            read.append((turn.messages, tuple(turn._ignored)))
        for _, ignored in read:
            if ignored:
                self._ignored |= dict.fromkeys(ignored)
        # Turns of one side that follow one another are one, as the vendor says; many templates
        # refuse them else.
        told = (message for messages, _ in read for message in messages)
        for role, run in groupby(told, lambda message: message["role"]):
            turns = list(run)
            one = len(turns) > 1 and role in ("user", "assistant")
            self.messages += [_joined(role, turns)] if one else turns

    def _message(self, message: Fields) -> None:
        match message.take("role"):
            case "user":
                self._user(message)
            case "assistant":
                self._assistant(message)
            case "system":
                content = "\n".join(self._texts(message, "content"))
                self.messages.append({"role": "system", "content": content})
            case _:
                raise message.fail("role", "'user', 'assistant' or 'system'")
        self._ignored |= {_short(name, "messages"): None for name in message.unread()}

    def _user(self, message: Fields) -> None:
        texts: list[str] = []
        blocks = self._blocks(message, "content")
        if not blocks:
            raise message.fail("content", "a string or at least one block")
        for block in blocks:
            match block.take("type"):
                case "text":
                    texts.append(_required(block, "text"))
                case "tool_result":
                    self._flush(texts)
                    self._result(block)
                case _:
                    raise block.fail("type", "'text' or 'tool_result': this model reads text only")
            self._unread(block)
        self._flush(texts)

    def _flush(self, texts: list[str]) -> None:
        if texts:
            self.messages.append({"role": "user", "content": "\n".join(texts)})
            texts.clear()

    def _result(self, block: Fields) -> None:
        content = "\n".join(self._texts(block, "content", optional=True))
        call_id = block.text("tool_use_id", 256)
        self.messages.append({"role": "tool", "tool_call_id": call_id or "", "content": content})

    def _assistant(self, message: Fields) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for block in self._blocks(message, "content"):
            match block.take("type"):
                case "text":
                    texts.append(_required(block, "text"))
                case "thinking":
                    thoughts.append(_required(block, "thinking"))
                    block.take("signature")  # nothing here signs, so there is nothing to check
                case "redacted_thinking":
                    pass
                case "tool_use":
                    calls.append(_call(block))
                case _:
                    raise block.fail("type", "'text', 'thinking' or 'tool_use'")
            self._unread(block)
        read: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
        if calls:
            read |= {"content": "\n".join(texts) or None, "tool_calls": calls}
        if thoughts:
            read["reasoning_content"] = "\n".join(thoughts)
        self.messages.append(read)

    def _texts(self, fields: Fields, name: str, optional: bool = False) -> list[str]:
        if optional and fields.take(name) is None:
            return []
        texts = []
        for block in self._blocks(fields, name):
            if block.take("type") != "text":
                raise block.fail("type", "'text': this model reads text only")
            texts.append(_required(block, "text"))
            self._unread(block)
        return texts

    def _blocks(self, fields: Fields, name: str) -> list[Fields]:
        value = fields.take(name)
        if isinstance(value, str):
            return [Fields({"type": "text", "text": value}, name)]
        if not isinstance(value, list):
            raise fields.fail(name, "a string or a list of blocks")
        return [Fields(block, fields.path_of(f"{name}[{i}]")) for i, block in enumerate(value)]

    def _unread(self, block: Fields) -> None:
        self._ignored |= {_short(name, "messages.content"): None for name in block.unread()}


def _joined(role: str, turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One turn with what all of them say, think and call."""
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    thoughts = [turn["reasoning_content"] for turn in turns if "reasoning_content" in turn]
    texts = [turn["content"] for turn in turns if role == "user" or turn["content"]]
    joined: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if calls:
        joined |= {"content": joined["content"] or None, "tool_calls": calls}
    if thoughts:
        joined["reasoning_content"] = "\n".join(thoughts)
    return joined


def _required(block: Fields, name: str) -> str:
    value = block.text(name, 1 << 30)
    if value is None:
        raise block.fail(name, "a string")
    return value


def _call(block: Fields) -> dict[str, Any]:
    given = block.object("input")
    function = {"name": _required(block, "name"), "arguments": dict(given.items()) if given else {}}
    return {"id": block.text("id", 256) or "", "type": "function", "function": function}
