"""Secrets are referred to, never written: and what was written all the same is never shown.

A reference is `env:NAME`, `file:/path` or `credential:NAME` (a systemd credential). Where a recipe
holds something else under a key that sounds secret, messages show the line without it.
"""

from __future__ import annotations

import re

REFERENCE = r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|credential:[A-Za-z0-9_][A-Za-z0-9_.-]*"
HIDDEN = "***"

_KEY = re.compile(
    r"(?P<before>.*?[\w-]*(?:key|token|secret|password|passwd|credential|tls)[\w-]*[\"']?\s*:(?=\s|$))"
    r"(?P<value>.*)",
    re.IGNORECASE | re.DOTALL,
)
_HARMLESS = re.compile(
    rf"\s*(?:\[\s*)?[\"']?(?:(?:{REFERENCE})[\"'\]\s]*|[-+0-9.]*|true|false|null|auto)\s*(?:#.*)?",
    re.DOTALL,
)


def is_secret_key(key: str) -> bool:
    """Whether the last part of a dotted key sounds like one whose value is a secret."""
    return _KEY.fullmatch(f"{key.rpartition('.')[2]}:") is not None


def masked_value(key: str, text: str) -> str:
    """`text` as it may be shown beside `key`."""
    return HIDDEN if is_secret_key(key) and not _HARMLESS.fullmatch(text) else text


def masked_line(lines: list[str], index: int) -> str:
    """Line `index` without what follows a key that sounds secret, on it or above it."""
    line = lines[index]
    match = _KEY.fullmatch(line)
    if match is not None:
        value = match["value"]
        return line if _HARMLESS.fullmatch(value) else f"{match['before']} {HIDDEN}"
    indent = _indent(line)
    for above in reversed(lines[:index]):
        if not above.strip() or above.lstrip().startswith("#"):
            continue
        # Items of a list may stand as far left as the key they belong to.
        inside = _indent(above) < indent or (
            line.lstrip().startswith("-") and _indent(above) == indent
        )
        if inside and _KEY.fullmatch(above):
            item = line.strip().removeprefix("-")
            return line if _HARMLESS.fullmatch(item) else f"{line[:indent]}{HIDDEN}"
        if _indent(above) < indent:
            break
    return line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
