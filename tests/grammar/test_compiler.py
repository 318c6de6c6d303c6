"""Compiling: once per grammar, apart for every answer, and with a reason where it fails."""

from __future__ import annotations

import pytest

from tests.grammar.walk import VOCABULARY, Spelling
from tokenspeed.grammar import compiler
from tokenspeed.grammar.compiler import Compiler
from tokenspeed.grammar.limits import MAX_GRAMMAR_BYTES, GrammarError
from tokenspeed.grammar.vocabulary import Vocabulary


def test_the_vocabulary_is_loaded_once_and_only_when_wanted() -> None:
    loads = []

    def load() -> Vocabulary:
        loads.append(1)
        return VOCABULARY

    made = Compiler(load)
    assert not loads
    made.matcher('start: "a"')
    made.matcher('start: "b"')
    assert loads == [1]


def test_matchers_of_one_grammar_go_their_own_ways() -> None:
    made = Compiler(lambda: VOCABULARY)
    one, other = made.matcher('start: "ab"'), made.matcher('start: "ab"')
    assert one.consume_token(ord("a"))
    assert one.consume_token(ord("b"))
    assert one.is_accepting()
    assert not other.is_accepting()
    assert other.consume_token(ord("a"))
    assert not made.matcher('start: "ab"').is_accepting()


def test_what_was_kept_longest_without_use_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "KEPT", 2)
    made = Compiler(lambda: VOCABULARY)
    compiles = []
    real = compiler.compiled
    monkeypatch.setattr(compiler, "compiled", lambda g, v: compiles.append(g) or real(g, v))
    for letter in "abacab":
        made.matcher(f'start: "{letter}"')
    assert [grammar[-2] for grammar in compiles] == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "Empty grammar"),
        ("start: nobody", "unknown name"),
        ('start: start "a"', "no text satisfies it"),
        ("start: /(/", "invalid regex"),
        ('start: %json {"type": "strnig"}', "Invalid type: strnig"),
        ('start: "' + "x" * MAX_GRAMMAR_BYTES + '"', "larger than"),
    ],
)
def test_reasons(grammar: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as refused:
        Compiler(lambda: VOCABULARY).matcher(grammar)
    assert "\n" not in str(refused.value)


def test_a_model_without_an_end_token_cannot_be_held_to_grammars() -> None:
    spelling = Spelling()
    spelling.eos_token_ids = ()  # type: ignore[assignment]
    with pytest.raises(GrammarError, match="no end token"):
        Vocabulary(spelling, 300)
