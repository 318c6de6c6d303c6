"""The tools of a request: what the template shows, and what the answer may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.fields import Fields
from tokenspeed.server.openai.messages import unsupported_choice

MAX_TOOLS = 1024
MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`shown` go to the template, `schemas` are those of the arguments by name; `parallel`: an
    answer may hold more than one call."""

    shown: tuple[dict[str, Any], ...]
    schemas: Mapping[str, Mapping[str, Any]]
    parallel: bool


def read_tools(fields: Fields) -> tuple[ToolUse | None, list[str]]:
    """The tools that are in use, None for none, and the names of fields without effect.

    Raises ApiError 400.
    """
    given = fields.take("tools")
    choice = fields.take("tool_choice")
    parallel = fields.take("parallel_tool_calls")
    if parallel is not None:
        fields.boolean("parallel_tool_calls")
    if choice not in (None, "none", "auto"):
        if choice == "required" or isinstance(choice, dict):
            raise unsupported_choice("tool_choice")
        raise fields.fail("tool_choice", "'none', 'auto', 'required' or a function")
    if given is None:
        return None, []
    if not isinstance(given, list) or not 0 < len(given) <= MAX_TOOLS:
        raise fields.fail("tools", f"a list of 1 to {MAX_TOOLS} tools; leave it out for none")
    ignored: dict[str, None] = {}
    read = [_tool(entry, f"tools[{place}]", ignored) for place, entry in enumerate(given)]
    use = tool_use(read, parallel is not False)
    return (None if choice == "none" else use), list(ignored)


def tool_use(functions: list[dict[str, Any]], parallel: bool) -> ToolUse:
    """`functions` have a name and perhaps a description and parameters. Raises ApiError 400."""
    schemas = {function["name"]: function.get("parameters") or {} for function in functions}
    if len(schemas) < len(functions):
        raise bad_request("Two tools have the same name.", "tools")
    shown = tuple({"type": "function", "function": function} for function in functions)
    return ToolUse(shown, schemas, parallel)


def _tool(entry: object, path: str, ignored: dict[str, None]) -> dict[str, Any]:
    tool = Fields(entry, path)
    if tool.take("type") != "function":
        raise tool.fail("type", "'function'")
    function = tool.object("function")
    if function is None:
        raise tool.fail("function", "an object with a name")
    read = read_function(function)
    # Arguments cannot be forced into the schema without a grammar: said, not hidden.
    ignored |= {f"tools.{name.split('.', 1)[1]}": None for name in function.unread()}
    return read


def read_function(function: Fields, parameters: str = "parameters") -> dict[str, Any]:
    """Name, description and parameters; `parameters` is the field that holds the schema."""
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
    return read
