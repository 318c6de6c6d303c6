"""Looking for marks in a text that arrives piece by piece.

Nothing here depends on where the pieces are cut.
"""

from __future__ import annotations

from collections.abc import Sequence


def split(text: str, marks: Sequence[str]) -> tuple[str, str | None, str]:
    """(what is before the first mark, the mark, the rest).

    Without a mark: (what cannot be part of one, None, the end that may yet become one). No mark
    may hold another.
    """
    found = min(((at, mark) for mark in marks if (at := text.find(mark)) >= 0), default=None)
    if found is not None:
        at, mark = found
        return text[:at], mark, text[at + len(mark) :]
    longest = max(map(len, marks)) - 1
    for begin in range(max(0, len(text) - longest), len(text)):
        tail = text[begin:]
        if any(mark.startswith(tail) for mark in marks):
            return text[:begin], None, tail
    return text, None, ""


class JsonEnd:
    """Finds where the first JSON object or array of a text ends. Checks brackets and strings only;
    whether it is JSON is decided by a parser afterwards."""

    __slots__ = ("_depth", "_escaped", "_in_string", "end", "is_json", "seen")

    def __init__(self) -> None:
        self.seen = 0  # characters looked at
        self.end: int | None = None  # index after the value
        self.is_json: bool | None = None  # None until there is anything but space
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def push(self, text: str) -> None:
        for place, character in enumerate(text, self.seen + 1):
            if self.end is not None or self.is_json is False:
                break
            self._character(character)
            if self.is_json and self._depth == 0:
                self.end = place
        self.seen += len(text)

    def _character(self, character: str) -> None:
        if self.is_json is None:
            if character.isspace():
                return
            self.is_json = character in "{["
            if not self.is_json:
                return
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = character == "\\"
            self._in_string = character != '"'
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
