"""One choice of an answer: from the engine's Deltas to what the client may see."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenspeed.request import Delta, FinishReason, TokenLogprobs
from tokenspeed.server.openai.errors import engine_failed, too_busy, waited_too_long
from tokenspeed.server.openai.form import invalid_form
from tokenspeed.server.openai.logprobs import Scored
from tokenspeed.server.openai.types import Options
from tokenspeed.server.parsers.answer import Parser
from tokenspeed.server.parsers.parts import Call, Part, Text, merged
from tokenspeed.tokenizer import StopMatch, StopMatcher, TextModel

log = logging.getLogger(__name__)

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(slots=True)
class Piece:
    """What a delta adds to a choice. `finish` is set on the last one; `stop_reason` is the stop
    string or the client's stop token that ended it. `tokens` are only kept when asked for.
    `text` is what the model wrote, `parts` what it means: without a parser, just that text.
    """

    text: str
    parts: list[Part]
    tokens: tuple[int, ...]
    scored: list[Scored]
    finish: Finish | None
    stop_reason: str | int | None


class Choice:
    """Decodes, matches stop strings, keeps log-probabilities in step with the text."""

    def __init__(
        self,
        index: int,
        text: TextModel,
        options: Options,
        *,
        begin: int = 0,
        parser: Parser | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """`begin` is where the answer's text starts: after an echoed prompt. `shown` are control
        tokens that are text to the parser."""
        self.index = index
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.queued_seconds: float | None = None
        self.first_token: float | None = None  # when it came, as time.monotonic has it
        self.ended = 0.0
        self.finish = ""
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
        self._options = options
        self._end_ids = frozenset(options.stop_token_ids)
        if not options.ignore_eos:
            self._end_ids |= frozenset(text.eos_token_ids)
        self._parser = parser
        self._inside = parser is not None and parser.inside_reasoning
        self._parts: list[Part] = []
        self._called = False
        self._decoder = text.stream(shown)
        self._matcher = StopMatcher(options.stop, options.include_stop) if options.stop else None
        self._decoded = begin  # characters that the tokens so far stand for
        self._sent = begin  # of those, how many the client has
        self._scored: list[Scored] = []

    def push(self, delta: Delta) -> Piece:
        """Takes the next delta. After a piece with `finish` the request is of no more use.

        Raises ApiError when the engine could not complete the request.
        """
        if delta.finish_reason is FinishReason.INVALID:
            raise invalid_form(self._options.form_field, delta.error)
        if delta.finish_reason is FinishReason.FULL:
            raise too_busy(delta.error[:1].upper() + delta.error[1:])
        if delta.finish_reason is FinishReason.EXPIRED:
            raise waited_too_long()
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            # What broke is for operators; the client learns that its answer is not whole.
            log.warning("request %d failed: %s", delta.request_id, delta.error or "aborted")
            raise engine_failed()
        if delta.cached_tokens is not None:
            self.cached_tokens = delta.cached_tokens
            self.queued_seconds = delta.queued_seconds
            self.first_token = time.monotonic()
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        texts: list[str] = []
        for place, token in enumerate(delta.tokens):
            self.completion_tokens += 1
            is_last = place == len(delta.tokens) - 1
            if is_last and delta.finish_reason is FinishReason.STOP and token in self._end_ids:
                break  # an end token ends the text and is no part of it
            logprobs = delta.logprobs[place] if delta.logprobs else None
            match = self._token(token, logprobs, texts)
            if match is not None:
                self._add(match.text, texts)
                return self._stopped(delta.tokens[: place + 1], texts, match)
            if self._parser is not None and self._parser.done:
                return self._piece(delta.tokens[: place + 1], texts, "stop", None, everything=True)
        if delta.finish_reason is None:
            return self._piece(delta.tokens, texts, None, None)
        return self._finished(delta, texts)

    def _token(
        self, token: int, logprobs: TokenLogprobs | None, texts: list[str]
    ) -> StopMatch | None:
        if logprobs is not None:
            self._scored.append(Scored(token, logprobs, self._decoded))
        text = self._decoder.push(token)
        self._decoded += len(text)
        match = self._emit(text, texts)
        parser = self._parser
        if parser is not None:
            # A token that leads into or out of the reasoning is a part of it.
            was_inside, self._inside = self._inside, parser.inside_reasoning
            if was_inside or self._inside:
                self.reasoning_tokens += 1
        return match

    def _emit(self, text: str, texts: list[str]) -> StopMatch | None:
        if self._matcher is not None and self.completion_tokens >= self._options.min_tokens:
            released = self._matcher.push(text)
            if isinstance(released, StopMatch):
                return released
            text = released
        self._add(text, texts)
        return None

    def _add(self, text: str, texts: list[str]) -> None:
        if text:
            texts.append(text)
            if self._parser is not None:
                self._parts += self._parser.push(text)

    def _finished(self, delta: Delta, texts: list[str]) -> Piece:
        tail = self._decoder.finish()
        self._decoded += len(tail)
        match = self._emit(tail, texts)
        if match is not None:
            self._add(match.text, texts)
            return self._stopped(delta.tokens, texts, match)
        if self._matcher is not None:
            self._add(self._matcher.finish(), texts)
        if delta.finish_reason is FinishReason.LENGTH:
            return self._piece(delta.tokens, texts, "length", None, everything=True)
        last = delta.tokens[-1] if delta.tokens else None
        reason = last if last in self._options.stop_token_ids else None
        return self._piece(delta.tokens, texts, "stop", reason, everything=True)

    def _stopped(self, tokens: Sequence[int], texts: list[str], match: StopMatch) -> Piece:
        return self._piece(tokens, texts, "stop", match.stop)

    def _piece(
        self,
        tokens: Sequence[int],
        texts: list[str],
        finish: Finish | None,
        stop_reason: str | int | None,
        everything: bool = False,
    ) -> Piece:
        """Log-probabilities go out with the first character of their token, so that they never
        tell a stop string that the text withholds."""
        text = "".join(texts)
        self._sent += len(text)
        scored: list[Scored] = []
        if self._scored:
            ready = len(self._scored)
            if not everything:
                ready = sum(1 for entry in self._scored if entry.begin < self._sent)
            scored, self._scored = self._scored[:ready], self._scored[ready:]
        kept = tuple(tokens) if self._options.return_token_ids else ()
        if finish is None and self._parser is None and not scored:
            return Piece(text, [Text(text)] if text else [], kept, scored, None, None)
        if finish is not None and self._parser is not None:
            # Only the model's own end leaves nothing open.
            self._parts += self._parser.finish(finish == "length" or stop_reason is not None)
        parts, self._parts = merged(self._parts), []
        if self._parser is None and text:
            parts = [Text(text)]
        for part in parts:
            if type(part) is Call:
                self._called = True
        if finish == "stop" and self._called and not self._options.calls_named:
            finish = "tool_calls"
        return Piece(text, parts, kept, scored, finish, stop_reason)
