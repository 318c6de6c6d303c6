"""The messages of a chat, in the form in which chat templates take them.

"developer" is read as "system". Text parts of a message are joined by a newline. Arguments of
earlier tool calls are given to the template as objects, as transformers does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from tokenspeed.server.bodies import Entries
from tokenspeed.server.openai.fields import Fields

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_NAME = 256
# A message as it was read, names of its unread fields, whether it says a control token.
_Read: TypeAlias = tuple[dict[str, Any], tuple[str, ...], bool]


@dataclass(frozen=True, slots=True)
class Messages:
    """`ignored` are names of fields in them that have no effect. `plain`: none of them says the
    text of a control token."""

    messages: tuple[dict[str, Any], ...]
    ignored: tuple[str, ...]
    plain: bool


def read_messages(fields: Fields, says_control: Callable[[object], bool]) -> Messages:
    """Raises ApiError 400."""
    value = fields.take("messages")
    if not isinstance(value, list) or not value:
        raise fields.fail("messages", "a list of at least one message")
    read: list[_Read] = value.read if isinstance(value, Entries) else []
    for place, entry in enumerate(value[len(read) :], len(read)):
        unread: tuple[str, ...] = ()
        if _is_plain(entry):
            message = entry
        else:
            given = Fields(entry, f"messages[{place}]")
            message = _message(given)
            unread = tuple(given.unread())
        read.append((message, unread, says_control(message)))
    return Messages(
        messages=tuple([message for message, _, _ in read]),
        ignored=tuple(dict.fromkeys(name for _, unread, _ in read for name in unread)),
        plain=not any(says for _, _, says in read),
    )


_PLAIN_ROLES = frozenset({"system", "user", "assistant", "tool"})


def _is_plain(entry: object) -> bool:
    """Whether reading it field by field would give it back as it is. Most messages of a long
    conversation are such, and all of them are read with every turn."""
    if type(entry) is not dict or type(entry.get("content")) is not str:
        return False
    role = entry.get("role")
    if type(role) is not str or role not in _PLAIN_ROLES:
        return False
    if role == "tool":
        call = entry.get("tool_call_id")
        return len(entry) == 3 and type(call) is str and len(call) <= _MAX_NAME
    return len(entry) == 2


def _message(message: Fields) -> dict[str, Any]:
    role = message.take("role")
    if role not in _ROLES:
        raise message.fail("role", "one of " + ", ".join(_ROLES))
    # The last two: the answer should go on with this message, which no template does by itself.
    message.refuse({"audio": (), "function_call": (), "prefix": (False,), "partial": (False,)})
    read: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = _calls(message) if role == "assistant" else []
    read["content"] = _content(message)
    if calls:
        read["content"] = read["content"] or None
        read["tool_calls"] = calls
    if role == "assistant":
        # Clients send back either of the names under which they got it.
        reasoning = message.text("reasoning_content", 1 << 30)
        reasoning = message.text("reasoning", 1 << 30) or reasoning
        if reasoning:
            read["reasoning_content"] = reasoning
    if role == "tool":
        read["tool_call_id"] = message.text("tool_call_id", _MAX_NAME) or ""
    name = message.text("name", _MAX_NAME)
    return read if name is None else {**read, "name": name}


def _calls(message: Fields) -> list[dict[str, Any]]:
    value = message.take("tool_calls")
    if value is None:
        return []
    if not isinstance(value, list):
        raise message.fail("tool_calls", "a list of tool calls")
    calls = []
    for place, entry in enumerate(value):
        call = message.part("tool_calls", place, entry)
        function = call.object("function")
        if function is None:
            raise call.fail("function", "an object with a name")
        name, given = function.take("name"), function.take("arguments")
        if not isinstance(name, str):
            raise function.fail("name", "a string")
        if not isinstance(given, str | dict | None):
            raise function.fail("arguments", "a string or an object")
        call.take("type")
        call.take("index")  # clients that gathered a stream send it back
        call_id = call.take("id")
        calls.append(
            {
                "id": call_id if isinstance(call_id, str) else "",
                "type": "function",
                "function": {"name": name, "arguments": _arguments(given)},
            }
        )
    return calls


def _arguments(given: str | dict[str, Any] | None) -> Any:
    """An object where there is one; what a client cut or made up stays the text it is."""
    if not isinstance(given, str):
        return given or {}
    if not given.strip():
        return {}
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return given
    return value if isinstance(value, dict) else given


def _content(message: Fields) -> str:
    value = message.take("content")
    if isinstance(value, str):
        return value
    # Turns of an assistant and results of tools may be empty, and clients write that in many ways.
    if value in (None, []) and message.take("role") in ("assistant", "tool"):
        return ""
    if not isinstance(value, list) or not value:
        raise message.fail("content", "a string or a list of text parts")
    return "\n".join(_part(part, message, place) for place, part in enumerate(value))


def _part(given: object, message: Fields, place: int) -> str:
    part = message.part("content", place, given)
    kind = part.take("type")
    if kind not in ("text", "input_text", "refusal"):
        raise part.fail("type", "'text': this model reads text only")
    name = "refusal" if kind == "refusal" else "text"
    text = part.take(name)
    if not isinstance(text, str):
        raise part.fail(name, "a string")
    return text
