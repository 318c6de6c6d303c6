"""Values of a plan as people read them."""

from __future__ import annotations

from tokenspeed.recipe.kinds import format_size
from tokenspeed.resolve.ledger import Value


def value_text(field: str, value: Value) -> str:
    """A decided value: sizes with units, flags as the recipe spells them."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value)
    if field.endswith(("_bytes", ".bytes")) and isinstance(value, int):
        return format_size(value)
    if field.endswith("_seconds"):
        return f"{value:g}s"
    return str(value)


def milliseconds(seconds: float) -> str:
    """To three digits, or to 0.01 ms: 0.0123 -> 12.3 ms."""
    number = seconds * 1000
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} ms"
