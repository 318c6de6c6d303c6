"""Bodies from JSON, of which an agent's next one repeats nearly all: the messages so far.

What a list of messages begins with like one of an earlier body is taken from there, as objects and
as what readers made of them (`Entries.read`). A body decodes to the same as by itself; what is
wrong with one is found by decoding it whole.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenspeed.beginnings import Beginnings

MAX_BYTES = 64 << 20  # of what is remembered, as objects; about 5 million tokens
CHUNK_BYTES = 4096  # smaller bodies are not worth it
_OBJECT_BYTES = 3  # that a byte of text takes as an object and its share of what holds it

_OBJECTS = re.compile(rb"\[\s*\{")
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
    """Entries, and where in the list's text each of them ends."""

    entries: Entries
    ends: list[int]


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
            # A salt of the client's divides what its tenant may share.
            salt = str(fields.get("cache_salt") or "").encode()
            fields[name] = self._listed(bytes(raw[name]), space + b"\0" + salt)
        return fields

    def _listed(self, text: bytes, space: bytes) -> Any:
        if not _OBJECTS.match(text):
            return _VALUE.decode(text)
        found = self._known.find(text, space)
        known = 0 if found.value is None else bisect_right(found.value.ends, found.shared)
        earlier = found.value if known else None
        ends = [] if earlier is None else earlier.ends[:known]
        end = ends[-1] if ends else 0
        # Behind an entry stand a comma and the others, or the end of the list.
        rest = text[end:].lstrip() if known else text
        new = _LIST.decode(b"[" + rest.lstrip(b",") if known else rest)
        for part in new:
            end = text.find(part, end) + len(part)
            ends.append(end)
        decoded = [_VALUE.decode(part) for part in new]
        if earlier is None:
            entries = Entries(decoded, [])
        else:
            entries = Entries([*earlier.entries[:known], *decoded], earlier.entries.read[:known])
        # An object ends where its text does; of a number that would not be sure.
        if all(type(entry) is dict for entry in decoded):
            size = _OBJECT_BYTES * len(text)
            self._known.keep(text, found, _Listed(entries, ends), size, space)
        return entries
