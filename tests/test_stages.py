"""The seconds of a start add up, and are told in the order in which they began."""

from __future__ import annotations

import itertools

import pytest

from tokenspeed.stages import Stages, in_words, process_age


def test_each_second_belongs_to_one_stage() -> None:
    told: list[tuple[str, float, str]] = []
    now = itertools.count(100.0, 1.0)
    stages = Stages(
        lambda stage, fraction, detail="": told.append((stage, fraction, detail)),
        before=2.5,
        clock=lambda: next(now),
    )
    stages("loading", 0.0)
    stages("loading", 1.0, "16 GB")
    stages("building", 0.0)
    stages("loading", 1.0)
    assert stages.done() == {"imports": 3.5, "loading": 2.0, "building": 1.0}
    assert [one[0] for one in told] == ["loading", "loading", "building", "loading"]
    assert told[1] == ("loading", 1.0, "16 GB")


def test_what_took_no_time_is_not_worth_a_word() -> None:
    assert in_words({"imports": 2.14, "building": 0.02, "weights": 0.3}) == (
        "imports 2.1 s, weights 0.3 s"
    )


def test_this_process_did_not_start_just_now() -> None:
    first = process_age()
    assert 0.1 < first < 1e6
    assert process_age() == pytest.approx(first, abs=10.0)
