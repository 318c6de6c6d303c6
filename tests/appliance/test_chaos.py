"""The table of faults, shortly; `python -m tests.appliance.chaos` goes through it for long."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.appliance.chaos.clients import ANSWERED, CLOSED, FAILED, judge
from tests.appliance.chaos.faults import FAULTS
from tests.appliance.chaos.rounds import choose, run, table

SEED, ROUNDS = 5192, 10  # of each kind one, few of them with two starts


@pytest.mark.timeout(900)
def test_ten_faults_under_load(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as scratch:
        tallies = run(Path(scratch), SEED, ROUNDS)
    assert sum(len(tally.seconds) for tally in tallies.values()) == ROUNDS
    with capsys.disabled():
        print(f"\n{table(tallies)}")


def test_every_fault_comes_up_equally_often_in_an_order_of_the_seed() -> None:
    once = [fault.name for fault in choose(1, len(FAULTS))]
    assert sorted(once) == sorted(fault.name for fault in FAULTS)
    assert once != [fault.name for fault in choose(2, len(FAULTS))]
    assert once == [fault.name for fault in choose(1, len(FAULTS))]


TOKEN = '{"choices": [{"finish_reason": null}]}'
LAST = '{"choices": [{"finish_reason": "length"}]}'
ERROR = '{"error": {"message": "m"}}'


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([TOKEN, LAST, "[DONE]"], (ANSWERED, "")),
        ([TOKEN, ERROR, "[DONE]"], (FAILED, "")),
        ([TOKEN, TOKEN], (CLOSED, "")),
        ([], (CLOSED, "")),
    ],
)
def test_a_stream_that_ends_once_is_well(events: list[str], outcome: tuple[str, str]) -> None:
    assert judge(events) == outcome


@pytest.mark.parametrize(
    "events", [[TOKEN, "[DONE]"], [LAST, LAST, "[DONE]"], [LAST, ERROR, "[DONE]"], ["[DONE]"]]
)
def test_a_stream_that_ends_twice_or_never_is_a_mistake(events: list[str]) -> None:
    assert judge(events)[1]
