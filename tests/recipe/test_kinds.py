"""One rule for every kind of value; each refusal says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from tokenspeed.recipe.kinds import (
    Choice,
    Count,
    Duration,
    Flag,
    Kind,
    Number,
    Size,
    Text,
    format_size,
    intended_integer,
)


def refusal(kind: Kind, value: Any) -> tuple[str, str]:
    """(code, hint) of the complaint about `value`."""
    with pytest.raises(PydanticCustomError) as caught:
        kind.parse(value)
    context = caught.value.context
    assert context is not None
    return context["code"], context["hint"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GiB", 80 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("512MiB", 2**29),
        ("64KiB", 2**16),
        ("7B", 7),
        ("2TiB", 2**41),
        ("1 GiB", 2**30),
        ("0.3KiB", 307),  # rounded down to whole bytes
    ],
)
def test_sizes_are_powers_of_1024(text: str, count: int) -> None:
    assert Size().parse(text) == count


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        ("80GB", "80GiB, or 74.51GiB"),
        ("80G", "80GiB, or 74.51GiB"),
        ("80gib", "write 80GiB"),
        ("1k", "1KiB, or 1000B"),
        ("1K", "1KiB, or 1000B"),
        ("1Ki", "write 1KiB"),
        (4, "4GiB, or 4B"),
        ("90%", "80GiB"),
    ],
)
def test_a_size_without_a_known_unit_is_refused_with_what_was_meant(
    value: object, suggestion: str
) -> None:
    code, hint = refusal(Size(), value)
    assert code == "TS-R014"
    assert suggestion in hint


@pytest.mark.parametrize("value", ["", "GiB", "-1GiB", "1e3GiB", "1_000B", "1GiB 2MiB", True, [1]])
def test_what_is_no_size_is_refused(value: object) -> None:
    refusal(Size(), value)


def test_a_size_below_the_least_is_refused() -> None:
    assert refusal(Size(low=1024), "1023B")[0] == "TS-R013"


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("500ms", 0.5), ("2m", 120.0), ("1.5h", 5400.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().parse(text) == pytest.approx(seconds)


def test_a_bare_duration_is_refused_with_its_unit() -> None:
    assert refusal(Duration(), 30) == ("TS-R014", "write 30s")


def test_durations_end() -> None:
    assert refusal(Duration(high=60), "2m")[0] == "TS-R013"
    assert refusal(Duration(low=1), "999ms") == ("TS-R013", "write at least 1s")
    assert Duration(low=1).parse("1s") == 1.0


@pytest.mark.parametrize(
    ("value", "integers"),
    [
        ("4k", "4000 or 4096"),
        ("4K", "4000 or 4096"),
        ("4Ki", "4096"),
        ("4.5k", "4500 or 4608"),
        ("4.5Ki", "4608"),
        ("4_096", "4096"),
        ("4 096", "4096"),
        ("4096", "4096"),
        (4e3, "4000"),
        ("22:22", None),
        ("many", None),
        (4.5, None),
    ],
)
def test_counts_take_no_suffix_and_say_the_integer(value: object, integers: str | None) -> None:
    """C02: never a guess, and the way out is in the message."""
    assert intended_integer(value) == integers
    code, hint = refusal(Count(), value)
    assert code == "TS-R012"
    assert (f"write {integers}" if integers else "whole number") in hint


@pytest.mark.parametrize("value", [0, -1, 11])
def test_counts_have_bounds(value: int) -> None:
    assert refusal(Count(high=10), value) == ("TS-R013", "write a whole number from 1 to 10")


def test_powers_of_two_name_the_nearest() -> None:
    kind = Count(power_of_two=True)
    assert kind.parse(64) == 64
    assert refusal(kind, 48) == ("TS-R013", "write 64")


@pytest.mark.parametrize("value", [True, False])
def test_flags_are_true_or_false(value: bool) -> None:
    assert Flag().parse(value) is value


@pytest.mark.parametrize(
    ("value", "meant"),
    [("on", "true"), ("Yes", "true"), (1, "true"), ("off", "false"), ("no", "false"), (0, "false")],
)
def test_other_spellings_of_flags_are_refused_with_the_right_one(value: object, meant: str) -> None:
    assert refusal(Flag(), value) == ("TS-R012", f"write {meant}")


def test_choices_name_the_nearest() -> None:
    _, hint = refusal(Choice(words=("float32", "bfloat16")), "bfloat_16")
    assert "did you mean bfloat16?" in hint


def test_text_is_not_made_of_numbers() -> None:
    assert refusal(Text(), 1234) == ("TS-R012", 'quote it if it is meant as text: "1234"')
    assert refusal(Text(form="a host name"), [1]) == ("TS-R012", "write a host name")


def test_numbers_have_bounds() -> None:
    assert Number(high=1.0, above=True).parse(1) == 1.0
    assert refusal(Number(high=1.0, above=True), 0)[0] == "TS-R013"
    assert refusal(Number(), float("nan"))[0] == "TS-R013"
    assert refusal(Number(), True)[0] == "TS-R012"


@given(st.integers(min_value=0, max_value=2**50))
def test_formatted_sizes_load_again(count: int) -> None:
    """To the four digits that are shown."""
    assert Size(low=0).parse(format_size(count)) == pytest.approx(count, rel=1e-3)


@given(st.one_of(st.text(max_size=20), st.floats(), st.integers(), st.booleans(), st.none()))
def test_no_value_brings_a_kind_down(value: object) -> None:
    """Whatever YAML holds is taken or refused with a hint."""
    for kind in (Size(), Duration(), Count(), Number(), Flag(), Text(), Choice(words=("a",))):
        try:
            kind.parse(value)
        except PydanticCustomError as error:
            assert error.context is not None
            assert error.context["hint"]
