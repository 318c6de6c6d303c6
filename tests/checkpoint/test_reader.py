"""Typed values out of a config, and every problem of it at once."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed.checkpoint.reader import ConfigReader
from tokenspeed.errors import CheckpointError


def reader(**config: Any) -> ConfigReader:
    return ConfigReader(config, "config.json")


def test_values() -> None:
    found = reader(n=3, x=0.5, flag=True, word="silu", words=["a", "b"], layers=[1, 2], ids=[4])
    assert found.count("n") == 3
    assert found.count("absent", default=7) == 7
    assert found.count_or_none("absent") is None
    assert found.number("x", 1.0) == 0.5
    assert found.flag("flag")
    assert found.flag("absent", default=True)
    assert found.word("word", "gelu") == "silu"
    assert found.words("words", 2) == ["a", "b"]
    assert found.indices("layers") == {1, 2}
    assert found.token_ids("ids") == (4,)
    assert found.first("absent", "n") == "n"
    found.done()


def test_zero_is_none_where_none_may_be() -> None:
    found = reader(n=0)
    assert found.count_or_none("n") is None
    found.done()


@pytest.mark.parametrize(
    ("config", "ask"),
    [
        ({"n": "3"}, lambda r: r.count("n")),
        ({"n": True}, lambda r: r.count("n")),
        ({"n": -1}, lambda r: r.count_or_none("n")),
        ({"x": float("nan")}, lambda r: r.number("x", 1.0)),
        ({"flag": 1}, lambda r: r.flag("flag")),
        ({"word": 3}, lambda r: r.word("word", "")),
        ({"words": ["a"]}, lambda r: r.words("words", 2)),
        ({"words": [1, 2]}, lambda r: r.words("words", 2)),
        ({"layers": "all"}, lambda r: r.indices("layers")),
        ({"ids": [-1]}, lambda r: r.token_ids("ids")),
        ({"inner": 3}, lambda r: r.nested("inner")),
    ],
)
def test_what_is_wrong_is_raised_at_the_end(config: dict[str, Any], ask: Any) -> None:
    found = reader(**config)
    ask(found)
    with pytest.raises(CheckpointError) as caught:
        found.done()
    (problem,) = caught.value.problems
    assert next(iter(config)) in problem.message


def test_a_nested_reader_adds_to_the_same_list() -> None:
    outer = reader(inner={"n": "x"})
    outer.nested("inner").count("n")
    outer.wrong("one more")
    with pytest.raises(CheckpointError) as caught:
        outer.done()
    assert len(caught.value.problems) == 2
