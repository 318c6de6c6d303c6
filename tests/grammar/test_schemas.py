"""Whatever is drawn under a schema satisfies it; what cannot be enforced is refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.grammar.schemas import SUPPORTED, UNSUPPORTED, Schema
from tests.grammar.walk import VOCABULARY, answer
from tokenspeed.grammar import lark
from tokenspeed.grammar.compiler import compiled
from tokenspeed.grammar.limits import GrammarError

FORMATS = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"


@FORMATS.checks("time")
def _is_time(value: object) -> bool:
    """RFC 3339; the checker that comes with the package wants none of its offsets."""
    return isinstance(value, str) and re.fullmatch(_TIME, value) is not None


@FORMATS.checks("date-time")
def _is_date_time(value: object) -> bool:
    return isinstance(value, str) and _is_time(value[11:]) and value[10] in "Tt "


def test_there_are_at_least_150_of_them() -> None:
    assert len({json.dumps(schema) for schema in SUPPORTED}) >= 150


@pytest.mark.parametrize("schema", SUPPORTED, ids=lambda schema: json.dumps(schema)[:60])
def test_what_is_drawn_satisfies_the_schema(schema: Schema) -> None:
    grammar = lark.write(lark.json_value(schema))
    checker = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    for seed in range(3):
        value = json.loads(answer(grammar, seed))
        checker.validate(value)


@pytest.mark.parametrize(("schema", "word"), UNSUPPORTED, ids=lambda one: json.dumps(one)[:60])
def test_what_cannot_be_enforced_is_refused_by_name(schema: dict[str, Any], word: str) -> None:
    with pytest.raises(GrammarError) as refused:
        compiled(lark.write(lark.json_value(schema)), VOCABULARY)
    assert word in str(refused.value)
    assert len(str(refused.value)) <= 500
    assert "\n" not in str(refused.value)
