"""What stands between the marks of a tool call, family by family.

Each function takes that text and the request's tools and gives the calls in it, or raises BadCall.
JSON is passed on as it was written, never mended. Values of the XML-like families have no type of
their own: the tool's schema says what they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tokenspeed.server.parsers.parts import BadCall, Call, Tools


class _Named(msgspec.Struct):
    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_named_decoder = msgspec.json.Decoder(_Named)


def json_object(text: str) -> str:
    """The text of a JSON object, checked."""
    text = text.strip()
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadCall(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadCall("the arguments are no object")
    return text


def named_json(body: str, tools: Tools) -> list[Call]:
    """`{"name": ..., "arguments": {...}}`; Llama says "parameters"; or a list of such objects."""
    text = body.strip()
    if text.startswith("["):
        try:
            entries = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise BadCall(f"not JSON: {error}") from None
        if not entries:
            raise BadCall("no call in the list")
        return [_named_call(bytes(entry).decode()) for entry in entries]
    return [_named_call(text)]


def _named_call(text: str) -> Call:
    json_object(text)
    try:
        named = _named_decoder.decode(text)
    except msgspec.DecodeError as error:
        raise BadCall(str(error)) from None
    given = named.parameters if named.arguments is msgspec.UNSET else named.arguments
    if not named.name or given is msgspec.UNSET:
        raise BadCall("no name, or no arguments")
    arguments = bytes(given).decode()
    if arguments.startswith('"'):  # JSON within a string of JSON
        arguments = msgspec.json.decode(arguments)
    return Call(named.name, json_object(arguments))


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]+)>(.*?)</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL
)


def function_parameters(body: str, tools: Tools) -> list[Call]:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`"""
    found = _FUNCTION.fullmatch(body)
    if found is None:
        raise BadCall("no function")
    name = found[1].strip()
    return [Call(name, _typed(_all(_PARAMETER, found[2]), tools.get(name, {})))]


_ARGUMENT = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|\Z))", re.DOTALL
)


def key_values(body: str, tools: Tools) -> list[Call]:
    """`NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`"""
    name, mark, rest = body.partition("<arg_key>")
    name = name.strip()
    if not name or "<" in name:
        raise BadCall("no name")
    return [Call(name, _typed(_all(_ARGUMENT, mark + rest), tools.get(name, {})))]


_INVOKE = re.compile(
    r"\s*<invoke name=\"?([^\">]+)\"?>(.*?)</invoke>(?=\s*(?:<invoke|\Z))", re.DOTALL
)
_NAMED_PARAMETER = re.compile(
    r"\s*<parameter name=\"?([^\">]+)\"?>(.*?)</parameter>(?=\s*(?:<parameter name|\Z))", re.DOTALL
)


def invocations(body: str, tools: Tools) -> list[Call]:
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, once or more."""
    found = _all(_INVOKE, body)
    if not found:
        raise BadCall("no invocation")
    return [
        Call(name, _typed(_all(_NAMED_PARAMETER, inner), tools.get(name, {})))
        for name, inner in found
    ]


_FENCED = re.compile(r"(?:\A|\n)```json\n(.*)\n```\s*\Z", re.DOTALL)


def separated(body: str, tools: Tools) -> list[Call]:
    """`function<sep>NAME`, then JSON in a fence; or, newer, `NAME<sep>JSON`."""
    head, mark, rest = body.partition("<｜tool▁sep｜>")
    if not mark:
        raise BadCall("no separator")
    if head.strip() == "function":
        name, _, rest = rest.partition("\n")
        fenced = _FENCED.search(rest)
        if fenced is None:
            raise BadCall("no fence")
        return [Call(_name(name), json_object(fenced[1]))]
    return [Call(_name(head), json_object(rest))]


_OWN_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


def identified(body: str, tools: Tools) -> list[Call]:
    """`functions.NAME:INDEX<argument mark>JSON`; what stands first is also the call's id."""
    head, mark, rest = body.partition("<|tool_call_argument_begin|>")
    found = _OWN_ID.fullmatch(head.strip())
    if not mark or found is None:
        raise BadCall("no name")
    return [Call(found[1], json_object(rest), head.strip())]


def _name(text: str) -> str:
    if not text.strip():
        raise BadCall("no name")
    return text.strip()


def _all(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Every match, one after the other with nothing but space between and around them."""
    found, at = [], 0
    while match := pattern.match(text, at):
        found.append((match[1].strip(), match[2]))
        at = match.end()
    if text[at:].strip():
        raise BadCall("something else between the arguments")
    return found


def _typed(pairs: Iterable[tuple[str, str]], schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    arguments: dict[str, Any] = {}
    for key, value in pairs:
        if key in arguments:
            raise BadCall("an argument given twice")
        arguments[key] = _value(value, types_of(properties.get(key), schema))
    return json.dumps(arguments, ensure_ascii=False)


def types_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Names of the JSON types that a schema names; none where it names none. `root` is the schema
    that it is a part of."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return types_of(_referred(reference, root), root, depth + 1)
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for word in ("anyOf", "oneOf", "allOf"):
        for part in schema[word] if isinstance(schema.get(word), list) else ():
            types |= types_of(part, root, depth + 1)
    if not types and isinstance(schema.get("enum"), list):
        types = {"string" if isinstance(value, str) else "other" for value in schema["enum"]}
    return {name for name in types if isinstance(name, str)}


# Schemas may refer to themselves.
_MAX_DEPTH = 16


def _referred(reference: str, root: object) -> object:
    """What a reference within the same schema points to."""
    place: object = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def _value(text: str, types: set[str]) -> Any:
    """Models put one line break around a value; the rest of the space is part of it."""
    text = text.removeprefix("\n").removesuffix("\n")
    if types <= {"string"}:
        return text
    if "boolean" in types and text.strip() in ("True", "False"):
        return text.strip() == "True"
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text
    return value if "string" not in types or not isinstance(value, str) else text
