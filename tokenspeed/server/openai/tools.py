"""The tools of a request: what the template shows, and what the answer may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.fields import Fields

MAX_TOOLS = 1024
MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`shown` go to the template, `schemas` are those of the arguments by name; `parallel`: an
    answer may hold more than one call. The arguments of `strict` tools satisfy their schema to the
    letter. `must`: the answer is at least one call, of the tool `named` where that is given."""

    shown: tuple[dict[str, Any], ...]
    schemas: Mapping[str, Mapping[str, Any]]
    parallel: bool
    strict: frozenset[str] = frozenset()
    must: bool = False
    named: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools the answer may or must call. `none`: they are not even shown; `allowed`: only
    these are, where that is given."""

    none: bool = False
    must: bool = False
    named: str | None = None
    allowed: tuple[str, ...] | None = None


def read_tools(fields: Fields) -> tuple[ToolUse | None, list[str]]:
    """The tools that are in use, None for none, and the names of fields without effect.

    Raises ApiError 400.
    """
    given = fields.take("tools")
    choice = read_choice(fields)
    parallel = fields.take("parallel_tool_calls")
    if parallel is not None:
        fields.boolean("parallel_tool_calls")
    if given is None or given == []:
        require_tools(choice)
        return None, []
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise fields.fail("tools", f"a list of at most {MAX_TOOLS} tools")
    ignored: dict[str, None] = {}
    read = [_tool(entry, f"tools[{place}]", ignored) for place, entry in enumerate(given)]
    return tool_use(read, parallel is not False, choice), list(ignored)


def read_choice(fields: Fields) -> Choice:
    """`tool_choice` of the OpenAI APIs: a word, or an object that names functions. Raises ApiError
    400."""
    value = fields.take("tool_choice")
    if not isinstance(value, dict):
        return _word(fields, value)
    given = fields.object("tool_choice")
    assert given is not None
    match given.take("type"):
        case "function":
            return Choice(must=True, named=_named(given))
        case "allowed_tools":
            return _allowed(_deeper(given, "allowed_tools"))
        case str(word):  # what other clients write for the word alone
            return _word(fields, word)
    raise fields.fail("tool_choice", _CHOICES)


_CHOICES = "'none', 'auto', 'required', the name of a function or 'allowed_tools'"


def _word(fields: Fields, value: object) -> Choice:
    match value:
        case None | "auto":
            return Choice()
        case "none":
            return Choice(none=True)
        case "required":
            return Choice(must=True)
    raise fields.fail("tool_choice", _CHOICES)


def _deeper(given: Fields, name: str) -> Fields:
    """Chats have one level more than the Responses API, named like the type."""
    inner = given.object(name)
    return given if inner is None else inner


def _named(given: Fields) -> str:
    function = _deeper(given, "function")
    name = function.take("name")
    if not isinstance(name, str):
        raise function.fail("name", "the name of a function")
    return name


def _allowed(given: Fields) -> Choice:
    mode = given.choice("mode", ("auto", "required"))
    tools = given.take("tools")
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise given.fail("tools", f"a list of 1 to {MAX_TOOLS} tools")
    names = []
    for place, entry in enumerate(tools):
        tool = given.part("tools", place, entry)
        if tool.take("type") != "function":
            raise tool.fail("type", "'function'")
        names.append(_named(tool))
    return Choice(must=mode == "required", allowed=tuple(names))


def require_tools(choice: Choice) -> None:
    """For requests without any. Raises ApiError 400 when one must be called."""
    if choice.must:
        raise bad_request("'tool_choice' asks for a call, but there are no 'tools'.", "tool_choice")


@dataclass(frozen=True, slots=True)
class Function:
    """One tool: what the template is shown, and whether its schema is strict."""

    shown: dict[str, Any]
    strict: bool


def tool_use(functions: list[Function], parallel: bool, choice: Choice) -> ToolUse | None:
    """None where none may be called. Raises ApiError 400."""
    named = {one.shown["name"]: one for one in functions}
    if len(named) < len(functions):
        raise bad_request("Two tools have the same name.", "tools")
    for name in choice.allowed or (choice.named,):
        if name is not None and name not in named:
            message = f"'tool_choice' names {name[:MAX_NAME]!r}, which is none of the 'tools'."
            raise bad_request(message, "tool_choice")
    if choice.none:
        return None
    if choice.allowed is not None:
        named = {name: one for name, one in named.items() if name in choice.allowed}
    return ToolUse(
        shown=tuple({"type": "function", "function": one.shown} for one in named.values()),
        schemas={name: one.shown.get("parameters") or {} for name, one in named.items()},
        parallel=parallel,
        strict=frozenset(name for name, one in named.items() if one.strict),
        must=choice.must,
        named=choice.named,
    )


def _tool(entry: object, path: str, ignored: dict[str, None]) -> Function:
    tool = Fields(entry, path)
    if tool.take("type") != "function":
        raise tool.fail("type", "'function'")
    function = tool.object("function")
    if function is None:
        raise tool.fail("function", "an object with a name")
    read = read_function(function)
    ignored |= dict.fromkeys(tool.unread())
    return read


def read_function(function: Fields, parameters: str = "parameters") -> Function:
    """Name, description, parameters and strictness; `parameters` is the field with the schema."""
    name = function.text("name", MAX_NAME)
    if not name or not name.isprintable():
        raise function.fail("name", f"a name of 1 to {MAX_NAME} characters")
    read: dict[str, Any] = {"name": name}
    description = function.text("description", 1 << 20)
    if description is not None:
        read["description"] = description
    schema = function.object(parameters)
    if schema is not None:
        read["parameters"] = dict(schema.items())
    return Function(read, function.boolean("strict"))
