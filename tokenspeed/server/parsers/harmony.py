"""Harmony: an answer is a row of messages, each of which says in which channel it speaks.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...

The prompt ends in `<|start|>assistant`. The channel `analysis` is reasoning, `final` the answer,
`commentary` a word to the user or, where the header names a recipient `functions.NAME`, a call,
whose JSON ends with the answer. Headers are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenspeed.grammar import lark
from tokenspeed.grammar.lark import Piece
from tokenspeed.server.parsers.calls import json_object
from tokenspeed.server.parsers.parts import BadCall, Call, Part, Reasoning, Text, Tools, merged
from tokenspeed.server.parsers.scan import split
from tokenspeed.server.parsers.written import Signature, Spelling

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>",
         "<|return|>")  # fmt: skip
THOUGHT = ("<|channel|>analysis<|message|>", "<|end|>")
# What follows a thought, so that the answer can go on.
RESUME = "<|start|>assistant"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
# How a header begins, here or after `<|start|>`.
_BEGINNINGS = ("<|channel|>", "<|start|>", "<|message|>", " to=", "assistant")


class HarmonyParser:
    """An `answer.Parser`. `tools` None: calls are text."""

    def __init__(self, tools: Tools | None) -> None:
        self._tools = tools
        self._held = ""
        self._in_header = True
        self._first = True
        self._header = ""
        self._body = ""  # of a call

    @property
    def done(self) -> bool:
        return False  # a call ends the answer by itself

    @property
    def reasons(self) -> bool:
        return True

    @property
    def inside_reasoning(self) -> bool:
        return not self._in_header and self._channel() == "analysis"

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while self._at_header() if self._in_header else self._at_body(parts):
            pass
        return merged(parts)

    def finish(self, cut: bool) -> list[Part]:
        held, self._held = self._held, ""
        if self._in_header:
            return []
        parts: list[Part] = []
        self._add(held, parts)
        if not cut:
            self._close(parts)
        return merged(parts)

    def _at_header(self) -> bool:
        """Whether there may be more to do, as in `_at_body`."""
        if self._first and not any(
            self._held.startswith(mark) or mark.startswith(self._held) for mark in _BEGINNINGS
        ):
            # No header: a model that was led astray is still heard.
            self._begin("<|channel|>final")
            return True
        header, mark, rest = split(self._held, ("<|message|>",))
        if mark is None:
            return False
        self._held = rest
        self._begin(header)
        return True

    def _begin(self, header: str) -> None:
        self._header = header
        self._in_header = self._first = False

    def _at_body(self, parts: list[Part]) -> bool:
        text, mark, self._held = split(self._held, _ENDS)
        self._add(text, parts)
        if mark is None:
            return False
        self._close(parts)
        self._in_header = True
        return True

    def _channel(self) -> str:
        found = _CHANNEL.search(self._header)
        return found[1] if found else "final"

    def _recipient(self) -> str | None:
        found = None if self._tools is None else _RECIPIENT.search(self._header)
        return None if found is None else found[1]

    def _add(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        if self._recipient() is not None:
            self._body += text
        elif self._channel() == "analysis":
            parts.append(Reasoning(text))
        else:
            parts.append(Text(text))

    def _close(self, parts: list[Part]) -> None:
        name, body, self._body = self._recipient(), self._body, ""
        if name is None:
            return
        try:
            parts.append(Call(name, json_object(body or "{}")))
        except BadCall:
            parts.append(Text(body))


def thought(spelling: Spelling) -> Piece:
    """A message of reasoning, and the beginning of the next one's header."""
    begin = lark.row(
        spelling.mark("<|channel|>"), lark.literal("analysis"), spelling.mark("<|message|>")
    )
    resume = lark.row(spelling.mark("<|start|>"), lark.literal("assistant"))
    return lark.row(begin, spelling.until("<|end|>"), resume)


def final(spelling: Spelling, answer: Piece) -> Piece:
    return lark.row(
        spelling.mark("<|channel|>"), lark.literal("final"), spelling.mark("<|message|>"), answer
    )


def call(spelling: Spelling, signatures: Sequence[Signature]) -> Piece:
    """One call of one of these."""
    commentary = lark.row(spelling.mark("<|channel|>"), lark.literal("commentary to=functions."))
    json_follows = lark.row(
        lark.literal(" "), spelling.mark("<|constrain|>"), lark.literal("json"),
        spelling.mark("<|message|>"),
    )  # fmt: skip
    one_of = [lark.row(lark.literal(one.name), json_follows, one.json()) for one in signatures]
    return lark.row(commentary, lark.either(*one_of))
