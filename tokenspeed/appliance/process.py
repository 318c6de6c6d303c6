"""Processes by pid and start time, so that a reused pid is never mistaken for an old process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of `pid`; None when it is gone or a zombie."""
    state, *fields = _stat(pid)
    return None if state in "ZX" else int(fields[18])


def is_stopped(pid: int) -> bool:
    """Whether a signal stopped it, so that it does nothing until another one."""
    return _stat(pid)[0] == "T"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on, which is X once it is gone: see proc(5)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ["X"]
    # The command's name, in parentheses, may hold spaces and parentheses itself.
    return stat.rpartition(")")[2].split()


class Handle:
    """Holds on to one process, so that signals reach it or nobody."""

    def __init__(self, pid: int, ticks: int) -> None:
        """Raises ProcessLookupError when that process is gone."""
        self._descriptor = os.pidfd_open(pid)
        if start_ticks(pid) != ticks:
            self.close()
            raise ProcessLookupError(f"process {pid} ended, and its number was given to another")

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def ended(self, seconds: float) -> bool:
        """Waits so long for the process to end."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._descriptor)


def describe_exit(code: int) -> str:
    """`-9` is "was killed by SIGKILL", `1` is "ended with exit code 1"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
