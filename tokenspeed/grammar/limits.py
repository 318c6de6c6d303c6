"""How large a schema or grammar may be. Checked before anything walks down into it."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_GRAMMAR_BYTES = 256 << 10
# Levels of objects and lists. The compiler itself stops at 128.
MAX_DEPTH = 96


class GrammarError(ValueError):
    """Nothing can be held to this grammar; the message is for whoever wrote it."""


def checked_json(value: Any) -> str:
    """`value` (a schema, or anything made of JSON values) as JSON text.

    Raises GrammarError when it is too deep or too large.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return checked_text(msgspec.json.encode(value).decode())
    raise GrammarError(f"it is nested more than {MAX_DEPTH} levels deep")


def checked_text(text: str) -> str:
    """`text`. Raises GrammarError when it is too large."""
    if len(text) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it is larger than {MAX_GRAMMAR_BYTES} bytes")
    return text


def _inner(value: Any) -> list[Any]:
    """The objects and lists right below a value."""
    if isinstance(value, dict):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    if isinstance(value, list):
        return [inner for inner in value if isinstance(inner, dict | list)]
    return []
