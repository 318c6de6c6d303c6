"""A pytest plugin for runs that may be cut off: names each failed test when it fails, and all of
them once more in a short table, last of all and when SIGTERM ends the run; then also what it cut.

    pytest -p tests.failures
"""

from __future__ import annotations

import signal
import time
from types import FrameType

import pytest

# Of a message, in characters.
MOST = 160


class Failures:
    """What failed so far. Of several processes the one that collects their reports has this."""

    def __init__(self, config: pytest.Config) -> None:
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._lines: list[str] = []
        self._running: dict[str, float] = {}
        self._passed = 0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed += report.passed and report.when == "call"
        if report.failed:
            process = getattr(report, "worker_id", "main")
            if report.when == "???":  # its process is gone, and says no more of it
                self._running.pop(report.nodeid, None)
            line = f"FAILED {report.nodeid} ({process}, {report.when}): {_message(report)}"
            self._lines.append(line)
            self._say("", line)

    def pytest_unconfigure(self) -> None:
        self._tell("")

    def terminated(self, signum: int, frame: FrameType | None) -> None:
        """Tells what is known, since a second signal may come soon; then the run ends as by
        Ctrl-C."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        now = time.monotonic()
        self._tell(", cut off by SIGTERM")
        cut = self._running.items()
        self._say(*(f"CUT {test} after {now - since:.0f} s" for test, since in cut))
        raise KeyboardInterrupt("SIGTERM")

    def _tell(self, how: str) -> None:
        self._say("", f"{len(self._lines)} failed, {self._passed} passed{how}", *self._lines)

    def _say(self, *lines: str) -> None:
        # In the middle of a test standard output is caught for its report.
        with self._capture.global_and_fixture_disabled():
            for line in lines:
                self._terminal.write_line(line)
            self._terminal.flush()


def _message(report: pytest.TestReport) -> str:
    """The first line of what was raised."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else crash.message
    return text.strip().partition("\n")[0][:MOST]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        failures = Failures(config)
        config.pluginmanager.register(failures, "failures")
        signal.signal(signal.SIGTERM, failures.terminated)
