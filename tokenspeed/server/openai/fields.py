"""Reads a JSON object field by field. Strict: nothing is converted, every error names its field.

null means absent everywhere. A field that nobody read is reported, never silently dropped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tokenspeed.server.openai.errors import ApiError, bad_request

_PLACE = re.compile(r"\[\d+\]")


class Described(dict[str, Any]):
    """A body of which it is written down how its fields are read: name -> JSON Schema."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self.schemas: dict[str, dict[str, Any]] = {}
        self.taken: list[str] = []  # every field that was read


class Fields:
    """One JSON object; `path` is what error messages put before its fields."""

    def __init__(self, body: object, path: str = "") -> None:
        if not isinstance(body, dict):
            what = repr(path) if path else "The body"
            message = f"{what} must be a JSON object, not {_shown(body)}."
            raise bad_request(message, path or None, "invalid_type")
        self._body: Mapping[str, Any] = body
        self._path = f"{path}." if path else ""
        self._read: set[str] = set()
        self._inner: list[Fields] = []
        self._described = body if isinstance(body, Described) else None

    def _note(self, name: str, **schema: Any) -> None:
        """What a field may be beside null, for `openapi`."""
        if self._described is not None:
            self._described.schemas[name] = schema

    def take(self, name: str) -> Any:
        """The value as it is, None when absent or null."""
        self._read.add(name)
        if self._described is not None:
            self._described.taken.append(name)
        return self._body.get(name)

    def path_of(self, name: str) -> str:
        """How error messages call a field of this object."""
        return f"{self._path}{name}"

    def fail(self, name: str, expected: str) -> ApiError:
        field = f"{self._path}{name}"
        message = f"{field!r} must be {expected}, not {_shown(self._body.get(name))}."
        return bad_request(message, field)

    def integer(self, name: str, low: int, high: int) -> int | None:
        self._note(name, type="integer", minimum=low, maximum=high)
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            raise self.fail(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        self._note(name, type="number", minimum=low, maximum=high)
        value = self.take(name)
        if value is None:
            return None
        # Comparing comes first: an integer may be larger than any float, and a nan is in no range.
        if type(value) not in (int, float) or not low <= value <= high:
            raise self.fail(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def boolean(self, name: str) -> bool:
        self._note(name, type="boolean")
        value = self.take(name)
        if value is not None and type(value) is not bool:
            raise self.fail(name, "true or false")
        return bool(value)

    def text(self, name: str, most: int) -> str | None:
        self._note(name, type="string", maxLength=most)
        value = self.take(name)
        if value is not None and (not isinstance(value, str) or len(value) > most):
            raise self.fail(name, f"a string of at most {most} characters")
        return value

    def choice(self, name: str, words: Collection[str]) -> str | None:
        self._note(name, type="string", enum=list(words))
        value = self.take(name)
        if value is not None and not (isinstance(value, str) and value in words):
            raise self.fail(name, "one of " + ", ".join(words))
        return None if value is None else str(value)

    def forget(self, name: str) -> None:
        """The field turned out to have no effect: it is reported as unread."""
        self._read.discard(name)

    def object(self, name: str) -> Fields | None:
        self._note(name, type="object")
        value = self.take(name)
        if value is None:
            return None
        inner = Fields(value, f"{self._path}{name}")
        self._inner.append(inner)
        return inner

    def part(self, name: str, place: int, value: Any) -> Fields:
        """Entry `place` of the list `name`."""
        if not isinstance(value, dict):
            raise self.fail(name, "a list of objects")
        inner = Fields(value, f"{self._path}{name}[{place}]")
        self._inner.append(inner)
        return inner

    def token_ids(self, name: str, vocab_size: int, most: int) -> tuple[int, ...]:
        token = {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}
        self._note(name, type="array", maxItems=most, items=token)
        value = self.take(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > most or not are_ids(value, vocab_size):
            raise self.fail(name, f"at most {most} token ids from 0 to {vocab_size - 1}")
        return tuple(value)

    def refuse(self, names: Mapping[str, Collection[Any]]) -> None:
        """Fields that this server cannot honour. Only null and the given values, which change
        nothing, pass."""
        for name, harmless in names.items():
            self._note(name, enum=list(harmless))
            value = self.take(name)
            if value is not None and value not in harmless:
                field = f"{self._path}{name}"
                message = f"{field!r} is not supported by this server; leave it out."
                raise bad_request(message, field, "unsupported_parameter")

    def elsewhere(self, names: Mapping[str, str]) -> None:
        """Fields of other endpoints, and what to use here: whoever sends one wants its effect."""
        for name, here in names.items():
            if self._body.get(name) is not None:
                field = f"{self._path}{name}"
                message = f"{field!r} is no field of this endpoint; use {here!r}."
                raise bad_request(message, field, "unsupported_parameter")

    def items(self) -> Sequence[tuple[str, Any]]:
        """Every field; all of them count as read."""
        self._read.update(self._body)
        return list(self._body.items())

    def unread(self) -> list[str]:
        """Names of fields that are set and that nobody asked for, here and in objects within.
        Those of a list's entries are named once, without their place."""
        path = _PLACE.sub("", self._path)
        names = [
            f"{path}{name}"
            for name, value in self._body.items()
            if name not in self._read and value is not None
        ]
        names += [name for inner in self._inner for name in inner.unread()]
        return list(dict.fromkeys(names))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def are_ids(values: Sequence[object], vocab_size: int) -> bool:
    """Whether all are integers of the vocabulary. Fast for long prompts."""
    if not all(type(value) is int for value in values):
        return False
    return not values or (min(values) >= 0 and max(values) < vocab_size)  # type: ignore[type-var, operator]
