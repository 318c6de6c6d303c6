"""A memory of texts by how they begin: what was made of one need not be made of a longer one again.

An agent sends its whole conversation with every turn. Where two texts may agree is found by chained
hashes of their chunks; the texts themselves are compared before anything is believed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Whole = TypeVar("Whole", str, bytes)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Found(Generic[Value]):
    """What a text was found to begin with: `value` of the earlier text that shares most, and how
    many characters or bytes; None and 0 where none does. `marks` are hashes of the text's
    beginnings, for `keep`."""

    value: Value | None
    shared: int
    marks: list[int]
    number: int = 0  # of the earlier text


class Beginnings(Generic[Whole, Value]):
    """Not for several threads. `chunk` is what texts must share at least, `max_bytes` how much is
    kept; what was used longest ago is forgotten first."""

    def __init__(self, chunk: int, max_bytes: int) -> None:
        self.held_bytes = 0
        self._chunk = chunk
        self._max_bytes = max_bytes
        self._last = 0
        self._kept: OrderedDict[int, _Kept[Whole, Value]] = OrderedDict()
        self._at: dict[int, int] = {}  # hash of a beginning -> the latest text that has it

    def find(self, whole: Whole, space: bytes = b"") -> Found[Value]:
        """`space` keeps memories apart: nothing kept under another one is found."""
        marks = _marks(whole, space, self._chunk)
        for place in range(len(marks), 0, -1):
            number = self._at.get(marks[place - 1])
            if number is None:
                continue
            kept = self._kept[number]
            size = place * self._chunk
            if kept.space == space and whole.startswith(kept.whole[:size]):
                self._kept.move_to_end(number)
                return Found(kept.value, self._common(whole, kept.whole, size), marks, number)
        return Found(None, 0, marks)

    def keep(
        self, whole: Whole, found: Found[Value], value: Value, size: int, space: bytes = b""
    ) -> list[Value]:
        """Remembers a text that `find` was just asked for; `size` is what it holds in bytes.
        Returns the values that are forgotten for it. A text without a whole chunk, or larger than
        the memory, is not kept."""
        if not found.marks or size > self._max_bytes:
            return []
        self._last += 1
        self._kept[self._last] = _Kept(whole, space, found.marks, value, size)
        self.held_bytes += size
        for mark in found.marks:
            self._at[mark] = self._last
        forgotten = []
        earlier = self._kept.get(found.number)
        # Whoever goes on from the earlier text goes on from this one as well.
        if earlier is not None and earlier.marks == found.marks[: len(earlier.marks)]:
            forgotten.append(self._forget(found.number))
        while self.held_bytes > self._max_bytes:
            forgotten.append(self._forget(next(iter(self._kept))))
        return forgotten

    def _forget(self, number: int) -> Value:
        gone = self._kept.pop(number)
        self.held_bytes -= gone.size
        for mark in gone.marks:
            if self._at.get(mark) == number:
                del self._at[mark]
        return gone.value

    def _common(self, one: Whole, other: Whole, least: int) -> int:
        """How much they share, at most a chunk more than what is known already."""
        most = min(len(one), len(other), least + self._chunk)
        while least < most:
            middle = (least + most + 1) // 2
            if one[least:middle] == other[least:middle]:
                least = middle
            else:
                most = middle - 1
        return least


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Whole, Value]):
    whole: Whole
    space: bytes
    marks: list[int]
    value: Value
    size: int


def _marks(whole: Whole, space: bytes, chunk: int) -> list[int]:
    """A hash of each beginning of whole chunks, from the shortest on."""
    marks, mark = [], hash(space)
    for begin in range(0, len(whole) - chunk + 1, chunk):
        mark = hash((mark, whole[begin : begin + chunk]))
        marks.append(mark)
    return marks
