"""Start an instance that outlives the command, and stop one again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tokenspeed import env
from tokenspeed.appliance.instance import Record, find, require_free
from tokenspeed.appliance.probe import look
from tokenspeed.appliance.process import Handle
from tokenspeed.appliance.progress import Display
from tokenspeed.errors import Problem, TryAgainError

POLL_SECONDS = 0.1
# Beyond the instance's own time to drain: to end the worker and clean up.
MARGIN_SECONDS = 15.0
NOW_SECONDS = 5.0
SHOWN_LINES = 40


def log_file(name: str) -> Path:
    """Where a detached instance of that name writes; stays when it ends."""
    return env.data_root() / "logs" / f"{name}.log"


def start(name: str, arguments: Sequence[str], display: Display) -> tuple[int, str]:
    """Starts `tokenspeed up ARGUMENTS` in a session of its own and waits until it is ready.

    Returns (0, its greeting), or its exit code and the end of its log. An interrupt meanwhile
    ends it again. Raises TryAgainError when that name runs already.
    """
    require_free(env.run_root(), name)  # before the log of the one that runs is moved away
    path = log_file(name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))
    command = [sys.executable, "-P", "-m", "tokenspeed", "up", *arguments, "--log-file", str(path)]
    with path.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        record = _wait_ready(name, process, display)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if record is None:
        return process.returncode, tail(path, SHOWN_LINES)
    # Nobody waits for it any more: it is a child of init once this command ends.
    process.returncode = 0
    return 0, record.greeting


def _wait_ready(name: str, process: subprocess.Popen[bytes], display: Display) -> Record | None:
    """The record of the ready instance, None when the process ended before."""
    display.stage("starting")
    while process.poll() is None:
        record = find(env.run_root(), name)
        if record is not None and record.pid == process.pid:
            if record.greeting:
                return record
            health = look(record)
            if health.state == "starting":
                display.stage(health.detail)
                display.fraction(health.percent / 100)
        time.sleep(POLL_SECONDS)
    return None


def stop(record: Record, display: Display, *, now: bool) -> None:
    """Drains an instance and waits for its end; `now` cuts its requests off.

    Raises TryAgainError when it is still there after its time.
    """
    try:
        handle = Handle(record.pid, record.start_ticks)
    except ProcessLookupError:
        return
    try:
        handle.send(signal.SIGTERM)
        if now:
            # The second signal of the two; equal ones might arrive as one.
            handle.send(signal.SIGINT)
        _wait_end(record, handle, display, now=now)
    finally:
        handle.close()


def _wait_end(record: Record, handle: Handle, display: Display, *, now: bool) -> None:
    began = time.monotonic()
    limit = NOW_SECONDS if now else record.drain_seconds + MARGIN_SECONDS
    display.stage(f"stopping {record.name}")
    while not handle.ended(POLL_SECONDS):
        waited = time.monotonic() - began
        if not now:
            display.fraction(min(1.0, waited / max(record.drain_seconds, 0.1)), "of its time")
        if waited < limit:
            continue
        if not now:
            raise TryAgainError(
                Problem(
                    code="TS-S240",
                    message=f"{record.name} (pid {record.pid}) still runs after {waited:.0f} s",
                    hint=f"`tokenspeed down --now {record.name}` ends it at once",
                )
            )
        # Its worker dies with it; the next start clears what it leaves in its run folder.
        handle.send(signal.SIGKILL)
        limit = float("inf")


def tail(path: Path, lines: int) -> str:
    """The last lines of a log."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - lines * 400))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
