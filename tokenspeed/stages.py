"""What the seconds of a start went to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol


class Report(Protocol):
    """Told how far a start is: `fraction` of the stage is done, 0 to 1; `detail` is for people."""

    def __call__(self, stage: str, fraction: float, detail: str = "") -> None: ...


class Stages:
    """Passes on how far a start is, and keeps the seconds of each stage. One ends when another
    begins; one that comes again goes on."""

    def __init__(
        self, tell: Report, before: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`before`: seconds that this process has spent already, on its imports."""
        self._tell = tell
        self._clock = clock
        self._stage = "imports"
        self._since = clock() - before
        self._seconds: dict[str, float] = {}

    def __call__(self, stage: str, fraction: float, detail: str = "") -> None:
        """Raises what `tell` raises."""
        if stage != self._stage:
            self._close()
            self._stage = stage
        self._tell(stage, fraction, detail)

    def done(self) -> dict[str, float]:
        """The seconds of every stage up to now, in the order in which they began."""
        self._close()
        return dict(self._seconds)

    def _close(self) -> None:
        now = self._clock()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._since = now


def in_words(seconds: Mapping[str, float]) -> str:
    """`imports 2.1 s, building 0.3 s`; what took less than 50 ms is left out."""
    return ", ".join(f"{name} {taken:.1f} s" for name, taken in seconds.items() if taken >= 0.05)


def process_age() -> float:
    """Seconds since this process was started, to a hundredth; see proc(5)."""
    # The command's name, in parentheses, may hold spaces and parentheses itself.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
