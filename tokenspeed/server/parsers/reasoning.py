"""Tells what a model thinks from what it says.

An answer may begin with one block of reasoning; the template may have opened it already. Marks
after that block, or in an answer that begins otherwise, are text like any other. Line breaks
right after a mark belong to it.
"""

from __future__ import annotations

from enum import Enum, auto

from tokenspeed.server.parsers.parts import Part, Reasoning, Text
from tokenspeed.server.parsers.scan import split


class _State(Enum):
    BEGIN = auto()  # only space so far
    OPENED = auto()  # line breaks after the opening mark
    INSIDE = auto()
    CLOSED = auto()  # line breaks after the closing mark
    ANSWER = auto()


class ReasoningSplitter:
    """Withholds only what may yet become a mark."""

    def __init__(self, begin: str, end: str, opened: bool) -> None:
        """`opened`: the prompt ends in the opening mark."""
        self._begin = begin
        self._end = end
        self._held = ""
        self._state = _State.OPENED if opened else _State.BEGIN

    @property
    def inside(self) -> bool:
        return self._state in (_State.OPENED, _State.INSIDE)

    def push(self, text: str) -> list[Part]:
        """The parts that are decided now: Reasoning and Text only."""
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """What was withheld: no mark came of it."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [Reasoning(held) if self.inside else Text(held)]

    def _step(self, parts: list[Part]) -> bool:
        """Whether the state changed, so that there may be more to do."""
        match self._state:
            case _State.BEGIN:
                return self._at_begin()
            case _State.OPENED | _State.CLOSED:
                self._held = self._held.lstrip("\n")
                if not self._held:
                    return False
                opened = self._state is _State.OPENED
                self._state = _State.INSIDE if opened else _State.ANSWER
                return True
            case _State.INSIDE:
                thought, mark, self._held = split(self._held, (self._end,))
                if thought:
                    parts.append(Reasoning(thought))
                if mark is not None:
                    self._state = _State.CLOSED
                return mark is not None
            case _State.ANSWER:
                if self._held:
                    parts.append(Text(self._held))
                self._held = ""
                return False

    def _at_begin(self) -> bool:
        text = self._held.lstrip()
        if text.startswith(self._begin):
            self._held = text[len(self._begin) :]
            self._state = _State.OPENED
            return True
        if self._begin.startswith(text):
            return False
        self._state = _State.ANSWER
        return True
