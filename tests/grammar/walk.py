"""A vocabulary without a model, and answers drawn at random under the masks of a grammar."""

from __future__ import annotations

import random
from collections.abc import Sequence

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


def tokens(
    grammar: str, seed: int, vocabulary: Vocabulary = VOCABULARY, wishes: Sequence[str] = ()
) -> list[int]:
    """Drawn at random, with a liking for what closes things and for `wishes`, since chance alone
    never ends. The end token is left out. On the way: the tokens that must follow, as the matcher
    says them all at once, are those that its masks let through one by one."""
    byte = {vocabulary.bytes_of(token): token for token in reversed(range(vocabulary.size))}
    wished: list[int] = []
    drawn = random.Random(seed)
    matcher = compiled(grammar, vocabulary)
    guide = Guide(matcher=matcher)
    guides = Guides(lambda: vocabulary, vocabulary.size, 1)
    closing = {*vocabulary.ends, *(t for t in range(vocabulary.size) if _closes(vocabulary, t))}
    said: list[int] = []
    run = list(matcher.compute_ff_tokens())
    for _ in range(2000):
        row = guides.masks([guide])[0]
        assert not guide.error, guide.error
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: vocabulary.size]
        allowed = np.flatnonzero(bits).tolist()
        assert allowed == [run.pop(0)] if run else allowed
        ways = sorted(closing.intersection(allowed))
        if wishes and not wished and drawn.random() < 0.15:
            wish = drawn.choice(wishes).encode()
            wished = [byte[wish]] if wish in byte else [byte[bytes([one])] for one in wish]
        if wished and wished[0] in allowed:
            token = wished.pop(0)
        else:
            wished = []
            token = drawn.choice(ways if ways and drawn.random() < 0.35 else allowed)
        if token in vocabulary.ends:
            guides.close()
            return said
        said.append(token)
        guide.accept(token)
        run = run or list(matcher.compute_ff_tokens())
    raise AssertionError(f"no end: {b''.join(map(vocabulary.bytes_of, said))[-200:]!r}")


def answer(grammar: str, seed: int) -> bytes:
    """The text of `tokens`."""
    return b"".join(map(SPELLING.token_bytes, tokens(grammar, seed)))


def _closes(vocabulary: Vocabulary, token: int) -> bool:
    return vocabulary.bytes_of(token) in (b'"', b"}", b"]", b">", b"\n", b"<", b"</", b"/")
