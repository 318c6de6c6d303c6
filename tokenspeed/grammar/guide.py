"""What one request may say next, token by token."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from enum import Enum, auto

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par

from tokenspeed.request import Thinking


class Guide:
    """Follows the tokens of one answer as they are accepted, and never anything that is not.

    It forbids what the grammar does not go on with; the end tokens before `min_tokens` tokens,
    where anything else may be said; what is not in `allowed`, if that is given; and all but the
    end of its thoughts to a model that has thought long enough.
    """

    def __init__(
        self,
        *,
        matcher: LLMatcher | None = None,
        ends: Sequence[int] = (),
        min_tokens: int = 0,
        allowed: Sequence[int] = (),
        thought: Thought | None = None,
    ) -> None:
        self.matcher = matcher
        self._ends = ends
        self._min_tokens = min_tokens
        self._allowed = allowed
        self._thought = thought
        self._accepted = 0
        self.error = ""

    @property
    def accepted(self) -> int:
        """How many tokens were."""
        return self._accepted

    @property
    def active(self) -> bool:
        """Whether the token after the next one may be restricted, or the next one: False is a
        promise for both, so that a step can be scheduled while the one before it runs."""
        return (
            self.matcher is not None
            or bool(self._allowed)
            or self._accepted < self._min_tokens
            or (self._thought is not None and self._thought.ends_soon)
        )

    def restrict(self, row: np.ndarray) -> None:
        """Clears bits of `row`, int32 [words]: what the matcher allows, or all ones."""
        if self._closing:
            row[:] = 0
            _set(row, self._closing[:1])
            return
        if self._allowed:
            row[:] = 0
            _set(row, self._allowed)
        if self._accepted < self._min_tokens:
            without = row.copy()
            _clear(without, self._ends)
            if without.any():
                row[:] = without

    def accept(self, token: int) -> None:
        """The token was drawn and is part of the answer; not for one that ends it."""
        self._accepted += 1
        if self._thought is not None:
            self._thought.accept(token)
        if self.matcher is not None and not self.matcher.consume_token(token):
            self.error = "the answer left its grammar, or the grammar became too costly"

    def follow(self, least: int, most: int) -> list[int]:
        """Accepts the tokens that must come next and returns them, `most` at most. None where fewer
        than `least` must.

        They are the only ones that masks would have let through, one after the other. The end of an
        answer is never among them.
        """
        closing = self._closing
        forced = closing or self._forced()
        run: list[int] = []
        if len(forced) < least:
            return run
        for token in forced[:most]:
            if self.error or (self._closing and not closing):
                break
            self.accept(token)
            run.append(token)
        return run

    @property
    def _closing(self) -> Sequence[int]:
        return () if self._thought is None else self._thought.closing

    def _forced(self) -> Sequence[int]:
        """By the grammar."""
        if self.matcher is None or self._allowed or self.error:
            return ()
        return self.matcher.compute_ff_tokens()


def fill(executor: LLExecutor | None, guides: Sequence[Guide], masks: np.ndarray) -> None:
    """Writes row i of `masks`, int32 [len(guides), words], for guide i. Takes some 50 us each."""
    masks[:] = -1
    matchers = [(guide.matcher, i) for i, guide in enumerate(guides) if guide.matcher is not None]
    if matchers:
        assert executor is not None
        fill_next_token_bitmask_par(executor, matchers, masks)
    for guide, row in zip(guides, masks, strict=True):
        if guide.matcher is not None and guide.matcher.is_error():
            guide.error = "the grammar became too costly"
            row[:] = -1
        guide.restrict(row)


class _State(Enum):
    BEGIN = auto()  # the answer may begin to think yet
    INSIDE = auto()
    CLOSING = auto()  # it thought enough: its next tokens are given
    OVER = auto()


class Thought:
    """Counts the tokens of one block of reasoning at the beginning of an answer."""

    def __init__(self, thinking: Thinking, bytes_of: Callable[[int], bytes]) -> None:
        self._thinking = thinking
        self._bytes_of = bytes_of
        self._begin = thinking.begin.encode()
        self._end = thinking.end.encode()
        self._state = _State.BEGIN
        self._text = b""  # at BEGIN all of it, then as much of its end as may begin the mark
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0
        self._closed = 0
        if thinking.opened:
            self._enter()

    @property
    def closing(self) -> Sequence[int]:
        """The tokens that must follow, one after the other; none as long as it may go on."""
        closing = self._state is _State.CLOSING
        return self._thinking.closing[self._closed :] if closing else ()

    @property
    def ends_soon(self) -> bool:
        """Whether one of the next two tokens may be forced."""
        if self._state is _State.OVER:
            return False
        return self._state is _State.CLOSING or self._count + 2 >= self._thinking.max_tokens

    def accept(self, token: int) -> None:
        match self._state:
            case _State.BEGIN:
                self._text += self._bytes_of(token)
                text = self._text.lstrip()
                if text.startswith(self._begin):
                    self._text = b""
                    self._enter()
                elif not self._begin.startswith(text):
                    self._state = _State.OVER
            case _State.INSIDE:
                self._inside(self._bytes_of(token))
            case _State.CLOSING:
                self._closed += 1
                if self._closed == len(self._thinking.closing):
                    self._state = _State.OVER
            case _State.OVER:
                pass

    def _enter(self) -> None:
        self._state = _State.INSIDE
        if self._thinking.max_tokens == 0:
            self._state = _State.CLOSING

    def _inside(self, spelt: bytes) -> None:
        self._count += 1
        self._text += spelt
        self._characters.decode(spelt)
        if self._end in self._text:
            self._state = _State.OVER
            return
        self._text = self._text[-len(self._end) :]
        # Not in the middle of a character, which would be lost.
        whole = not self._characters.getstate()[0]
        if self._count >= self._thinking.max_tokens and whole:
            self._state = _State.CLOSING


def _set(row: np.ndarray, tokens: Sequence[int]) -> None:
    bits = row.view(np.uint8)
    for token in tokens:
        bits[token // 8] |= np.uint8(1 << token % 8)


def _clear(row: np.ndarray, tokens: Sequence[int]) -> None:
    bits = row.view(np.uint8)
    for token in tokens:
        bits[token // 8] &= np.uint8(0xFF ^ (1 << token % 8))
