"""Ids of rendered conversations, computed once for each piece between two control tokens.

An agent sends its whole conversation with every turn, and encoding 50,000 tokens takes tens of
milliseconds. Tokenizers take control tokens out of a text before they look at anything else, so
what stands between two of them is encoded by itself. A rendered conversation is cut before each
control token. What an earlier one begins with too costs a comparison, other pieces that were seen
before a look-up. Nothing is assumed about templates: they are rendered whole each time, and
whatever they changed is a new piece.

A control token is a place to cut only where the tokenizer is sure to find it (`_cut_marks`). A
piece begins with its control token, so that it is never taken for the beginning of a text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from sys import getsizeof
from threading import Lock

import numpy as np
from tokenizers import AddedToken, Tokenizer

from tokenspeed.beginnings import Beginnings

# Of texts and ids together, half of it for whole conversations, half for pieces: of each about
# 4 million tokens.
MAX_BYTES = 64 << 20
_ENTRY_BYTES = 200  # what an entry costs beside its text and its ids
CHUNK = 4096  # characters that a conversation must share with an earlier one


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A conversation: where its pieces begin, in characters and in bytes of `ids`."""

    places: list[int]
    offsets: list[int]
    ids: bytes


_NOTHING = _Encoded([], [], b"")


class Segments:
    """The cutting and the memory for one tokenizer. Safe to use from several threads."""

    def __init__(
        self, tokenizer: Tokenizer, max_bytes: int = MAX_BYTES, chunk: int = CHUNK
    ) -> None:
        marks = _cut_marks(tokenizer)
        self._cut = _pattern(marks)
        self._longest = max(map(len, marks), default=0)
        self._known: OrderedDict[tuple[bytes, str], bytes] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes // 2
        self._wholes: Beginnings[str, _Encoded] = Beginnings(chunk, max_bytes // 2)
        self._lock = Lock()

    @property
    def held_bytes(self) -> int:
        return self._bytes + self._wholes.held_bytes

    def encode(self, text: str, space: bytes, encode: Callable[[str], list[int]]) -> bytes:
        """The ids of `text` as little-endian int32, equal to those of `encode(text)`.

        `encode` gives the ids of one piece. `space` keeps memories apart: whoever asks under one
        of them cannot measure what was asked under another.
        """
        with self._lock:
            found = self._wholes.find(text, space)
        begun = _NOTHING if found.value is None else found.value
        # The last place where both were cut: its control token, too, must be theirs alike.
        known = max(0, bisect_right(begun.places, found.shared - self._longest) - 1)
        begin = begun.places[known] if known else 0
        head = begun.ids[: begun.offsets[known]] if known else b""
        pieces = list(self.split(text[begin:] if begin else text))
        encoded = self._encode(pieces, space, encode)
        ids = head + b"".join(encoded)
        if found.marks:
            places, offsets = begun.places[:known], begun.offsets[:known]
            offset = len(head)
            for piece, new in zip(pieces, encoded, strict=True):
                places.append(begin)
                offsets.append(offset)
                begin, offset = begin + len(piece), offset + len(new)
            size = _ENTRY_BYTES + 72 * len(places) + getsizeof(text) + len(ids)
            with self._lock:
                self._wholes.keep(text, found, _Encoded(places, offsets, ids), size, space)
        return ids

    def _encode(
        self, pieces: list[str], space: bytes, encode: Callable[[str], list[int]]
    ) -> list[bytes]:
        """The ids of each piece."""
        keys = [(space, piece) for piece in pieces]
        with self._lock:
            found = [self._known.get(key) for key in keys]
            for key, ids in zip(keys, found, strict=True):
                if ids is not None:
                    self._known.move_to_end(key)
        missing = {key for key, ids in zip(keys, found, strict=True) if ids is None}
        new = {key: np.asarray(encode(key[1]), dtype="<i4").tobytes() for key in missing}
        if new:
            self._keep(new)
        return [new[key] if ids is None else ids for key, ids in zip(keys, found, strict=True)]

    def split(self, text: str) -> Iterator[str]:
        """The pieces of a text: the first as it comes, each other from one control token up to
        the next."""
        begin = 0
        for mark in self._cut.finditer(text):
            if mark.start() > begin:
                yield text[begin : mark.start()]
                begin = mark.start()
        if begin < len(text):
            yield text[begin:]

    def _keep(self, new: dict[tuple[bytes, str], bytes]) -> None:
        with self._lock:
            for key, ids in new.items():
                if key not in self._known:
                    self._known[key] = ids
                    self._bytes += _size(key, ids)
            while self._bytes > self._max_bytes:
                key, ids = self._known.popitem(last=False)
                self._bytes -= _size(key, ids)


def _size(key: tuple[bytes, str], ids: bytes) -> int:
    return _ENTRY_BYTES + getsizeof(key[1]) + len(ids)


def _pattern(marks: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)) or r"(?!)")


def _cut_marks(tokenizer: Tokenizer) -> list[str]:
    """The control tokens that every tokenisation takes out, wherever their text stands.

    Looked for before normalisation, leftmost and longest first, so such a token must not stand
    inside another one, nor begin with what another one ends with. One that swallows the space
    before it would reach into the piece before.
    """
    added: list[AddedToken] = list(tokenizer.get_added_tokens_decoder().values())
    if any(token.single_word for token in added):
        return []  # whether these match depends on what stands around them
    texts = {token.content for token in added}
    endings = {text[place:] for text in texts for place in range(1, len(text))}
    return [
        token.content
        for token in added
        if token.special
        and not token.normalized
        and not token.lstrip
        and token.content
        and not any(token.content[:size] in endings for size in range(1, len(token.content) + 1))
        and not any(token.content in text for text in texts if text != token.content)
    ]
