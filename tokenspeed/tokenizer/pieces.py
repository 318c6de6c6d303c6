"""Token ids to bytes.

Every tokenizer of a language model decodes token by token into bytes (byte-level BPE spells each
byte as a printable character; SentencePiece spells a space as "▁" and lone bytes as "<0x0A>").
Knowing the bytes of each id makes decoding a stream exact and its cost per token constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from tokenizers import Tokenizer

from tokenspeed.tokenizer.assets import tokenizer_error

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


class Pieces:
    """The bytes of every token of one tokenizer. `strips_space` is how many leading spaces the
    decoder takes from the whole text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(
            token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
        )
        self._spell, self.strips_space = _speller(tokenizer)
        self._known: dict[int, bytes] = {}

    def is_special(self, token: int) -> bool:
        """Control tokens: they end or structure the text but are no part of it."""
        return token in self._special

    def text_bytes(self, token: int) -> bytes:
        """What the token adds to the text: nothing for special ids and ids beyond the table."""
        return b"" if token in self._special else self.raw_bytes(token)

    def raw_bytes(self, token: int) -> bytes:
        """The token's own spelling, special or not; b"" for ids that spell nothing."""
        known = self._known.get(token)
        if known is None:
            piece = self._tokenizer.id_to_token(token)
            known = self._known[token] = b"" if piece is None else self._spell(piece)
        return known


def _speller(tokenizer: Tokenizer) -> tuple[Callable[[str], bytes], int]:
    decoder = tokenizer.decoder
    state = {} if decoder is None else msgspec.json.decode(decoder.__getstate__())
    stages = state.get("decoders", [state] if state else [])
    steps: list[Callable[[str], str | bytes]] = []
    strips = 0
    for stage in stages:
        match stage["type"]:
            case "ByteLevel":
                steps.append(_byte_level())
            case "Replace":
                steps.append(_replace(stage))
            case "ByteFallback":
                steps.append(_byte_fallback)
            case "Metaspace":
                steps.append(lambda piece: piece.replace(_SPACE, " "))
                strips = 0 if stage.get("prepend_scheme") == "never" else 1
            case "Strip" if stage["content"] == " " and stage["stop"] == 0:
                strips = stage["start"]
            case "Fuse":
                pass  # joins the pieces, which is what bytes do anyway
            case other:
                hint = "byte-level and SentencePiece decoders are supported"
                raise tokenizer_error("tokenizer.json", f"decoder {other!r} is not known", hint)

    def spell(piece: str) -> bytes:
        spelt: str | bytes = piece
        for step in steps:
            if isinstance(spelt, bytes):
                break
            spelt = step(spelt)
        return spelt.encode() if isinstance(spelt, str) else spelt

    return spell, strips


def _byte_level() -> Callable[[str], str | bytes]:
    values = {name: byte for byte, name in byte_names().items()}

    def spell(piece: str) -> str | bytes:
        try:
            return bytes([values[character] for character in piece])
        except KeyError:
            return piece  # an added token outside the byte alphabet stands for itself

    return spell


def byte_names() -> dict[int, str]:
    """Byte -> the printable character that spells it in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = (byte for byte in range(256) if byte not in printable)
    names = {byte: chr(byte) for byte in printable}
    return names | {byte: chr(0x100 + place) for place, byte in enumerate(shifted)}


def _replace(stage: dict[str, Any]) -> Callable[[str], str | bytes]:
    pattern, content = stage["pattern"], stage["content"]
    if "String" in pattern:
        plain = pattern["String"]
        return lambda piece: piece.replace(plain, content)
    compiled = re.compile(pattern["Regex"])
    return lambda piece: compiled.sub(lambda _: content, piece)


def _byte_fallback(piece: str) -> str | bytes:
    found = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece
