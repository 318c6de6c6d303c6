"""Numbers of a command line, for argparse: a wrong one is refused before anything runs."""

from __future__ import annotations

import contextlib
import math
from argparse import ArgumentTypeError
from collections.abc import Callable


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Reads a whole number from `low` on, to `high` where there is one."""
    bounds = f"from {low} on" if high is None else f"from {low} to {high}"

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 20:
            value = int(text)
            if low <= value and (high is None or value <= high):
                return value
        raise ArgumentTypeError(f"{text} is not a whole number {bounds}")

    return read


def amount(text: str) -> float:
    """Reads a number above 0."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise ArgumentTypeError(f"{text} is not a number above 0")
