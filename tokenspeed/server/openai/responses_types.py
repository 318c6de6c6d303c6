"""Bodies of /v1/responses: the same requests, their conversation as a list of items.

Nothing is stored, so nothing can be continued by id: the whole conversation comes with every
request, as agents send it anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.fields import Fields
from tokenspeed.server.openai.form import read_format
from tokenspeed.server.openai.tools import (
    MAX_TOOLS,
    ToolUse,
    read_choice,
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
)

_SAME = (*SHARED, "stop")
_REFUSED: Mapping[str, Collection[Any]] = {
    **REFUSED_THERE,
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "context_management": (),
}
_ELSEWHERE: Mapping[str, str] = {
    "messages": "input",
    "system": "instructions",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "stop_sequences": "stop",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "functions": "tools",
    "function_call": "tool_choice",
}
# Types of parts, and the field that holds their words.
_WORDS = {
    **dict.fromkeys(("input_text", "output_text", "text", "reasoning_text"), "text"),
    "refusal": "refusal",
}
_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
# Codex offers it to every model beside its own tools. A model that is not shown it does without.
_SEARCH = "web_search"
_MAX_TEXT = 1 << 30


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """`echo` are fields of the request that its response repeats."""

    options: Options
    messages: tuple[dict[str, Any], ...]
    tools: ToolUse | None
    template_variables: Mapping[str, Any]
    echo: Mapping[str, Any]
    ignored: tuple[str, ...]


def read_responses(body: object, limits: Limits) -> ResponsesRequest:
    """Raises ApiError 400 naming the first field that is wrong."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    fields.elsewhere(_ELSEWHERE)
    if fields.boolean("store"):
        fields.forget("store")  # the answer says that it was not
    same = {name: fields.take(name) for name in _SAME}
    most = fields.integer("max_output_tokens", 1, 2**31 - 1)
    options = read_options(Fields(same | {"max_tokens": most}), limits, None, 1)
    ignored: dict[str, None] = {}
    text = fields.object("text")
    if text is not None:
        options = replace(options, form=read_format(text, "format"))
        ignored |= dict.fromkeys(text.unread())
    items = _Items(ignored)
    instructions = fields.text("instructions", _MAX_TEXT)
    if instructions:
        items.messages.append({"role": "system", "content": instructions})
    items.read(fields)
    tools = _tools(fields, ignored)
    effort = _effort(fields, limits, ignored)
    metadata = fields.take("metadata")
    ignored |= dict.fromkeys(fields.unread())
    echo = {
        "instructions": instructions,
        "max_output_tokens": most,
        "metadata": metadata if isinstance(metadata, dict) else {},
        "parallel_tool_calls": tools is None or tools.parallel,
        "temperature": options.sampling.temperature,
        "tool_choice": fields.take("tool_choice") or "auto",
        "tools": fields.take("tools") or [],
        "top_p": options.sampling.top_p,
    }
    if text is not None:
        echo["text"] = fields.take("text")
    return ResponsesRequest(
        options.thinking(effort.budget),
        tuple(items.messages),
        tools,
        effort.variables,
        echo,
        tuple(ignored),
    )


def _effort(fields: Fields, limits: Limits, ignored: dict[str, None]) -> Effort:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return Effort()
    effort = read_effort(reasoning, "effort", limits)
    ignored |= dict.fromkeys(reasoning.unread())
    return effort


def _tools(fields: Fields, ignored: dict[str, None]) -> ToolUse | None:
    choice = read_choice(fields)
    parallel = fields.take("parallel_tool_calls")
    if parallel is not None:
        fields.boolean("parallel_tool_calls")
    value = fields.take("tools")
    if value is None or value == []:
        require_tools(choice)
        return None
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise fields.fail("tools", f"a list of at most {MAX_TOOLS} tools")
    functions = []
    for place, entry in enumerate(value):
        tool = Fields(entry, f"tools[{place}]")
        kind = tool.take("type")
        if isinstance(kind, str) and kind.startswith(_SEARCH):
            ignored["tools.web_search"] = None
            continue
        if kind != "function":
            raise tool.fail("type", "'function': this server runs no tools of its own")
        functions.append(read_function(tool))
        ignored |= {f"tools.{name.rpartition('.')[2]}": None for name in tool.unread()}
    return tool_use(functions, parallel is not False, choice)


class _Items:
    """Gathers the messages for the template. Reasoning, text and calls that follow one another
    are one turn of the assistant."""

    def __init__(self, ignored: dict[str, None]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._ignored = ignored

    def read(self, fields: Fields) -> None:
        value = fields.take("input")
        if isinstance(value, str):
            self.messages.append({"role": "user", "content": value})
            return
        if not isinstance(value, list) or not value:
            raise fields.fail("input", "a string or a list of items")
        for place, entry in enumerate(value):
            item = Fields(entry, f"input[{place}]")
            self._item(item)
            item.take("id")
            item.take("status")
            names = item.unread()
            self._ignored |= {f"input.{name.rpartition('.')[2]}": None for name in names}
        for message in self.messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "".join(message["reasoning_content"])

    def _item(self, item: Fields) -> None:
        match item.take("type"):
            case None | "message":
                self._message(item)
            case "reasoning":
                # What was encrypted elsewhere cannot be read here, and summaries are not thoughts.
                item.take("summary")
                if item.take("content"):
                    text = _text(item, "content")
                    self._turn().setdefault("reasoning_content", []).append(text)
            case "function_call":
                self._call(item)
            case "function_call_output":
                call_id = item.text("call_id", 256) or ""
                content = _text(item, "output")
                self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case _:
                raise item.fail(
                    "type", "'message', 'reasoning', 'function_call' or 'function_call_output'"
                )

    def _message(self, item: Fields) -> None:
        role = _ROLES.get(str(item.take("role")))
        if role is None:
            raise item.fail("role", "one of " + ", ".join(_ROLES))
        content = _text(item, "content")
        turn = self._turn() if role == "assistant" else None
        if turn is None or turn["content"] is not None or "tool_calls" in turn:
            turn = {"role": role}
            self.messages.append(turn)
        turn["content"] = content

    def _call(self, item: Fields) -> None:
        name, given = item.text("name", 256), item.text("arguments", _MAX_TEXT)
        if not name:
            raise item.fail("name", "the name of a function")
        arguments: Any = given or "{}"
        try:
            value = msgspec.json.decode(arguments)
            arguments = value if isinstance(value, dict) else arguments
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            pass  # what was cut stays the text it is
        function = {"name": name, "arguments": arguments}
        call_id = item.text("call_id", 256) or ""
        call = {"id": call_id, "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def _turn(self) -> dict[str, Any]:
        """The assistant's turn that is under way, else a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        return self.messages[-1]


def _text(item: Fields, name: str) -> str:
    value = item.take(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise item.fail(name, "a string or a list of text parts")
    texts = []
    for place, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        word = _WORDS.get(kind) if isinstance(kind, str) else None
        text = part.get(word) if word is not None else None
        if word is None or not isinstance(text, str):
            where = item.path_of(name)
            shown = f", not {kind[:40]!r}" if isinstance(kind, str) else ""
            message = f"{where!r} may hold text parts only{shown}: this model reads text."
            raise bad_request(message, where)
        known = item.part(name, place, part)
        # The last two are what answers have.
        for field in ("type", word, "annotations", "logprobs"):
            known.take(field)
        texts.append(text)
    return "\n".join(texts)
