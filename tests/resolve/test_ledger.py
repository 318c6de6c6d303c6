"""What was decided is written down once, with where it came from."""

from __future__ import annotations

from tokenspeed.errors import Where
from tokenspeed.plan import Unmet
from tokenspeed.resolve.ledger import DEFAULT, Decision, Ledger

ORIGINS = {"kv.block_size": Where("demo.yaml", 6, 15)}
KEY = "kv.block_size"


def test_a_wish_wins_and_names_its_line() -> None:
    ledger = Ledger(ORIGINS)
    assert ledger.settle("cache.block_size", 32, 16, DEFAULT, "why", KEY) == 32
    assert ledger.decisions == [
        Decision("cache.block_size", 32, "recipe", "as the recipe says", "demo.yaml:6:15")
    ]


def test_zero_and_false_are_wishes() -> None:
    ledger = Ledger({})
    assert ledger.settle("a", 0, 5, DEFAULT, "why", "a") == 0
    assert ledger.settle("b", False, True, DEFAULT, "why", "b") is False
    assert [decision.source for decision in ledger.decisions] == ["recipe", "recipe"]


def test_absent_and_auto_take_the_default() -> None:
    ledger = Ledger(ORIGINS)
    assert ledger.settle("cache.block_size", "auto", 16, DEFAULT, "why", KEY) == 16
    assert ledger.settle("cache.other", None, 16, DEFAULT, "why", "kv.other") == 16
    auto, absent = ledger.decisions
    assert (auto.source, auto.origin) == (DEFAULT, "demo.yaml:6:15")
    assert (absent.source, absent.origin) == (DEFAULT, None)


def test_failures_point_at_the_key() -> None:
    ledger = Ledger(ORIGINS)
    ledger.fail("TS-M001", KEY, "too large", "write less")
    (problem,) = ledger.failures
    assert (problem.path, problem.where) == (KEY, ORIGINS[KEY])
    assert ledger.asks(KEY)
    assert not ledger.asks("kv.size")


def test_needs_are_data() -> None:
    ledger = Ledger({})
    ledger.need("devices", "2; there is 1")
    assert ledger.unmet == [Unmet(need="devices", detail="2; there is 1")]
    assert not ledger.failures
