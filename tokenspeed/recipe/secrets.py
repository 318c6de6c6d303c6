"""Secrets are referred to, never written: and what was written all the same is never shown.

What a key is decides, where it is known: a Secret, or something else that only sounds like one
(`graphs.token_counts`). Of keys that no recipe has, those that sound like a secret or are nearly
spelled like one are taken for it. Messages then show the line without the value.
"""

from __future__ import annotations

import re
from functools import cache
from typing import get_args

from pydantic.fields import FieldInfo

from tokenspeed.recipe.keys import key_paths
from tokenspeed.recipe.kinds import HIDDEN, REFERENCE, Secret, without_user
from tokenspeed.recipe.words import nearest

_SOUNDS = re.compile(
    r".*(?:key|token|secret|passw|credential|tls|bearer|authorization).*", re.IGNORECASE
)
_KEY = re.compile(r"(?P<name>[\w.-]+)[\"']?\s*:(?=\s|$)")
_OF_THE_FILE = {"extends", "when", "if", "then"}
_HARMLESS = re.compile(
    rf"\s*(?:\[\s*)?[\"']?(?:(?:{REFERENCE})[\"'\]\s]*|[-+0-9.]*|true|false|null|auto)\s*(?:#.*)?",
    re.DOTALL,
)


def is_secret(path: str) -> bool:
    """Whether what stands at this dotted path of a recipe is a secret, or may have been meant
    as one. What is around the sections does not matter (`when.then.model.token`)."""
    parts = re.sub(r"\[\d+\]", "", path).split(".")
    known, name = _secrecy(), parts[-1]
    for start in range(len(parts)):
        tail = ".".join(parts[start:])
        if tail in known:
            return known[tail]
    if _SOUNDS.fullmatch(name):
        return True
    names = {key.rpartition(".")[2] for key, secret in known.items() if secret}
    others = {key.rpartition(".")[2] for key in known} - names | _OF_THE_FILE
    return name not in others and nearest(name, [*names, *others]) in names


@cache
def _secrecy() -> dict[str, bool]:
    """Whether it holds a secret, for every key and section."""
    known = {path: _holds_secret(field) for path, field in key_paths().items()}
    sections = {path.rpartition(".")[0] for path in known} - {""}
    return known | dict.fromkeys(sections, False)


def _holds_secret(field: FieldInfo) -> bool:
    pending = [*field.metadata, field.annotation]
    while pending:
        part = pending.pop()
        if isinstance(part, Secret):
            return True
        pending += [*get_args(part), *getattr(part, "__metadata__", ())]
    return False


def masked_value(path: str, text: str) -> str:
    """`text`, given for the dotted key `path`, as it may be shown; it may hold keys itself."""
    if is_secret(path):
        return _shown(text)
    section = path.split(".")
    lines = text.split("\n")
    return "\n".join(_masked(lines, i, section) for i in range(len(lines)))


def masked_line(lines: list[str], index: int) -> str:
    """Line `index` of a recipe without what follows the key of a secret, on it or above it."""
    return _masked(lines, index, [])


def _masked(lines: list[str], index: int, section: list[str]) -> str:
    line, around = lines[index], [*section, *_around(lines, index)]
    if any(is_secret(".".join(around[: end + 1])) for end in range(len(section), len(around))):
        indent = line[: _indent(line)]
        item = line.strip().removeprefix("-")
        return line if _HARMLESS.fullmatch(item) else f"{indent}{HIDDEN}"
    for key in _KEY.finditer(line):
        if is_secret(".".join([*around, *_opened(line[: key.start()]), key["name"]])):
            value = line[key.end() :]
            return line if _HARMLESS.fullmatch(value) else f"{line[: key.end()]} {HIDDEN}"
    return without_user(line)


def _shown(text: str) -> str:
    return text if _HARMLESS.fullmatch(text) else HIDDEN


def _around(lines: list[str], index: int) -> list[str]:
    """The keys that line `index` is below, outermost first, as its indentation says."""
    found: list[str] = []
    line = lines[index]
    indent, is_item = _indent(line), line.lstrip().startswith("-")
    for above in reversed(lines[:index]):
        if not above.strip() or above.lstrip().startswith("#"):
            continue
        # Items of a list may stand as far left as the key they belong to.
        key = _KEY.search(above)
        if _indent(above) < indent or (is_item and _indent(above) == indent and key):
            indent, is_item = _indent(above), above.lstrip().startswith("-")
            if key:
                found[:0] = [key["name"], *_opened(above[key.end() :])]
    return found


def _opened(text: str) -> list[str]:
    """The keys whose `{` is still open at the end of `text`, outermost first."""
    open_: list[str] = []
    last = ""
    for part in re.finditer(rf"{_KEY.pattern}|[{{}}]", text):
        if part["name"]:
            last = part["name"]
        elif part[0] == "{":
            open_.append(last)
        elif open_:
            open_.pop()
    return [name for name in open_ if name]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
