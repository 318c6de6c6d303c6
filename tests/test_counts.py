from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from tests.cli.run import tokenspeed
from tokenspeed.counts import amount, whole


def test_numbers_within_their_bounds() -> None:
    assert [whole(0)("0"), whole(1)("1"), whole(1, 9)("9"), whole(0)("007")] == [0, 1, 9, 7]
    assert [amount("0.5"), amount("3"), amount("1e3")] == [0.5, 3.0, 1000.0]


@pytest.mark.parametrize("text", ["0", "10", "-1", "1.5", "", "one", "٣", "1" * 30, "+1", " 1"])
def test_what_is_no_such_number_is_said_with_the_bounds(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r" is not a whole number from 1 to 9$"):
        whole(1, 9)(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "one"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r" is not a number above 0$"):
        amount(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("doctor --port 65536", "--port: 65536 is not a whole number from 1 to 65535"),
        ("doctor --port -1", "--port: -1 is not a whole number from 1 to 65535"),
        ("top --every 0", "--every: 0 is not a number above 0"),
        ("admin profile --steps 0", "--steps: 0 is not a whole number from 1 to 256"),
        ("rollback x --to 0", "--to: 0 is not a whole number from 1 on"),
        ("bench planning --runs 0", "--runs: 0 is not a whole number from 1 on"),
    ],
)
def test_verbs_refuse_numbers_before_they_do_anything(words: str, said: str) -> None:
    done = tokenspeed(*words.split())
    assert (done.code, done.out) == (64, "")
    assert said in done.err
