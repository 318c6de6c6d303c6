"""A model's tokens as llguidance wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from llguidance import LLTokenizer, TokenizerWrapper

from tokenspeed.grammar.limits import GrammarError


class Spelling(Protocol):
    """What a vocabulary needs of a tokenizer; see `tokenizer.TextModel`."""

    @property
    def eos_token_ids(self) -> Sequence[int]: ...

    def token_bytes(self, token: int) -> bytes: ...

    def is_special(self, token: int) -> bool: ...

    def encode_bare(self, text: str) -> list[int]: ...


class Vocabulary:
    """`size` is the width of the logits. Building takes a third of a second for 150,000 tokens.

    Raises GrammarError for a model whose answers have no end token: no grammar could end them.
    """

    def __init__(self, spelling: Spelling, size: int) -> None:
        ends = [token for token in spelling.eos_token_ids if token < size]
        if not ends:
            raise GrammarError("the model has no end token, so no answer can be held to a grammar")
        self.size = size
        self.ends = tuple(ends)
        self.words = -(-size // 32)  # of a row of a bitmask
        self.bytes_of: Callable[[int], bytes] = spelling.token_bytes
        tokens = [spelling.token_bytes(token) for token in range(size)]
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(spelling, tokens, ends)), n_vocab=size, eos_token=ends
        )


class _Tokens:
    """The form in which llguidance takes a tokenizer that it does not know.

    Where a grammar leaves no choice it asks how the forced text is written in tokens, and holds
    the model to that: the text is spelt as it would be in a prompt.
    """

    bos_token_id = None

    def __init__(self, spelling: Spelling, tokens: list[bytes], ends: list[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = ends[0]
        special = {token for token in range(len(tokens)) if spelling.is_special(token)}
        self.special_token_ids = sorted(special | set(ends))
        self._special = frozenset(self.special_token_ids)
        self._spelling = spelling
        self._by_bytes: dict[bytes, int] = {}
        self._longest = max(map(len, tokens), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        try:
            ids = self._inside_text(raw.decode())
        except UnicodeDecodeError:
            return self._greedy(raw)
        if self._special.isdisjoint(ids) and b"".join(self.tokens[i] for i in ids) == raw:
            return ids
        return self._greedy(raw)

    def _inside_text(self, text: str) -> list[int]:
        """Its tokens in the middle of a text: some tokenizers put a space before a beginning, which
        must not be in there."""
        before = self._spelling.encode_bare(_BEFORE)
        ids = self._spelling.encode_bare(_BEFORE + text)
        return ids[len(before) :] if ids[: len(before)] == before else []

    def _greedy(self, raw: bytes) -> list[int]:
        """The longest token at each place; what no token spells is left out."""
        if not self._by_bytes:
            plain = (token for token in range(len(self.tokens)) if token not in self._special)
            self._by_bytes = {self.tokens[token]: token for token in plain}
        ids, at = [], 0
        while at < len(raw):
            for end in range(min(len(raw), at + self._longest), at, -1):
                token = self._by_bytes.get(raw[at:end])
                if token is not None:
                    ids.append(token)
                    at = end
                    break
            else:
                at += 1
        return ids


# A control character stays a token of its own in every tokenizer.
_BEFORE = "\x02"
