"""One answer: reasoning first, then text and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenspeed.server.parsers.parts import Part, Text, merged
from tokenspeed.server.parsers.reasoning import ReasoningSplitter
from tokenspeed.server.parsers.tools import ToolScanner


class Parser(Protocol):
    """Feed it the answer in pieces of any size; the joined parts do not depend on the sizes."""

    @property
    def reasons(self) -> bool:
        """Whether the model may think aloud."""
        ...

    @property
    def inside_reasoning(self) -> bool: ...

    @property
    def done(self) -> bool:
        """Whether the one call was made that was allowed."""
        ...

    def push(self, text: str) -> list[Part]: ...

    def finish(self, cut: bool) -> list[Part]:
        """What is left. `cut`: the answer ends where the model would have gone on."""
        ...


class AnswerParser:
    """A `Parser` for marks within the text. `only_calls`: the grammar leaves no other, so what
    looks like text is the beginning of a mark that was cut off."""

    def __init__(
        self,
        reasoning: ReasoningSplitter | None,
        tools: ToolScanner | None,
        only_calls: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._only_calls = only_calls

    @property
    def reasons(self) -> bool:
        return self._reasoning is not None

    @property
    def inside_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.inside

    @property
    def done(self) -> bool:
        return self._tools is not None and self._tools.done

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = [Text(text)] if text else []
        if self._reasoning is not None:
            parts = self._reasoning.push(text)
        if self._tools is None:
            return parts
        return self._shown(self._scanned(parts))

    def finish(self, cut: bool) -> list[Part]:
        parts = [] if self._reasoning is None else self._scanned(self._reasoning.finish())
        if self._tools is not None:
            parts += self._tools.finish(cut)
        return self._shown(parts)

    def _shown(self, parts: Sequence[Part]) -> list[Part]:
        if self._only_calls:
            parts = [part for part in parts if not isinstance(part, Text)]
        return merged(parts)

    def _scanned(self, parts: Sequence[Part]) -> list[Part]:
        if self._tools is None:
            return list(parts)
        scanned: list[Part] = []
        for part in parts:
            scanned += self._tools.push(part.text) if isinstance(part, Text) else [part]
        return scanned
