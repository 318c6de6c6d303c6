"""Text out of a stream of tokens: never half a character, never a piece of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenBytes(Protocol):
    """What a detokenizer needs of a vocabulary; see `pieces.Pieces`."""

    @property
    def strips_space(self) -> int: ...

    def text_bytes(self, token: int) -> bytes: ...

    def raw_bytes(self, token: int) -> bytes: ...


class Detokenizer:
    """Decodes one sequence as it grows.

    The joined results of `push` and one `finish` equal the decode of all tokens at once: bytes
    that do not yet make a character are held back; an ill-formed sequence becomes U+FFFD, one
    that is still open at the end becomes one U+FFFD. Prompt bytes do not count. Control
    tokens are no text, except those of `shown`.
    """

    __slots__ = ("_decoder", "_pieces", "_shown", "_strip")

    def __init__(self, pieces: TokenBytes, shown: frozenset[int] = frozenset()) -> None:
        self._pieces = pieces
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = pieces.strips_space

    def push(self, token: int) -> str:
        """The text that this token completes, often "" inside a character."""
        shown = token in self._shown
        spelt = self._pieces.raw_bytes(token) if shown else self._pieces.text_bytes(token)
        return self._stripped(self._decoder.decode(spelt))

    def finish(self) -> str:
        """What is left at the end: "" or one U+FFFD."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        # Only the very beginning of the text loses spaces; afterwards this is one comparison.
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


def decode(pieces: TokenBytes, tokens: Iterable[int]) -> str:
    """The text of a whole sequence."""
    detokenizer = Detokenizer(pieces)
    return "".join([*(detokenizer.push(token) for token in tokens), detokenizer.finish()])


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` was completed. `text` is what may still be sent, up to the stop string, or with it
    when inclusion was asked for."""

    stop: str
    text: str


class StopMatcher:
    """Finds the first stop string in a text that arrives piece by piece.

    Text that may yet turn out to begin a stop string is withheld until that is decided. Of the
    matches that one piece completes the earliest wins, of two at one place the longest. Feed
    the text token by token: then the result does not depend on how deltas were merged.
    """

    __slots__ = ("_failures", "_held", "_include", "_states", "_stops")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = tuple(stops)
        self._include = include
        self._failures = [_failure_table(stop) for stop in self._stops]
        # How many characters of each stop string the end of the text matches.
        self._states = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> str | StopMatch:
        """The text that is safe to send now, or the match. Not to be called after a match."""
        buffer = self._held + text
        matches = []
        for which, stop in enumerate(self._stops):
            end = self._advance(which, text)
            if end is not None:
                matches.append((len(self._held) + end - len(stop), -len(stop), stop))
        if matches:
            begin, _, stop = min(matches)
            return StopMatch(stop, buffer[: begin + len(stop)] if self._include else buffer[:begin])
        keep = max(self._states, default=0)
        safe = len(buffer) - keep
        self._held = buffer[safe:]
        return buffer[:safe]

    def finish(self) -> str:
        """The withheld text: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _advance(self, which: int, text: str) -> int | None:
        """Knuth-Morris-Pratt: the index in `text` after the first full match, else None."""
        stop, failures, state = self._stops[which], self._failures[which], self._states[which]
        for place, character in enumerate(text):
            while state and stop[state] != character:
                state = failures[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                return place + 1
        self._states[which] = state
        return None


def _failure_table(stop: str) -> list[int]:
    """Length of the longest proper prefix of `stop` that ends each of its prefixes."""
    table = [0] * len(stop)
    state = 0
    for place in range(1, len(stop)):
        while state and stop[state] != stop[place]:
            state = table[state - 1]
        if stop[state] == stop[place]:
            state += 1
        table[place] = state
    return table
