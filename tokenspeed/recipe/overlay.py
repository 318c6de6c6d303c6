"""Mappings put over mappings, and `--set a.b=c`, which does so from the command line.

Mappings merge, everything else replaces (lists too), `null` deletes.
"""

from __future__ import annotations

from dataclasses import replace

from tokenspeed.errors import Problem, UsageError, Where
from tokenspeed.recipe.document import Entry, Mapping, Scalar, Tree, parse_value
from tokenspeed.recipe.secrets import masked_value

# What composes files is said in files, where it can be reviewed.
OF_THE_FILE = ("extends", "when")


def merged(under: Mapping, over: Mapping) -> Mapping:
    """`under` with everything that `over` says put over it.

    A null deletes what is there. One that deletes nothing stays, and so does a key with nothing
    after its colon (its children may have lost their indentation): validation refuses both.
    """
    for entry in over.entries:
        under = _put(under, entry)
    return under


def _put(under: Mapping, new: Entry) -> Mapping:
    old = next((entry for entry in under.entries if entry.key == new.key), None)
    if old is None:
        return replace(under, entries=(*under.entries, new))
    value = new.value
    if isinstance(value, Scalar) and value.value is None and not value.empty:
        return replace(under, entries=tuple(entry for entry in under.entries if entry is not old))
    if isinstance(old.value, Mapping) and isinstance(value, Mapping):
        new = replace(new, value=merged(old.value, value))
    return replace(under, entries=tuple(new if entry is old else entry for entry in under.entries))


def overlay(root: Mapping, overrides: tuple[str, ...]) -> tuple[Mapping, list[Problem]]:
    """`root` with every override applied in order, and the faults in their values.

    The place of an overridden value is the override's own text. Raises UsageError for an
    override that is not KEY=VALUE, RecipeError for a value that is not YAML.
    """
    problems: list[Problem] = []
    for text in overrides:
        keys, value, faults, where = _parse(text)
        problems += faults
        if isinstance(value, Scalar) and value.value is None:
            root = _without(root, keys)
            continue
        for key in reversed(keys):
            value = Mapping((Entry(key, where, value),), where)
        assert isinstance(value, Mapping)
        root = merged(root, value)
    return root, problems


def _without(root: Mapping, keys: list[str]) -> Mapping:
    """`root` less what is at the dotted path `keys`; the same where nothing is."""
    key, rest = keys[0], keys[1:]
    kept: list[Entry] = []
    for entry in root.entries:
        if entry.key != key:
            kept.append(entry)
        elif rest and isinstance(entry.value, Mapping):
            kept.append(replace(entry, value=_without(entry.value, rest)))
        elif rest:
            kept.append(entry)
    return replace(root, entries=tuple(kept))


def _parse(text: str) -> tuple[list[str], Tree, list[Problem], Where]:
    path, equals, value_text = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        hint = "write the dotted key and the value: --set limits.max_running=8"
        raise _usage(f"--set {path.strip()!r} is not KEY=VALUE", hint)
    if keys[0] in OF_THE_FILE:
        hint = "write it into the recipe"
        raise _usage(f"--set cannot say {keys[0]}: it composes files", hint)
    where = Where(f"--set {path}={masked_value(path, value_text)}")
    value, faults = parse_value(value_text, where.file)
    return keys, value, faults, where


def _usage(message: str, hint: str) -> UsageError:
    return UsageError(Problem(code="TS-C002", message=message, hint=hint))
