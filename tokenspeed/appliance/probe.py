"""How a running instance is, asked through its own socket as anybody could at its port."""

from __future__ import annotations

import http.client
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tokenspeed.appliance.front import ask_now
from tokenspeed.appliance.instance import Record
from tokenspeed.errors import ExitCode

PATIENCE_SECONDS = 2.0
# What /readyz calls a state, and what it is called here.
_STATES = {"loading": "starting", "draining": "draining", "down": "down", "stalled": "stalled"}
_SAMPLE = re.compile(r"^(tokenspeed_\w+) ([-+.\deE]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Health:
    """`state` is ready, starting, draining, down, stalled or unreachable; `percent` is of the
    stage `detail` while starting. `gauges` has the metrics without labels, {} when not known."""

    state: str
    detail: str
    percent: int
    gauges: dict[str, float]

    @property
    def running(self) -> int | None:
        return self._count("tokenspeed_requests_running")

    @property
    def waiting(self) -> int | None:
        return self._count("tokenspeed_requests_waiting")

    @property
    def fronts(self) -> int | None:
        """Processes that serve HTTP and answer."""
        return self._count("tokenspeed_fronts")

    @property
    def exit_code(self) -> ExitCode:
        """What `status` ends with."""
        if self.state == "ready":
            return ExitCode.OK
        passing = self.state in ("starting", "draining")
        return ExitCode.TRY_AGAIN if passing else ExitCode.UNAVAILABLE

    def _count(self, name: str) -> int | None:
        value = self.gauges.get(name)
        return None if value is None else int(value)


def look(record: Record) -> Health:
    """Never raises for what is wrong with the instance."""
    try:
        return _look(record)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Health("unreachable", f"no answer from {record.local}: {error}", 0, {})


def look_at_all(records: list[Record]) -> list[Health]:
    """In the order given; one that hangs does not hold up the others."""
    with ThreadPoolExecutor(max(1, len(records))) as pool:
        return list(pool.map(look, records))


def _look(record: Record) -> Health:
    status, body = _ask(record, "/readyz")
    if status == 200 and record.greeting:
        return Health("ready", "", 100, _gauges(record))
    if status == 200:
        return Health("starting", "warming up", 100, {})
    state = _STATES.get(str(body.get("status")), "down")
    if state != "starting":
        return Health(state, body.get("detail", ""), 0, _gauges(record))
    _, start = _ask(record, "/startupz")
    return Health(state, start.get("stage", ""), start.get("percent", 0), {})


def _ask(record: Record, path: str) -> tuple[int, dict[str, Any]]:
    status, body = ask_now(record.local, "GET", path, seconds=PATIENCE_SECONDS)
    if not isinstance(body, dict):
        raise ValueError(f"{path} answers {status} without JSON: is it tokenspeed that listens?")
    return status, body


def _gauges(record: Record) -> dict[str, float]:
    _, text = ask_now(record.local, "GET", "/metrics", seconds=PATIENCE_SECONDS, key=record.key)
    return {name: float(value) for name, value in _SAMPLE.findall(text)}
