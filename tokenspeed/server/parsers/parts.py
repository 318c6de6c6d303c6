"""The parts of an answer, in the order in which the model wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A whole tool call. `arguments` is a JSON object, as the model spelt it where it writes JSON.

    `call_id` is the model's own name for the call, None for most models.
    """

    name: str
    arguments: str
    call_id: str | None = None


Part: TypeAlias = Text | Reasoning | Call
# Name of each tool -> JSON schema of its arguments.
Tools: TypeAlias = Mapping[str, Mapping[str, Any]]


class BadCall(ValueError):  # noqa: N818 - what the model wrote, nobody's error
    """The markup of a call is there, but no call can be read from it."""


def merged(parts: Sequence[Part]) -> list[Part]:
    """The same with neighbours of one kind joined."""
    if len(parts) < 2:
        return list(parts)
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(last.text + part.text)
        else:
            joined.append(part)
    return joined
