"""Keeps what users write apart from what the template writes.

The text of a control token (`<|im_end|>`) ends a turn when the template writes it, and is
ordinary text when a user does: no message can forge another one. Added tokens that are not
control tokens (`<think>`, `<tool_call>`) are ordinary vocabulary and parse everywhere.

How: in the messages every such text is replaced by one character that occurs nowhere else, the
template is rendered, its own control tokens are replaced by aliases, and the characters are
turned back. A second tokenizer, which knows the aliases but takes control tokens for plain text,
then encodes the whole in one go. Conversations without such text never come here.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tokenspeed.tokenizer.assets import encode
from tokenspeed.tokenizer.segments import Segments

_PRIVATE = range(0xF0000, 0xFFFFE)  # a private-use plane: no meaning, so nobody's text


@dataclass(frozen=True, slots=True)
class Marked:
    """Messages whose control-token texts are single characters; `marks` says which."""

    messages: Sequence[Any]
    marks: Mapping[int, str]


class LiteralText:
    """The rule above for one tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, segments: Segments) -> None:
        self._source = tokenizer
        self._segments = segments
        self._specials = {
            added.content: (token, added)
            for token, added in tokenizer.get_added_tokens_decoder().items()
            if added.special
        }
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # Most texts hold none of these characters, which is found out at the speed of memory.
        self._beginnings = {text[0] for text in self._specials}
        self._plain: tuple[Tokenizer, dict[str, str], dict[int, int]] | None = None
        self._lock = Lock()

    def mark(self, messages: Sequence[Any]) -> Marked | None:
        """None when no text in `messages` (any nesting) holds the text of a control token."""
        texts = _texts(messages)
        found = set(self._found(texts))
        if not found:
            return None
        used = set().union(*map(set, texts))
        free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        marks = dict(zip(sorted(found), free, strict=False))
        replaced = _mapped(messages, lambda text: self._pattern.sub(lambda m: marks[m[0]], text))
        return Marked(replaced, {ord(mark): special for special, mark in marks.items()})

    def says_control(self, value: object) -> bool:
        """Whether `mark` would find something."""
        return bool(self._found(_texts(value)))

    def _found(self, texts: list[str]) -> list[str]:
        # The joint keeps texts apart: no control token holds a NUL.
        joined = "\0".join(texts)
        if not any(beginning in joined for beginning in self._beginnings):
            return []
        found: list[str] = self._pattern.findall(joined)
        return found

    def encode(self, rendered: str, marked: Marked, space: bytes = b"") -> bytes:
        """The ids of a rendered template as little-endian int32; nothing is added. `space` is
        that of `Segments.encode`."""
        plain, alias_of, id_of = self._tokenizer()
        marks = dict(marked.marks)

        def ids_of(piece: str) -> list[int]:
            text = self._pattern.sub(lambda found: alias_of[found[0]], piece)
            ids = encode(plain, text.translate(marks), add_special=False)
            return [id_of.get(token, token) for token in ids]

        # The same characters mean something else under other marks. No salt holds this byte, which
        # is in no UTF-8, so nobody can choose one to be remembered here.
        return self._segments.encode(rendered, space + b"\xff" + repr(marks).encode(), ids_of)

    def _tokenizer(self) -> tuple[Tokenizer, dict[str, str], dict[int, int]]:
        with self._lock:
            if self._plain is None:
                self._plain = self._build()
            return self._plain

    def _build(self) -> tuple[Tokenizer, dict[str, str], dict[int, int]]:
        plain = Tokenizer.from_str(self._source.to_str())
        plain.encode_special_tokens = True
        # Unguessable, so no message can spell an alias.
        nonce = secrets.token_hex(16)
        alias_of = {text: f"<{nonce}:{token}>" for text, (token, _) in self._specials.items()}
        plain.add_tokens(
            [
                AddedToken(
                    alias_of[text],
                    special=False,
                    normalized=False,
                    lstrip=added.lstrip,
                    rstrip=added.rstrip,
                )
                for text, (_, added) in self._specials.items()
            ]
        )
        id_of = {}
        for text, (token, _) in self._specials.items():
            alias = plain.token_to_id(alias_of[text])
            assert alias is not None, "the alias was just added"
            id_of[alias] = token
        return plain, alias_of, id_of


def _texts(value: Any) -> list[str]:
    """Every text in nested lists and objects, keys included."""
    texts: list[str] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            texts += part
            part = part.values()
        elif not isinstance(part, list | tuple):
            if isinstance(part, str):
                texts.append(part)
            continue
        for inner in part:
            if type(inner) is str:
                texts.append(inner)
            elif inner is not None:
                waiting.append(inner)
    return texts


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value
