"""`--set a.b=c`: values put over a recipe before it is validated.

Mappings merge, everything else replaces, `null` deletes.
"""

from __future__ import annotations

from dataclasses import replace

from tokenspeed.errors import Problem, UsageError, Where
from tokenspeed.recipe.document import Entry, Mapping, Scalar, Tree, parse_value


def overlay(root: Mapping, overrides: tuple[str, ...]) -> tuple[Mapping, list[Problem]]:
    """`root` with every override applied in order, and the faults in their values.

    The place of an overridden value is the override's own text. Raises UsageError for an
    override that is not KEY=VALUE, RecipeError for a value that is not YAML.
    """
    problems: list[Problem] = []
    for text in overrides:
        keys, value, faults = _parse(text)
        problems += faults
        root = _put(root, keys, value, Where(f"--set {text}"))
    return root, problems


def _parse(text: str) -> tuple[list[str], Tree, list[Problem]]:
    path, equals, value_text = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UsageError(
            Problem(
                code="TS-C002",
                message=f"--set {text!r} is not KEY=VALUE",
                hint="write the dotted key and the value: --set limits.max_running=8",
            )
        )
    value, faults = parse_value(value_text, f"--set {text}")
    return keys, value, faults


def _put(mapping: Mapping, keys: list[str], value: Tree, where: Where) -> Mapping:
    """`mapping` with `value` at the dotted path `keys`; missing mappings are made."""
    key, rest = keys[0], keys[1:]
    old = next((entry for entry in mapping.entries if entry.key == key), None)
    if rest:
        inner = old.value if old is not None and isinstance(old.value, Mapping) else None
        value = _put(inner or Mapping((), where), rest, value, where)
    elif old is not None and isinstance(old.value, Mapping) and isinstance(value, Mapping):
        for entry in value.entries:
            value = _put(old.value, [entry.key], entry.value, where)
            old = replace(old, value=value)
    others = [entry for entry in mapping.entries if entry.key != key]
    if isinstance(value, Scalar) and value.value is None:
        return replace(mapping, entries=tuple(others))
    new = Entry(key, where, value)
    if old is None:
        return replace(mapping, entries=(*mapping.entries, new))
    kept = (new if entry.key == key else entry for entry in mapping.entries)
    return replace(mapping, entries=tuple(kept))
