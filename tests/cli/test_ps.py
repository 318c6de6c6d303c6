from __future__ import annotations

import dataclasses
import io
import json
import time

import pytest
from rich.console import Console, Group
from rich.table import Table

from tests.appliance.live import Home
from tests.cli.test_down import record_of
from tokenspeed.appliance.probe import Health
from tokenspeed.cli.instances import duration
from tokenspeed.cli.ps import page, state_text


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


HEALTHS = {
    "ready": Health("ready", "", 100, {}),
    "starting": Health("starting", "worker: loading the weights", 40, {}),
}


@pytest.mark.parametrize("state", HEALTHS)
@pytest.mark.parametrize("columns", [40, 60, 72, 80, 100, 130])
def test_a_narrow_terminal_cuts_no_name_state_address_or_pid(state: str, columns: int) -> None:
    record = dataclasses.replace(
        record_of(4_194_304, time.time() - 187),
        name="smollm2-135m-cpu",
        url="http://127.0.0.1:18000",
        started=time.time() - 187,
    )
    text = printed(page([(record, HEALTHS[state])], columns), columns)
    words = " ".join(text.split())
    for whole in (record.name, state_text(HEALTHS[state]).plain, record.url, "4194304"):
        assert whole in words
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns


def test_what_is_left_out_on_a_narrow_terminal() -> None:
    rows = [(dataclasses.replace(record_of(1, 0.0), url="http://127.0.0.1:8"), HEALTHS["ready"])]
    titles = {n: printed(page(rows, n), 200).splitlines()[0].split() for n in (39, 50, 60, 80)}
    assert titles[80] == ["NAME", "STATE", "URL", "UPTIME", "RUNNING", "WAITING", "PID"]
    assert titles[60] == ["NAME", "STATE", "URL", "RUNNING", "WAITING", "PID"]
    assert titles[50] == ["NAME", "STATE", "URL", "RUNNING", "PID"]
    assert titles[39] == ["NAME", "STATE", "URL", "PID"]
    several = [(rows[0][0], Health("ready", "", 100, {"tokenspeed_fronts": 2.0})), *rows]
    lines = printed(page(several, 120), 200).splitlines()
    assert lines[0].split()[3] == "FRONTS"
    assert [line.split()[3] for line in lines[1:3]] == ["2", "-"]


def printed(shown: Table | Group, columns: int) -> str:
    console = Console(width=columns, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(shown)
    return captured.get()
