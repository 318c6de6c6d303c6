"""What agents ask for: sessions of many turns on a long, growing prompt.

Every session begins with the same system prompt and a first turn of its own; each later turn adds
the result of a tool to everything said so far. The shape is drawn from a seed, so that the same
sessions run against every server. The text is real: the sources of the Python that runs this.
"""

from __future__ import annotations

import itertools
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Span:
    """From `low` to `high`, both included, all equally likely."""

    low: int
    high: int

    def draw(self, random_: random.Random) -> int:
        return random_.randint(self.low, self.high)

    def scaled(self, factor: float) -> Span:
        return Span(max(1, round(self.low * factor)), max(1, round(self.high * factor)))

    def __str__(self) -> str:
        low, high = f"{self.low:,}", f"{self.high:,}"
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class Workload:
    """Counts of tokens, but for `turns`. `system` is part of every prompt and the same in all;
    `first` comes on top of it in the first turn, `added` in each later one."""

    name: str
    system: int
    first: Span
    turns: Span
    added: Span
    generated: Span

    def scaled(self, factor: float) -> Workload:
        """Prompts of `factor` times the tokens; turns and what they add stay as they are."""
        return replace(
            self,
            name=self.name if factor == 1 else f"{self.name} x {factor:g}",
            system=max(1, round(self.system * factor)),
            first=self.first.scaled(factor),
        )

    @property
    def most_tokens(self) -> int:
        """Of the longest session, its last answer included."""
        later = (self.turns.high - 1) * self.added.high
        return self.system + self.first.high + later + self.turns.high * self.generated.high

    def __str__(self) -> str:
        return (
            f"{self.name}: system prompt {self.system:,}, first turn {self.first}, {self.turns} "
            f"turns, each adds {self.added} and generates {self.generated}"
        )


WORKLOADS = {
    # Prompts of 50,000 tokens from the first turn on, as in public comparisons of engines.
    "fixed": Workload(
        "fixed", 8000, Span(42000, 42000), Span(10, 15), Span(800, 800), Span(500, 500)
    ),
    "varied": Workload(
        "varied", 8000, Span(20000, 50000), Span(20, 40), Span(200, 1500), Span(100, 400)
    ),
}


# Of one seed, more than anybody runs.
_SESSIONS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Turn:
    """`added` tokens to say, `generated` to hear."""

    added: int
    generated: int


@dataclass(frozen=True, slots=True)
class Script:
    """One session. `number` makes its first words differ from those of any other."""

    number: int
    system: int
    turns: tuple[Turn, ...]


def scripts(workload: Workload, seed: int, first: int = 0) -> Iterator[Script]:
    """Sessions without end from the one numbered `first` on, no two alike: a server that has seen
    some of them has nothing of the others."""
    for number in itertools.count(seed * _SESSIONS + first):
        draw = random.Random(number)
        turns = tuple(
            Turn(
                (workload.first if turn == 0 else workload.added).draw(draw),
                workload.generated.draw(draw),
            )
            for turn in range(workload.turns.draw(draw))
        )
        yield Script(number, workload.system, turns)


class Corpus:
    """Words of real text, read from anywhere in it."""

    def __init__(self, text: str) -> None:
        self._words = text.split(" ")
        assert len(self._words) > 1000, "too little text"

    def words(self, count: int, begin: int) -> list[str]:
        """`count` words from place `begin`, as if the text were a ring."""
        size = len(self._words)
        start = begin % size
        found = self._words[start : start + count]
        while len(found) < count:
            found += self._words[: count - len(found)]
        return found

    @property
    def size(self) -> int:
        return len(self._words)


def python_sources(most_bytes: int = 8 << 20) -> Corpus:
    """The standard library of this Python, file after file."""
    pieces, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        pieces.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(pieces[-1])
        if size >= most_bytes:
            break
    return Corpus("\n".join(pieces))
