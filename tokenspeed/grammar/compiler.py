"""Compiles grammars beside the engine's loop: on few threads, within limits, each once."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from llguidance.numpy import fill_next_token_bitmask

from tokenspeed.grammar.limits import GrammarError, checked_text
from tokenspeed.grammar.vocabulary import Vocabulary

THREADS = 2
# Compiled grammars that are kept: agents send the same tools with every turn.
KEPT = 128
# Work for one mask, in llguidance's own units; measured: 300,000 take about 20 ms.
_STEP_FUEL = 300_000


class Compiler:
    """Keeps what it compiled. Safe to use from several threads.

    `load` gives the vocabulary; it is called once, when somebody wants it.
    """

    def __init__(self, load: Callable[[], Vocabulary]) -> None:
        self._load = load
        self._loaded: Vocabulary | None = None
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def vocabulary(self) -> Vocabulary:
        """Raises GrammarError, see `Vocabulary`."""
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def matcher(self, grammar: str) -> LLMatcher:
        """One for an answer, at its beginning. Raises GrammarError."""
        vocabulary = self.vocabulary()
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return kept.deep_copy()
        matcher = compiled(checked_text(grammar), vocabulary)
        with self._lock:
            self._kept[grammar] = matcher
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return matcher.deep_copy()


def compiled(grammar: str, vocabulary: Vocabulary) -> LLMatcher:
    """A matcher at the beginning of the grammar, which is Lark, or JSON that holds several.

    Raises GrammarError when the grammar is wrong, matches nothing, or exceeds the limits.
    """
    limits = LLParserLimits(step_lexer_fuel=_STEP_FUEL, verbose_errors=False)
    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        # Only the first mask shows that something is left to say.
        row = np.zeros((1, vocabulary.words), dtype=np.int32)
        fill_next_token_bitmask(matcher, row)
    if matcher.is_error():
        raise GrammarError(_worded(matcher.get_error()))
    if matcher.stop_reason() == "NoExtensionBias":
        raise GrammarError("no text satisfies it")
    return matcher


def _worded(message: str) -> str:
    """Without the place in a grammar that the client has not written."""
    if message.startswith("panic"):
        return "it cannot be compiled"
    if "NoExtensionBias" in message:
        return "no text satisfies it"
    first = message.strip().partition(os.linesep + "   1 |")[0]
    first = first.rpartition("failed to compile JSON schema: ")[2]
    return " ".join(first.split())[:500]
