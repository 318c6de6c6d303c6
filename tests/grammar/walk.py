"""A vocabulary without a model, and answers drawn at random under the masks of a grammar."""

from __future__ import annotations

import random

import numpy as np

from tokenspeed.grammar.compiler import compiled
from tokenspeed.grammar.guide import Guide
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.worker.guides import Guides

_WORDS = ['":', '": ', '",', '", "', '"}', "{}", "[]", '{"', "},", "true", "null", "false", "the",
          "12", "0.5", "e+1", "-1", "ab", "é", "🦙", "  ", "\n  ", "\\n", "\\u00", "2024-0",
          "name", "value", "a.b", "://", "</think>"]  # fmt: skip


class Spelling:
    """Every byte, some longer tokens that overlap them, two control tokens, one end token."""

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [word.encode() for word in _WORDS]
        self.control = {"<|go|>": len(self.tokens), "<|stop|>": len(self.tokens) + 1}
        self.tokens += [name.encode() for name in self.control]
        self.eos_token_ids = (len(self.tokens),)
        self.tokens.append(b"<|end|>")

    def token_bytes(self, token: int) -> bytes:
        return self.tokens[token] if token < len(self.tokens) else b""

    def is_special(self, token: int) -> bool:
        return token in self.control.values() or token in self.eos_token_ids

    def encode_bare(self, text: str) -> list[int]:
        return list(text.encode())


SPELLING = Spelling()
# A few ids more than there are tokens, as in the heads of many models.
VOCABULARY = Vocabulary(SPELLING, len(SPELLING.tokens) + 5)
END = SPELLING.eos_token_ids[0]
_CLOSING = [SPELLING.tokens.index(text) for text in (b'"', b"}", b"]", b">", b"\n")]


def answer(grammar: str, seed: int, most: int = 4000) -> bytes:
    """Drawn at random, with a liking for what closes things, since chance alone never ends."""
    drawn = random.Random(seed)
    guide = Guide(matcher=compiled(grammar, VOCABULARY))
    guides = Guides(lambda: VOCABULARY, VOCABULARY.size, 1)
    said = []
    for _ in range(most):
        row = guides.masks([guide])[0]
        assert not guide.error, guide.error
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: VOCABULARY.size]
        allowed = np.flatnonzero(bits).tolist()
        assert allowed
        closing = [token for token in (END, *_CLOSING) if bits[token]]
        token = drawn.choice(closing if closing and drawn.random() < 0.35 else allowed)
        if token == END:
            guides.close()
            return b"".join(SPELLING.tokens[one] for one in said)
        said.append(token)
        guide.accept(token)
    raise AssertionError(f"no end: {b''.join(SPELLING.tokens[one] for one in said)[-200:]!r}")
