"""Bodies from JSON, of which an agent's next one repeats nearly all: the messages so far.

What a list of messages begins with like one of an earlier body is taken from there, as objects and
as what readers made of them (`Entries.read`). A body decodes to the same as by itself; what is
wrong with one is found by decoding it whole.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from tokenspeed.beginnings import Beginnings

MAX_BYTES = 64 << 20  # of what is remembered, as objects; 2 to 5 million tokens
CHUNK_BYTES = 4096  # smaller bodies are not worth it
# One by one they take the loop ten times as long as decoded together.
MOST_OBJECTS = 20_000
# What they take beside their text: for each byte of it, each `{`, `[` or comma, and each entry.
# Those within texts are counted too, which overrates code about twice.
_BYTE_BYTES = 2
_NODE_BYTES = 64
_ENTRY_BYTES = 200

_OBJECTS = re.compile(rb"\[\s*\{")
# Within a text a quote has a backslash before it, so code that is quoted counts hardly at all.
_OBJECT = re.compile(rb'\{\s*["}]')
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder()


class Entries(list[Any]):
    """A list of a body. `read` is what its reader made of the first entries, which readers may
    look up and add to: it depends on nothing but the entry."""

    def __init__(self, entries: list[Any], read: list[Any]) -> None:
        super().__init__(entries)
        self.read = read


@dataclass(frozen=True, slots=True)
class _Listed:
    """Entries, where in the list's text each of them ends, and what it takes with those before
    it, in bytes."""

    entries: Entries
    ends: list[int]
    sizes: list[int]


class Bodies:
    """One per application, for its event loop alone."""

    def __init__(self, max_bytes: int = MAX_BYTES, chunk: int = CHUNK_BYTES) -> None:
        self._least = chunk
        self._known: Beginnings[bytes, _Listed] = Beginnings(chunk, max_bytes)

    @property
    def held_bytes(self) -> int:
        return self._known.held_bytes

    def decode(self, body: bytes, name: str, space: bytes) -> Any:
        """The value of a body whose list of messages has this name. `space` is whose earlier
        bodies of this kind it may be like. Raises what msgspec raises."""
        if len(body) > self._least:
            with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return self._fields(body, name, space)
        return _VALUE.decode(body)

    def _fields(self, body: bytes, name: str, space: bytes) -> dict[str, Any]:
        raw = _FIELDS.decode(body)
        # In their order, in which they are named to the client.
        fields = {key: None if key == name else _VALUE.decode(part) for key, part in raw.items()}
        if name in raw:
            # A salt of the client's divides what its tenant may share. Nobody has looked at it yet:
            # it may be as long as a body.
            salt = fields.get("cache_salt")
            salted = space + b"\0" + (salt.encode() if isinstance(salt, str) else b"")
            fields[name] = self._listed(bytes(raw[name]), hashlib.sha256(salted).digest())
        return fields

    def _listed(self, text: bytes, space: bytes) -> Any:
        if not _OBJECTS.match(text) or _has_many_objects(text):
            return _VALUE.decode(text)
        found = self._known.find(text, space)
        known = 0 if found.value is None else bisect_right(found.value.ends, found.shared)
        earlier = found.value if known else None
        ends = [] if earlier is None else earlier.ends[:known]
        sizes = [] if earlier is None else earlier.sizes[:known]
        end, size = (ends[-1], sizes[-1]) if ends else (0, 0)
        # Behind an entry stand a comma and the others, or the end of the list.
        rest = text[end:].lstrip() if known else text
        new = _LIST.decode(b"[" + rest.lstrip(b",") if known else rest)
        for part in new:
            begin = text.find(part, end)
            end = begin + len(part)
            ends.append(end)
            size += _size(text, begin, end)
            sizes.append(size)
        decoded = [_VALUE.decode(part) for part in new]
        if earlier is None:
            entries = Entries(decoded, [])
        else:
            entries = Entries([*earlier.entries[:known], *decoded], earlier.entries.read[:known])
        # An object ends where its text does; of a number that would not be sure.
        if all(type(entry) is dict for entry in decoded):
            self._known.keep(text, found, _Listed(entries, ends, sizes), len(text) + size, space)
        return entries


def _size(text: bytes, begin: int, end: int) -> int:
    """What an entry with this text takes."""
    nodes = sum(text.count(mark, begin, end) for mark in b"{[,")
    return _BYTE_BYTES * (end - begin) + _NODE_BYTES * nodes + _ENTRY_BYTES


def _has_many_objects(text: bytes) -> bool:
    if text.count(b"{") <= MOST_OBJECTS:
        return False
    return next(islice(_OBJECT.finditer(text), MOST_OBJECTS, None), None) is not None
