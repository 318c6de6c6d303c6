"""Pieces of a grammar in llguidance's dialect of Lark.

A Piece is an expression and the grammars of its own that it refers to. Pieces are put in a row,
made alternatives, repeated, and in the end written as one text (`write`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from llguidance import regex_to_lark

from tokenspeed.grammar.limits import GrammarError, checked_json, checked_text
from tokenspeed.grammar.schemas import telling

# Between the parts of a JSON text: nothing, a space, or a new line with its indent. Without a
# bound a model may write blanks for ever.
_BLANKS = "( |\\n[ \\t]{0,64})?"
ANY_TEXT = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class Piece:
    """`rules` are further lines of the grammar, by the names that the expression uses; `grammars`
    are whole ones, by the names that it uses behind "@"."""

    expression: str
    rules: Mapping[str, str] = field(default_factory=dict)
    grammars: Mapping[str, str] = field(default_factory=dict)


EMPTY = Piece('""')


def literal(text: str) -> Piece:
    """Exactly this text."""
    return Piece(json.dumps(text)) if text else EMPTY


def token(token_id: int) -> Piece:
    """Exactly this token, a control token above all: those have no text to match."""
    return Piece(f"<[{token_id}]>")


def pattern(expression: str) -> Piece:
    """Text that a regular expression matches as a whole. Its \\d and \\w are ASCII."""
    return Piece(f"/{regex_to_lark(expression, 'dw')}/") if expression else EMPTY


def json_value(schema: Any, *, lenient: bool = False) -> Piece:
    """JSON text that satisfies the schema; `lenient`: as far as its keywords can be enforced, where
    otherwise one that cannot makes the grammar invalid.

    Raises GrammarError when the schema is too large, or neither an object nor a boolean.
    """
    if not isinstance(schema, dict | bool):
        raise GrammarError("a schema must be a JSON object")
    options: dict[str, Any] = {"whitespace_pattern": _BLANKS}
    if lenient:
        options |= {"lenient": True, "coerce_one_of": True}
    if schema is False:
        raise GrammarError("nothing satisfies the schema false")
    checked_json(schema)
    # Last: a client's own options would be read as well.
    written = {**({} if schema is True else telling(schema)), "x-guidance": options}
    return Piece(f"%json {checked_json(written)}")


def text_until(mark: str, name: str) -> Piece:
    """Any text, and then `mark`, which it does not hold before its end. `name`: of the rule."""
    return Piece(name, {f"{name}[suffix={json.dumps(mark)}]": f"/{ANY_TEXT}/"})


def text_with(tags: Sequence[tuple[str | int, Piece]]) -> Piece:
    """Any text, in which a trigger (a text, or the id of a token) is always followed by its piece,
    whereupon the text goes on. Of equal triggers any piece may follow."""
    rules = {"TAG_TEXT": f"/{ANY_TEXT}/"}
    grammars: dict[str, str] = {}
    names = []
    for place, (trigger, body) in enumerate(tags):
        name = f"tag_{place}"
        if isinstance(trigger, int):
            begin = f"TAG_TEXT <[{trigger}]>"
        else:
            begin = f"{name}_begin"
            rules[f"{begin}[lazy]"] = f"TAG_TEXT {json.dumps(trigger)}"
        rules[name] = f"{begin} {body.expression}"
        rules |= body.rules
        grammars |= body.grammars
        names.append(name)
    return Piece(f"({' | '.join(names)})* TAG_TEXT", rules, grammars)


def grammar(text: str, name: str) -> Piece:
    """A whole grammar with a rule `start`. `name`: unlike that of any other in the same text."""
    return Piece(f"@{name}", grammars={name: checked_text(text)})


def row(*pieces: Piece) -> Piece:
    """One after the other."""
    return _joined(" ", pieces)


def either(*pieces: Piece) -> Piece:
    """One of them."""
    return _wrapped(_joined(" | ", pieces))


def optional(piece: Piece) -> Piece:
    return _repeated(piece, "?")


def any_number(piece: Piece) -> Piece:
    """None, one or more."""
    return _repeated(piece, "*")


def rule(name: str, piece: Piece) -> Piece:
    """The same under a name, so that it is written once however often it is used."""
    return Piece(name, {**piece.rules, name: piece.expression}, piece.grammars)


def write(piece: Piece) -> str:
    """The whole grammar. Raises GrammarError when it is too large."""
    lines = [f"start: {piece.expression}", *(f"{name}: {to}" for name, to in piece.rules.items())]
    main = "\n".join(lines) + "\n"
    if not piece.grammars:
        return checked_text(main)
    grammars = [{"name": "main", "lark_grammar": main}]
    grammars += [{"name": name, "lark_grammar": text} for name, text in piece.grammars.items()]
    return checked_text(msgspec.json.encode({"grammars": grammars}).decode())


def _joined(between: str, pieces: Iterable[Piece]) -> Piece:
    rules: dict[str, str] = {}
    grammars: dict[str, str] = {}
    expressions = []
    for piece in pieces:
        expressions.append(piece.expression)
        rules |= piece.rules
        grammars |= piece.grammars
    return Piece(between.join(expressions), rules, grammars)


def _repeated(piece: Piece, how: str) -> Piece:
    return Piece(f"({piece.expression}){how}", piece.rules, piece.grammars)


def _wrapped(piece: Piece) -> Piece:
    return Piece(f"({piece.expression})", piece.rules, piece.grammars)
