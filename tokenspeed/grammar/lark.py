"""Pieces of a grammar in llguidance's dialect of Lark.

A Piece is an expression and the grammars of its own that it refers to. Pieces are put in a row,
made alternatives, repeated, and in the end written as one text (`write`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenspeed.grammar.limits import GrammarError, checked_json, checked_text

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
    """Text that a regular expression matches as a whole."""
    # A slash ends the pattern, and a line its line; what follows a backslash is taken with it.
    out, escaped = [], False
    for character in expression:
        if character == "/" and not escaped:
            out.append("\\/")
        elif character in "\n\r":
            out.append({"\n": "n", "\r": "r"}[character] if escaped else repr(character)[1:-1])
        else:
            out.append(character)
        escaped = character == "\\" and not escaped
    return Piece(f"/{''.join(out)}/") if expression else EMPTY


def json_value(schema: Any) -> Piece:
    """JSON text that satisfies the schema. Raises GrammarError when that is too large, or when it
    is neither an object nor a boolean."""
    if not isinstance(schema, dict | bool):
        raise GrammarError("a schema must be a JSON object")
    options = {"x-guidance": {"whitespace_pattern": _BLANKS}}
    if schema is False:
        raise GrammarError("nothing satisfies the schema false")
    return Piece(f"%json {checked_json(options | ({} if schema is True else schema))}")


def text_until(mark: str, name: str) -> Piece:
    """Any text, and then `mark`, which it does not hold before its end. `name`: of the rule."""
    return Piece(name, {f"{name}[suffix={json.dumps(mark)}]": f"/{ANY_TEXT}/"})


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
