"""Harmony's channels, whole and cut at every character."""

from __future__ import annotations

import pytest

from tokenspeed.server.parsers.dialect import dialect_of
from tokenspeed.server.parsers.harmony import HarmonyParser
from tokenspeed.server.parsers.parts import Call, Part, Reasoning, Text, merged

TOOLS = {"weather": {}, "clock": {}}
THOUGHT = "<|channel|>analysis<|message|>Hm ü<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
ARGUMENTS = '{"city": "<|end", "n": [1]}'
CASES: dict[str, tuple[str, list[Part]]] = {
    "final": ("<|channel|>final<|message|>So.", [Text("So.")]),
    "thought": (f"{THOUGHT}<|channel|>final<|message|>So.", [Reasoning("Hm ü"), Text("So.")]),
    "call": (f"{THOUGHT}{CALL}{ARGUMENTS}", [Reasoning("Hm ü"), Call("weather", ARGUMENTS)]),
    "call with its end": (f"{CALL}{{}}<|call|>", [Call("weather", "{}")]),
    "recipient first": (
        " to=functions.clock<|channel|>commentary <|constrain|>json<|message|>{}",
        [Call("clock", "{}")],
    ),
    "no arguments": ("<|channel|>commentary to=functions.clock<|message|>", [Call("clock", "{}")]),
    "preamble": (
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}{{}}",
        [Text("I look."), Call("weather", "{}")],
    ),
    "two thoughts": (f"{THOUGHT}{THOUGHT}", [Reasoning("Hm üHm ü")]),
    "no channels": ("Just <b>text", [Text("Just <b>text")]),
    "no JSON": (f"{CALL}{{oh", [Text("{oh")]),
    "nothing": ("", []),
}


def parts_of(pieces: list[str], *, cut: bool = False, tools: bool = True) -> list[Part]:
    parser = HarmonyParser(TOOLS if tools else None)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return merged([*parts, *parser.finish(cut)])


@pytest.mark.parametrize("name", CASES)
def test_the_parts_do_not_depend_on_the_pieces(name: str) -> None:
    text, expected = CASES[name]
    assert parts_of([text]) == expected
    assert parts_of(list(text)) == expected
    for at in range(len(text)):
        assert parts_of([text[:at], text[at:]]) == expected


def test_a_call_that_is_cut_off_is_not_given() -> None:
    text = CASES["call"][0]
    for at in range(len(THOUGHT), len(text)):
        assert parts_of([text[:at]], cut=True) == [Reasoning("Hm ü")]


def test_without_tools_a_call_is_text() -> None:
    assert parts_of([f"{CALL}{{}}"], tools=False) == [Text("{}")]


def test_only_what_may_be_a_mark_is_withheld() -> None:
    parser = HarmonyParser(TOOLS)
    assert parser.push("<|channel|>final<|message|>a<|e") == [Text("a")]
    assert parser.push("nter") == [Text("<|enter")]
    assert not parser.inside_reasoning
    parser = HarmonyParser(TOOLS)
    parser.push("<|channel|>analysis<|message|>")
    assert parser.inside_reasoning


def test_the_template_shows_it() -> None:
    template = "<|start|>assistant<|channel|>final<|message|>{{ reasoning_effort }}"
    dialect = dialect_of(template, takes_tools=True)
    assert (dialect.tool_format, dialect.reasoning_format) == ("harmony", "harmony")
    assert dialect_of(template, takes_tools=False).tool_format is None
