"""How each family writes a tool call, as grammars: what `calls` reads, the other way round.

Every function takes the name of a tool and what its arguments must be, and gives what stands
between the marks of one call, with the spaces that models of the family put there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenspeed.grammar import lark
from tokenspeed.grammar.lark import Piece
from tokenspeed.grammar.limits import GrammarError
from tokenspeed.server.parsers.calls import types_of

# Keywords of strings that no grammar for unquoted text is made of.
_QUOTED_ONLY = ("pattern", "format", "minLength", "maxLength")


class Spelling:
    """How a model writes marks: as control tokens, or as text. `special_id` gives the id of the
    control token that a text is, None for text."""

    def __init__(self, special_id: Callable[[str], int | None]) -> None:
        self._special_id = special_id
        self._names = 0

    def trigger(self, mark: str) -> str | int:
        """What `lark.text_with` looks for."""
        token = self._special_id(mark)
        return mark if token is None else token

    def mark(self, text: str) -> Piece:
        token = self._special_id(text)
        return lark.literal(text) if token is None else lark.token(token)

    def until(self, mark: str) -> Piece:
        """Any text, and then the mark."""
        token = self._special_id(mark)
        if token is not None:
            return lark.row(lark.pattern(lark.ANY_TEXT), lark.token(token))
        return lark.text_until(mark, self.name("until"))

    def name(self, stem: str) -> str:
        """One for a rule, unlike all others of this grammar."""
        self._names += 1
        return f"{stem}_{self._names}"


@dataclass(frozen=True, slots=True)
class Signature:
    """`strict`: the schema is kept to the letter, or refused; else as far as it can be."""

    name: str
    schema: Mapping[str, Any]
    strict: bool

    def json(self) -> Piece:
        """The arguments as JSON."""
        return lark.json_value({"type": "object", **self.schema}, lenient=not self.strict)


Write = Callable[[Signature, Spelling], Piece]


def hermes(call: Signature, spelling: Spelling) -> Piece:
    begin = f'\n{{"name": {_quoted(call.name)}, "arguments": '
    return lark.row(lark.literal(begin), call.json(), lark.literal("}\n"))


def bare(key: str) -> Write:
    """`key` is the field that holds the arguments."""

    def write(call: Signature, spelling: Spelling) -> Piece:
        begin = lark.literal(f'{{"name": {_quoted(call.name)}, "{key}": ')
        return lark.row(begin, call.json(), lark.literal("}"))

    return write


def function_parameters(call: Signature, spelling: Spelling) -> Piece:
    form = _Fields("<parameter=", ">\n", "\n</parameter>", "</parameter>\n")
    begin = lark.literal(f"\n<function={call.name}>\n")
    return lark.row(begin, form.all(call, spelling), lark.literal("</function>\n"))


def key_values(call: Signature, spelling: Spelling) -> Piece:
    form = _Fields("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "</arg_value>\n")
    return lark.row(lark.literal(f"{call.name}\n"), form.all(call, spelling))


def invocations(call: Signature, spelling: Spelling) -> Piece:
    form = _Fields('<parameter name="', '">', "</parameter>", "</parameter>\n")
    begin = lark.literal(f'\n<invoke name="{call.name}">\n')
    return lark.row(begin, form.all(call, spelling), lark.literal("</invoke>\n"))


def fenced(call: Signature, spelling: Spelling) -> Piece:
    name = lark.literal(f"{call.name}\n```json\n")
    separator = spelling.mark("<｜tool▁sep｜>")
    return lark.row(lark.literal("function"), separator, name, call.json(), lark.literal("\n```"))


def separated(call: Signature, spelling: Spelling) -> Piece:
    return lark.row(lark.literal(call.name), spelling.mark("<｜tool▁sep｜>"), call.json())


def identified(call: Signature, spelling: Spelling) -> Piece:
    number = lark.pattern("[0-9]{1,3}")
    mark = spelling.mark("<|tool_call_argument_begin|>")
    return lark.row(lark.literal(f"functions.{call.name}:"), number, mark, call.json())


@dataclass(frozen=True, slots=True)
class _Fields:
    """Arguments one by one, their strings unquoted: `begin` KEY `middle` VALUE `end`. `quit` ends
    text; `end` begins with it or with what is left of it after a line break."""

    begin: str
    middle: str
    quit: str
    end: str

    def all(self, call: Signature, spelling: Spelling) -> Piece:
        properties = call.schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return lark.EMPTY if call.strict or properties else self._any(spelling)
        required = call.schema.get("required")
        required = required if isinstance(required, list) else []
        pieces = []
        for key, schema in properties.items():
            piece = self._one(key, schema, call, spelling)
            pieces.append(piece if key in required else lark.optional(piece))
        return lark.row(*pieces)

    def _any(self, spelling: Spelling) -> Piece:
        """Of a tool that does not say what it takes."""
        key = lark.pattern('[^<>"\\n]{1,64}')
        one = lark.row(lark.literal(self.begin), key, lark.literal(self.middle))
        return lark.any_number(lark.row(one, spelling.until(self.quit), self._rest()))

    def _rest(self) -> Piece:
        return lark.optional(lark.literal("\n"))

    def _one(self, key: str, schema: Any, call: Signature, spelling: Spelling) -> Piece:
        begin = lark.literal(f"{self.begin}{key}{self.middle}")
        schema = schema if isinstance(schema, Mapping) else {}
        if not types_of(schema, call.schema) <= {"string"}:
            shared = {name: call.schema[name] for name in _SHARED if name in call.schema}
            value = lark.json_value({**shared, **schema}, lenient=not call.strict)
            rest = self.end if self.quit == self.end.rstrip("\n") else "\n" + self.end
            return lark.row(begin, value, lark.literal(rest))
        words = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            texts = lark.either(*map(lark.literal, words))
            return lark.row(begin, texts, lark.literal(self.quit), self._rest())
        unkept = next((word for word in _QUOTED_ONLY if word in schema), None)
        if call.strict and unkept is not None:
            raise GrammarError(
                f"{unkept!r} of the property {key!r} cannot be enforced in the way in which this "
                "model writes strings"
            )
        return lark.row(begin, spelling.until(self.quit), self._rest())


_SHARED = ("$defs", "definitions")


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
