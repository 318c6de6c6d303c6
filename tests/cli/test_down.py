from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.appliance.live import Home
from tokenspeed.appliance import detach
from tokenspeed.appliance.instance import RECORD_VERSION, Record
from tokenspeed.appliance.process import start_ticks
from tokenspeed.appliance.progress import Plain
from tokenspeed.errors import ExitCode, TryAgainError

STUBBORN = (
    "import signal, time\n"
    "for number in (signal.SIGTERM, signal.SIGINT):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "print(flush=True)\ntime.sleep(600)"
)


def record_of(pid: int, drain_seconds: float) -> Record:
    return Record(
        version=RECORD_VERSION,
        name="stuck",
        pid=pid,
        start_ticks=start_ticks(pid),
        url="http://127.0.0.1:9",
        recipe="/r.yaml",
        started=time.time(),
        drain_seconds=drain_seconds,
        log=None,
        greeting="ready",
    )


def test_what_is_not_running_cannot_be_stopped() -> None:
    with Home() as home:
        done = home.run("down", "demo")
    assert done.returncode == ExitCode.UNAVAILABLE
    assert "no instance named demo is running" in done.stderr
    assert "nothing is running" in done.stderr


def test_an_instance_that_ignores_signals_is_reported_and_killed_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detach, "MARGIN_SECONDS", 0.05)
    monkeypatch.setattr(detach, "NOW_SECONDS", 0.05)
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        record = record_of(process.pid, drain_seconds=0.01)
        with pytest.raises(TryAgainError, match="tokenspeed down --now stuck"):
            detach.stop(record, Plain(lines.append), now=False)
        assert process.poll() is None
        detach.stop(record, Plain(lines.append), now=True)
        assert process.wait(10) == -signal.SIGKILL
    assert lines[0] == "stopping stuck"
    detach.stop(record, Plain(lines.append), now=False)  # gone already: nothing to do
    assert start_ticks(os.getpid()) is not None
