"""Pieces of grammars, by what can be drawn under them."""

from __future__ import annotations

import re

import pytest

from tests.grammar.walk import SPELLING, answer, tokens
from tokenspeed.grammar import lark
from tokenspeed.grammar.lark import Piece
from tokenspeed.grammar.limits import MAX_DEPTH, MAX_GRAMMAR_BYTES, GrammarError, checked_json


def texts(piece: Piece, count: int = 6) -> list[str]:
    return [answer(lark.write(piece), seed).decode() for seed in range(count)]


@pytest.mark.parametrize(
    "text", ["plain", 'quote " and \\ and /', "line\nbreak\t", "ünï 🦙", "<|go|>", "\x7f\x01"]
)
def test_a_literal_is_itself(text: str) -> None:
    assert set(texts(lark.literal(text), 2)) == {text}


def test_a_control_token_is_no_text() -> None:
    go = SPELLING.control["<|go|>"]
    assert tokens(lark.write(lark.row(lark.literal("a"), lark.token(go))), 0) == [ord("a"), go]
    assert tokens(lark.write(lark.literal("<|go|>")), 0) == list(b"<|go|>")


@pytest.mark.parametrize(
    "expression", ["a/b", "[/]{2}", "a\\/b", "a\nb|c", "\\d{2}/\\w", "x\\\\y", '"[^"]{1,3}"', "é+?"]
)
def test_patterns_match_as_they_are_written(expression: str) -> None:
    for text in texts(lark.pattern(expression)):
        assert re.fullmatch(expression, text, re.ASCII)


def test_rows_alternatives_and_repetitions() -> None:
    a, b = lark.literal("a"), lark.rule("bees", lark.either(lark.literal("b"), lark.literal("B")))
    piece = lark.row(lark.optional(a), lark.any_number(b), a)
    found = texts(piece, 30)
    assert all(re.fullmatch("a?[bB]*a", text) for text in found)
    assert len(set(found)) > 4
    assert lark.write(lark.EMPTY) == 'start: ""\n'


def test_text_until_a_mark_holds_it_only_at_its_end() -> None:
    piece = lark.row(lark.text_until("]", "until"), lark.literal("!"))
    for text in texts(piece):
        assert re.fullmatch(r"[^\]]*\]!", text, re.DOTALL)


def test_text_with_tags_lets_nothing_else_begin_like_one() -> None:
    tags = [("{", lark.row(lark.literal("x}"))), ("{", lark.row(lark.literal("yy}")))]
    for text in texts(lark.text_with(tags), 12):
        assert "{" not in re.sub(r"\{(x|yy)\}", "", text)


def test_whole_grammars_are_parts_of_others() -> None:
    inner = lark.grammar("start: A+\nA: /[pq]/", "inner")
    for text in texts(lark.row(lark.literal("<"), inner, lark.literal(">"))):
        assert re.fullmatch("<[pq]+>", text)


def test_blanks_in_json_are_bounded() -> None:
    schema = {"type": "array", "items": {"const": 1}, "minItems": 3, "maxItems": 3}
    for text in texts(lark.json_value(schema)):
        assert re.search(r"\s{66}", text) is None


def test_sizes_are_bounded_before_anything_walks_in() -> None:
    deep: object = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"a": deep}
    with pytest.raises(GrammarError, match="levels"):
        checked_json(deep)
    with pytest.raises(GrammarError, match="bytes"):
        lark.json_value({"const": "x" * MAX_GRAMMAR_BYTES})
    with pytest.raises(GrammarError, match="bytes"):
        lark.write(lark.literal("x" * MAX_GRAMMAR_BYTES))
    for schema in ([], None, "x", 1):
        with pytest.raises(GrammarError, match="object"):
            lark.json_value(schema)
