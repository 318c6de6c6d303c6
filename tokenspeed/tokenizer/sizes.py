"""How much a template's texts may grow: it is measured before they are made.

Single steps are: what one of them makes of few characters, or of one text that stands in a list a
thousand times. Many steps of what is just allowed end with the time that a template has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import jinja2
import jinja2.filters
from jinja2 import nodes

MAX_CHARACTERS = 32_000_000  # of the rendered text, and of any text made on the way
_MAX_BITS = 4096
_PIECES_A_CHECK = 128
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)")
_WIDE_FIELD = re.compile(r"\{[^}]*\d{5,}")
_WIDEST_INDENT = 64


class TemplateError(Exception):
    """The template refused the conversation, failed, or cost too much. Says so to the client."""


def check_length(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise TemplateError(f"the chat template makes more than {MAX_CHARACTERS} characters")


def written(*values: Any) -> int:
    """Characters of the values as text, about; a text that stands in a list a thousand times is
    written as often. Raises TemplateError for more than there may be."""
    size, waiting = 0, list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list | tuple | dict):
            size += len(value)
            check_length(size)
            waiting += value
            if isinstance(value, dict):
                waiting += value.values()
    check_length(size)
    return size


def writable(value: Any) -> Any:
    """What is printed, or made a text of."""
    if type(value) is not str:
        written(value)
    return value


def checked_arguments(
    text: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Of a method that can make much more of its text than went in; others are let through.
    An iterable that can be read once only is returned as a list."""
    match method, args:
        case "replace", (str() as old, str() as new, *_):
            check_length(len(text) + text.count(old) * len(new))
        case "join", (parts,):
            parts = list(islice(parts, MAX_CHARACTERS + 1))
            check_length(written(parts) + len(text) * len(parts))
            return (parts,)
        case "expandtabs", _:
            size = next(iter((*args, *kwargs.values())), 8)
            check_length(len(text) + text.count("\t") * size)
        case "format" | "format_map", _:
            values = [*args, *kwargs.values()]
            # A number may be a width.
            largest = max((v if type(v) is int else written(v) for v in values), default=0)
            check_length(len(text) + text.count("{") * largest)
            if _WIDE_FIELD.search(text):
                raise TemplateError("the chat template formats to a huge width")
        case _:
            pass
    return args


def check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise TemplateError("the chat template computes with huge numbers")


def check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise TemplateError("the chat template formats to a huge width")


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    check_format(value)
    return jinja2.filters.do_format(value, *args, **kwargs)


def _center(value: str, width: int = 80) -> str:
    check_length(width)
    return jinja2.filters.do_center(value, width)


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, int) else len(width)
    check_length(len(value) + pad * (value.count("\n") + 1))
    return jinja2.filters.do_indent(value, width, first, blank)


@jinja2.pass_eval_context
def _join(
    context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: Any = None
) -> str:
    parts = list(islice(value, MAX_CHARACTERS + 1))
    if attribute is not None:
        parts = list(map(jinja2.filters.make_attrgetter(context.environment, attribute), parts))
    check_length(written(parts) + len(d) * len(parts))
    text: str = jinja2.filters.do_join(context, parts, d)
    return text


@jinja2.pass_eval_context
def _replace(
    context: nodes.EvalContext, s: Any, old: str, new: str, count: int | None = None
) -> str:
    text, old, new = str(writable(s)), str(old), str(new)
    check_length(len(text) + text.count(old) * len(new))
    return jinja2.filters.do_replace(context, text, old, new, count)


def _string(value: Any) -> str:
    return str(writable(value))


_encode_json = json.JSONEncoder(ensure_ascii=False).encode


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: unescaped Unicode and no HTML escapes."""
    written(value)
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return _encode_json(value)  # what nearly every template asks for
    if indent is not None and indent > _WIDEST_INDENT:
        raise TemplateError("the chat template indents by a huge width")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return joined(encoder.iterencode(value))


def joined(pieces: Iterable[str]) -> str:
    # Pieces are texts that are there already: many of them at once cost nothing yet.
    parts: list[str] = []
    length, waiting = 0, iter(pieces)
    while some := list(islice(waiting, _PIECES_A_CHECK)):
        length += sum(map(len, some))
        check_length(length)
        parts += some
    return "".join(parts)


FILTERS: Mapping[str, Callable[..., Any]] = {
    "tojson": _tojson,
    "format": _format,
    "center": _center,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "string": _string,
}
"""In the place of jinja2's own, or beside them."""
