"""The form that a client asks for: JSON, a regular expression, a choice, a grammar, tags.

OpenAI's `response_format`; `structured_outputs` with the names of vLLM; `regex`, `ebnf` and
`json_schema` as SGLang calls the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from llguidance.gbnf_to_lark import any_to_lark

from tokenspeed.grammar import lark
from tokenspeed.grammar.lark import Piece
from tokenspeed.grammar.limits import MAX_GRAMMAR_BYTES, GrammarError, checked_text
from tokenspeed.server.openai.errors import ApiError, bad_request
from tokenspeed.server.openai.fields import Fields

MAX_CHOICES = 4096
MAX_TAGS = 256
# Translated here, at some 3 us a byte.
MAX_GBNF_BYTES = 16 << 10
_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Form:
    """What the answer must be. `field` is how the request asked for it."""

    piece: Piece
    field: str


def invalid_form(field: str, why: str) -> ApiError:
    """The client's form cannot be used."""
    return bad_request(f"{field!r} cannot be used: {why}.", field, "invalid_grammar")


def read_form(fields: Fields) -> Form | None:
    """Raises ApiError 400 when the form is wrong, or when there are two."""
    found = [
        form
        for form in (
            read_format(fields, "response_format"),
            _structured(fields),
            *(_named(fields, name, make) for name, make in _ALIASES.items()),
        )
        if form is not None
    ]
    if len(found) > 1:
        names = " and ".join(repr(form.field) for form in found)
        raise bad_request(f"{names} exclude each other.", found[1].field)
    return found[0] if found else None


def read_format(fields: Fields, name: str) -> Form | None:
    """OpenAI's format object. Raises ApiError 400."""
    given = fields.object(name)
    if given is None:
        return None
    path = fields.path_of(name)
    match given.take("type"):
        case "text":
            return None
        case "json_object":
            return _form(path, lark.json_value, _OBJECT)
        case "json_schema":
            # The Responses API has the schema here, chats within.
            inner = given if given.take("schema") is not None else given.object("json_schema")
            if inner is None or inner.take("schema") is None:
                raise given.fail("json_schema", "an object with a 'schema'")
            inner.text("name", 256)
            inner.boolean("strict")
            inner.take("description")
            return _form(inner.path_of("schema"), lark.json_value, inner.take("schema"))
        case "structural_tag":
            return Form(_tags(given), path)
        case _:
            words = "'text', 'json_object', 'json_schema' or 'structural_tag'"
            raise given.fail("type", words)


def _structured(fields: Fields) -> Form | None:
    given = fields.object("structured_outputs")
    if given is None:
        return None
    forms = [_named(given, name, make) for name, make in _STRUCTURED.items()]
    if given.boolean("json_object"):
        forms.append(_form(given.path_of("json_object"), lark.json_value, _OBJECT))
    tag = given.object("structural_tag")
    if tag is not None:
        forms.append(Form(_tags(tag), given.path_of("structural_tag")))
    given.refuse({"whitespace_pattern": (), "disable_any_whitespace": (False,)})
    unknown = given.unread()
    if unknown:
        raise bad_request(f"{unknown[0]!r} is not known here.", unknown[0], "unsupported_parameter")
    found = [form for form in forms if form is not None]
    if len(found) != 1:
        expected = "one of " + ", ".join([*_STRUCTURED, "json_object", "structural_tag"])
        raise fields.fail("structured_outputs", f"an object with {expected}")
    return found[0]


def _named(fields: Fields, name: str, make: Callable[[Any], Piece]) -> Form | None:
    value = fields.take(name)
    return None if value is None else _form(fields.path_of(name), make, value)


def _form(path: str, make: Callable[[Any], Piece], value: Any) -> Form:
    try:
        return Form(make(value), path)
    except GrammarError as error:
        raise invalid_form(path, str(error)) from None


def _schema(value: Any) -> Piece:
    """A schema, or one as JSON text."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(checked_text(value))
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise GrammarError(f"it is not JSON: {error}") from None
    return lark.json_value(value)


def _regex(value: Any) -> Piece:
    if not isinstance(value, str) or not value:
        raise GrammarError("it must be a string")
    return lark.pattern(checked_text(value))


def _choice(value: Any) -> Piece:
    strings = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
    if not strings or not 0 < len(value) <= MAX_CHOICES:
        raise GrammarError(f"it must be a list of 1 to {MAX_CHOICES} strings, none of them empty")
    return lark.either(*map(lark.literal, value))


def _grammar(value: Any) -> Piece:
    """Lark, or GBNF, whose rules are written with "::="."""
    if not isinstance(value, str) or not value.strip():
        raise GrammarError("it must be a string")
    text = checked_text(value)
    if "::=" in text and len(text) > MAX_GBNF_BYTES:
        raise GrammarError(f"it is larger than {MAX_GBNF_BYTES} bytes; write it in Lark")
    try:
        text = any_to_lark(text)
    except Exception as error:  # the converter raises what it meets
        raise GrammarError(f"it is no grammar: {error}"[:300]) from None
    return lark.grammar(text, "client")


_ALIASES: dict[str, Callable[[Any], Piece]] = {
    "json_schema": _schema,
    "regex": _regex,
    "ebnf": _grammar,
}
_STRUCTURED: dict[str, Callable[[Any], Piece]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}


def _tags(given: Fields) -> Piece:
    """Text in which whatever begins like a trigger goes on as one of the structures does."""
    given.take("type")
    triggers, structures = given.take("triggers"), given.take("structures")
    if not isinstance(triggers, list) or not all(isinstance(t, str) and t for t in triggers):
        raise given.fail("triggers", "a list of strings")
    if not isinstance(structures, list) or not 0 < len(structures) <= MAX_TAGS:
        raise given.fail("structures", f"a list of 1 to {MAX_TAGS} objects")
    tags: list[tuple[str | int, Piece]] = []
    for place, entry in enumerate(structures):
        tag = given.part("structures", place, entry)
        begin, end = tag.text("begin", MAX_GRAMMAR_BYTES), tag.text("end", MAX_GRAMMAR_BYTES)
        trigger = next((t for t in triggers if begin and begin.startswith(t)), None)
        if begin is None or end is None or trigger is None:
            raise tag.fail("begin", "a string that begins with a trigger, beside a string 'end'")
        schema = tag.take("schema")
        if schema is None:
            raise tag.fail("schema", "a JSON schema")
        inner = _form(tag.path_of("schema"), lark.json_value, schema).piece
        rest = lark.literal(begin[len(trigger) :])
        tags.append((trigger, lark.row(rest, inner, lark.literal(end))))
    return lark.text_with(tags)
