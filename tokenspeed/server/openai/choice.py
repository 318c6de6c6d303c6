"""One choice of an answer: from the engine's Deltas to what the client may see."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenspeed.request import Delta, FinishReason, TokenLogprobs
from tokenspeed.server.openai.errors import engine_failed
from tokenspeed.server.openai.logprobs import Scored
from tokenspeed.server.openai.types import Options
from tokenspeed.tokenizer import StopMatch, StopMatcher, TextModel

log = logging.getLogger(__name__)

Finish = Literal["stop", "length"]


@dataclass(slots=True)
class Piece:
    """What a delta adds to a choice. `finish` is set on the last one; `stop_reason` is the stop
    string or the client's stop token that ended it. `tokens` are only kept when asked for.
    """

    text: str
    tokens: tuple[int, ...]
    scored: list[Scored]
    finish: Finish | None
    stop_reason: str | int | None


class Choice:
    """Decodes, matches stop strings, keeps log-probabilities in step with the text."""

    def __init__(self, index: int, text: TextModel, options: Options, begin: int = 0) -> None:
        """`begin` is where the answer's text starts: after an echoed prompt."""
        self.index = index
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
        self._options = options
        self._end_ids = frozenset(options.stop_token_ids)
        if not options.ignore_eos:
            self._end_ids |= frozenset(text.eos_token_ids)
        self._decoder = text.stream()
        self._matcher = StopMatcher(options.stop, options.include_stop) if options.stop else None
        self._decoded = begin  # characters that the tokens so far stand for
        self._sent = begin  # of those, how many the client has
        self._scored: list[Scored] = []

    def push(self, delta: Delta) -> Piece:
        """Takes the next delta. After a piece with `finish` the request is of no more use.

        Raises ApiError when the engine could not complete the request.
        """
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            # What broke is for operators; the client learns that its answer is not whole.
            log.warning("request %d failed: %s", delta.request_id, delta.error or "aborted")
            raise engine_failed()
        if delta.cached_tokens is not None:
            self.cached_tokens = delta.cached_tokens
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
                texts.append(match.text)
                return self._stopped(delta.tokens[: place + 1], texts, match)
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
        return self._emit(text, texts)

    def _emit(self, text: str, texts: list[str]) -> StopMatch | None:
        if self._matcher is not None and self.completion_tokens >= self._options.min_tokens:
            released = self._matcher.push(text)
            if isinstance(released, StopMatch):
                return released
            text = released
        if text:
            texts.append(text)
        return None

    def _finished(self, delta: Delta, texts: list[str]) -> Piece:
        tail = self._decoder.finish()
        self._decoded += len(tail)
        match = self._emit(tail, texts)
        if match is not None:
            texts.append(match.text)
            return self._stopped(delta.tokens, texts, match)
        if self._matcher is not None:
            texts.append(self._matcher.finish())
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
        ready = len(self._scored)
        if not everything:
            ready = sum(1 for entry in self._scored if entry.begin < self._sent)
        scored, self._scored = self._scored[:ready], self._scored[ready:]
        kept = tuple(tokens) if self._options.return_token_ids else ()
        return Piece(text, kept, scored, finish, stop_reason)
