"""Finds tool calls in a text that arrives piece by piece.

A call is given once it is whole. Markup that holds no readable call is text, as it was written;
a call that the token limit or a stop string cuts off is not given, and neither is its markup.
Space around calls belongs to the markup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tokenspeed.server.parsers.parts import BadCall, Call, Part, Text, Tools
from tokenspeed.server.parsers.scan import JsonEnd, split
from tokenspeed.server.parsers.written import Write

ParseCalls = Callable[[str, Tools], list[Call]]


class ToolScanner(Protocol):
    """`done`: nothing more is wanted of the model."""

    @property
    def done(self) -> bool: ...

    def push(self, text: str) -> list[Part]: ...

    def finish(self, cut: bool) -> list[Part]:
        """The end of the answer; `cut`: the model would have gone on."""
        ...


@dataclass(frozen=True, slots=True)
class Marked:
    """How a family marks its calls: each stands between an opening and a closing mark.

    `around` are marks before and after all calls, without a meaning of their own.
    """

    marks: Mapping[str, str]
    parse: ParseCalls
    write: Write
    around: tuple[str, str] | tuple[()] = ()


class _Region:
    """The text from an opening mark on. A closing mark within a JSON value does not count."""

    def __init__(self, begin: str, end: str) -> None:
        self.begin = begin
        self.end = end
        self.body = ""
        self._json = JsonEnd()
        self._looked = 0

    def push(self, text: str) -> str | None:
        """What follows the region, None while it lasts."""
        self.body += text
        self._json.push(text)
        if self._json.is_json is None:
            return None
        if self._json.is_json:
            if self._json.end is None:
                return None
            self._looked = max(self._looked, self._json.end)
        at = self.body.find(self.end, self._looked)
        if at < 0:
            self._looked = max(self._looked, len(self.body) - len(self.end) + 1)
            return None
        rest = self.body[at + len(self.end) :]
        self.body = self.body[:at]
        return rest


class MarkedCalls:
    """The scanner of `Marked` formats."""

    def __init__(self, form: Marked, tools: Tools, parallel: bool) -> None:
        self._form = form
        self._tools = tools
        self._parallel = parallel
        self._marks = (*form.marks, *form.around)
        self._held = ""
        self._space = ""  # at the end of the text so far: kept back, a call may follow
        self._region: _Region | None = None
        self._after_call = False  # and nothing but space since
        self._calls = 0
        self.done = False

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        rest: str | None = text
        while rest is not None and not self.done:
            rest = self._outside(rest, parts) if self._region is None else self._inside(rest, parts)
        return parts

    def finish(self, cut: bool) -> list[Part]:
        parts: list[Part] = []
        if self.done:
            return parts
        region, self._region = self._region, None
        if region is None:
            self._text(self._held, parts)
        elif not cut:
            # Models may leave out the last mark, and end tokens may stand for it.
            self._close(region, region.begin + region.body, parts)
        if self._space and not self._calls:
            parts.append(Text(self._space))
        return parts

    def _outside(self, text: str, parts: list[Part]) -> str | None:
        before, mark, rest = split(self._held + text, self._marks)
        self._held = ""
        self._text(before, parts)
        if mark is None:
            self._held = rest
            return None
        if mark in self._form.marks:
            self._region = _Region(mark, self._form.marks[mark])
        else:
            self._space = ""
        return rest

    def _inside(self, text: str, parts: list[Part]) -> str | None:
        region = self._region
        assert region is not None
        rest = region.push(text)
        if rest is not None:
            self._region = None
            self._close(region, region.begin + region.body + region.end, parts)
        return rest

    def _close(self, region: _Region, source: str, parts: list[Part]) -> None:
        try:
            calls = self._form.parse(region.body, self._tools)
        except BadCall:
            self._text(source, parts)
            return
        self._space = ""
        self._after_call = True
        parts += calls if self._parallel else calls[:1]
        self._calls += len(calls)
        self.done = not self._parallel

    def _text(self, text: str, parts: list[Part]) -> None:
        if self._after_call:
            text = text.lstrip()
        if not text:
            return
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._after_call = False
            parts.append(Text(shown))


@dataclass(frozen=True, slots=True)
class Bare:
    """Calls are JSON objects without marks, at the very beginning of the answer, one after the
    other; `prefix` may stand before them, "" for none. Only names of tools make them calls."""

    parse: ParseCalls
    write: Write
    prefix: str = ""


class BareCalls:
    """The scanner of `Bare` formats."""

    def __init__(self, form: Bare, tools: Tools, parallel: bool) -> None:
        self._form = form
        self._tools = tools
        self._parallel = parallel
        self._held = ""
        self._json: JsonEnd | None = None
        self._offset = 0  # of the JSON value in what is held
        self._plain = False  # from here on all is text
        self._calls = 0
        self.done = False

    def push(self, text: str) -> list[Part]:
        if self._plain:
            return [Text(text)] if text else []
        parts: list[Part] = []
        self._held += text
        if self._json is not None:
            self._json.push(text)
        while not self._plain and not self.done and self._step(parts):
            pass
        return parts

    def finish(self, cut: bool) -> list[Part]:
        held, self._held = self._held, ""
        if self.done or not held or (self._calls and not held.strip()):
            return []
        # Only an object that has said which tool it calls is a call cut off.
        if cut and self._json is not None and self._begins_call(held):
            return []
        return [Text(held)]

    def _begins_call(self, held: str) -> bool:
        compact = "".join(held.lstrip().removeprefix(self._form.prefix).split())
        starts = (f'{{"name":"{"".join(name.split())}"' for name in self._tools)
        return any(compact.lstrip("[").startswith(start) for start in starts)

    def _step(self, parts: list[Part]) -> bool:
        if self._json is not None:
            return self._json.end is not None and self._close(self._json.end, parts)
        text = self._held.lstrip(" \t\r\n;" if self._calls else None)
        prefix = self._form.prefix
        if prefix and text.startswith(prefix):
            text = text[len(prefix) :].lstrip()
        elif prefix and prefix.startswith(text):
            return False
        if not text:
            return False
        if text[0] in "{[":
            self._json = JsonEnd()
            self._json.push(self._held[len(self._held) - len(text) :])
            self._offset = len(self._held) - len(text)
            return True
        self._give_up(parts)
        return False

    def _close(self, end: int, parts: list[Part]) -> bool:
        end += self._offset
        try:
            calls = self._form.parse(self._held[self._offset : end], self._tools)
        except BadCall:
            calls = []
        if not calls or any(call.name not in self._tools for call in calls):
            self._give_up(parts)
            return False
        self._json = None
        self._held = self._held[end:]
        parts += calls if self._parallel else calls[:1]
        self._calls += len(calls)
        self.done = not self._parallel
        return True

    def _give_up(self, parts: list[Part]) -> None:
        self._plain = True
        held, self._held = self._held, ""
        parts.append(Text(held.lstrip() if self._calls else held))
