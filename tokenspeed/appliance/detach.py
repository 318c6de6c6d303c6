"""Start an instance that outlives the command, and stop one again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tokenspeed import env
from tokenspeed.appliance.instance import Record, find, require_free
from tokenspeed.appliance.logfile import log_file, new_draft, tail
from tokenspeed.appliance.probe import look
from tokenspeed.appliance.process import Handle, describe_exit
from tokenspeed.appliance.progress import Display
from tokenspeed.errors import Problem, TryAgainError

POLL_SECONDS = 0.1
# Beyond the instance's own time to drain: to end the worker and clean up.
MARGIN_SECONDS = 15.0
NOW_SECONDS = 5.0
SHOWN_LINES = 40


def start(name: str, arguments: Sequence[str], display: Display) -> tuple[int, str, Path | None]:
    """Starts `tokenspeed up ARGUMENTS` in a session of its own and waits until it is ready.

    Returns (0, its greeting, its log), or its exit code, the end of what it wrote and its log;
    that is None, and what it wrote is whole, where it ended before the name was its own. An
    interrupt meanwhile ends it again. Raises TryAgainError when that name runs already, or when
    no log can be written.
    """
    require_free(env.run_root(), name)
    descriptor, draft = new_draft(name)
    try:
        with os.fdopen(descriptor, "ab") as output:
            command = [sys.executable, "-P", "-m", "tokenspeed", "up", *arguments]
            process = subprocess.Popen(
                [*command, "--log-draft", str(draft)],
                env=env.child_environment({}),
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
        if record is not None:
            # Nobody waits for it any more: it is a child of init once this command ends.
            process.returncode = 0
            return 0, record.greeting, log_file(name)
        log = None if draft.exists() else log_file(name)
        said, _ = tail(log or draft, SHOWN_LINES)
        if "error[" not in said:
            # Killed, or its log took no more.
            said += (
                f"\nit {describe_exit(process.returncode)}, and its log does not say why: "
                f"`df -h {draft.parent}` shows whether the disk is full; without --detach the "
                "reason is printed to the terminal"
            )
        return process.returncode, said, log
    finally:
        draft.unlink(missing_ok=True)


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
                    hint=f"`tokenspeed down --now {record.name}` stops it at once",
                )
            )
        # Its worker dies with it; the next start clears what it leaves in its run folder.
        handle.send(signal.SIGKILL)
        limit = float("inf")
