from __future__ import annotations

import json

import pytest

from tests.appliance.live import Home
from tokenspeed.appliance.probe import Health
from tokenspeed.cli.instances import duration
from tokenspeed.cli.ps import state_text


def test_nothing_running_is_said_and_is_an_empty_list() -> None:
    with Home() as home:
        text, data = home.run("ps"), home.run("ps", "--output", "json")
    assert (text.returncode, data.returncode) == (0, 0)
    assert "tokenspeed up RECIPE" in text.stdout
    assert json.loads(data.stdout) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m 0s"),
        (187, "3m 7s"),
        (18_120, "5h 2m"),
        (86_400, "1d 0h"),
        (792_000, "9d 4h"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_state_says_how_far_it_is_or_what_is_wrong() -> None:
    assert state_text(Health("ready", "", 100, {})).plain == "ready"
    assert state_text(Health("starting", "loading", 40, {})).plain == "starting: loading 40 %"
    assert state_text(Health("down", "killed", 0, {})).plain == "down: killed"
