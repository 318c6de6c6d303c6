"""A process that this one starts and watches.

Its end is noticed at once. What it prints is read all the time, so it can never block in a write,
and its last lines are kept for the report. One that hangs is made to say where, and ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from tokenspeed.appliance.process import is_stopped

log = logging.getLogger(__name__)

TAIL_LINES = 15
STOPPED_SECONDS = 10.0  # that a process may be stopped (SIGSTOP), also while it loads
TRACE_SECONDS = 1.0  # for one that hangs to print where
_READ_BYTES = 1 << 16


class Child:
    """One process, its output and its end. `line` gets each line that it prints. Raises OSError
    where none can be started. `process`: one that runs already, started the same way."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        line: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        # Popen rather than asyncio's: a pidfd tells of the end at once on every event loop, and
        # the kernel ties PR_SET_PDEATHSIG to the thread that forks, which must be the main one.
        self._process = process or subprocess.Popen(
            list(arguments),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        self.pid = self._process.pid
        self.ended = asyncio.Event()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._print_line = line
        self._rest = b""
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            self._kill_group()
            self._process.communicate()
            raise
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._on_end)
        self._loop.add_reader(self._pipe, self._on_output)

    @property
    def code(self) -> int:
        """Exit code, negative for a signal; only once it has ended."""
        return self._process.returncode

    async def wait(self) -> int:
        await self.ended.wait()
        return self.code

    def kill(self) -> None:
        """Ends the process and what it started; does nothing once it has ended."""
        if not self.ended.is_set():
            self._kill_group()

    def signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set():
            self._process.send_signal(number)

    def _on_end(self) -> None:
        # The process is not reaped yet, so its number is still its own and its group's.
        self._kill_group()
        self._process.wait()
        while self._on_output():
            pass
        if self._rest:
            self._on_line(self._rest)
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._pipe)
        os.close(self._pidfd)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.ended.set()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _on_output(self) -> bool:
        """False when there is nothing more to read, now or ever."""
        try:
            data = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(line)
        if len(self._rest) > _READ_BYTES:  # a line without end must not grow without bound
            self._on_line(self._rest)
            self._rest = b""
        return True

    def _on_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self.tail.append(text)
        self._print_line(text)


async def end_if_hung(
    child: Child,
    name: str,
    silence: Callable[[], float],
    patience: Callable[[], float],
    hang_seconds: float,
) -> None:
    """Waits until nothing was heard of the child for longer than `patience`, or it is stopped for
    so long as `hang_seconds`, then ends it. `silence` is since when, both in seconds."""
    late, stopped, pause = 0, 0.0, min(1.0, hang_seconds / 2)
    # Late twice: after a pause of this very process it may yet be heard.
    while late < 2 and stopped < min(STOPPED_SECONDS, hang_seconds):
        await asyncio.sleep(pause)
        late = late + 1 if silence() > patience() else 0
        stopped = stopped + pause if is_stopped(child.pid) else 0.0
    how = "is stopped" if stopped else "was not heard"
    log.error("%s %s for %.1f s and is ended", name, how, stopped or silence())
    # Its handler prints where each thread is. One that is stopped never gets there.
    child.signal(signal.SIGABRT)
    await asyncio.sleep(TRACE_SECONDS)
    child.kill()
