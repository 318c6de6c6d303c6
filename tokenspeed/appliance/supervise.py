"""Keeps a worker running: starts it, notices its end at once, starts it again or gives up.

    start -> loading -> ready -> ended, or silent for too long -> wait (longer each time) -> start

A plan that cannot be loaded is given up soon. One that was loaded before is not at fault when a
later load fails: a disk is full or a mount is away, and the next try may find it mended.
The worker runs in a session of its own, so Ctrl-C in a terminal reaches only the front, which
drains first. It dies with the front (it asks the kernel for that at its start). What it prints is
read all the time, so it can never block in a write, and its last lines are kept for the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.appliance.process import describe_exit, is_stopped
from tokenspeed.engine.engine import Engine
from tokenspeed.engine.state import EngineUnavailable, Ready
from tokenspeed.errors import ExitCode, Problem, TokenspeedError

log = logging.getLogger(__name__)

TAIL_LINES = 15
_READ_BYTES = 1 << 16
STOP_SECONDS = 5.0  # for a worker that was asked to end; then it is killed
LOAD_SECONDS = 900.0  # of silence while loading, as when a large graph is compiled
STOPPED_SECONDS = 10.0  # that a worker may be stopped (SIGSTOP), also while loading
TRACE_SECONDS = 1.0  # for a worker that hangs to print where
OVERDUE_SECONDS = 30.0  # after which a silent worker should have been ended
# With these the worker says that the user must mend something; starting it again cannot help.
FINAL = frozenset(
    {ExitCode.USAGE, ExitCode.INVALID_RECIPE, ExitCode.NO_INPUT, ExitCode.UNSATISFIABLE}
)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Waits double from `first_wait` to `longest_wait` seconds; a worker that was ready for
    `stable` seconds starts the count anew. So many failures in a row end the service:
    `load_failures` before any worker was ready, `crashes` in all after that."""

    first_wait: float = 0.25
    longest_wait: float = 30.0
    stable: float = 60.0
    load_failures: int = 3
    crashes: int = 10

    def wait(self, failures: int) -> float:
        return min(self.longest_wait, self.first_wait * 2.0 ** (failures - 1))


class WorkerFailed(TokenspeedError):  # noqa: N818 - the other errors' names say what, not that
    """The worker cannot be kept running. Ends the front with the worker's own exit code where
    that is one of ours, else with 70."""

    def __init__(self, problem: Problem, code: int) -> None:
        super().__init__(problem)
        ours = {int(known) for known in ExitCode} - {ExitCode.OK, ExitCode.UNEXPECTED}
        self.exit_code = ExitCode(code) if code in ours else ExitCode.INTERNAL


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """How the n-th worker is started and reached, counting from 1."""

    arguments: Callable[[int], Sequence[str]]
    endpoint: Callable[[int], str]
    socket: Callable[[int], Path]
    environment: Mapping[str, str]


class Supervisor:
    """`run` until `stop` or `kill`. `print_line` gets each line that the worker prints. A worker
    whose loop is silent for `hang_seconds` is ended, and replaced like one that crashed."""

    def __init__(
        self,
        engine: Engine,
        command: WorkerCommand,
        print_line: Callable[[str], None],
        hang_seconds: float,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._hang_seconds = hang_seconds
        self._engine = engine
        self._command = command
        self._print_line = print_line
        self._policy = policy or RestartPolicy()
        self._worker: _Worker | None = None
        self._stopping = asyncio.Event()
        self._faults: list[str] = []  # of the hardware, since the last worker was ready
        self.incarnation = 0

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker else None

    async def run(self) -> None:
        """Returns after `stop` or `kill`; raises WorkerFailed when it gives up."""
        failed_loads = crashes = 0
        was_ready = False
        while not self._stopping.is_set():
            self.incarnation += 1
            code, tail, ready_seconds = await self._run_once(self.incarnation)
            if self._stopping.is_set():
                return
            if ready_seconds is None:
                failed_loads += 1
                final = code in FINAL or failed_loads >= self._policy.load_failures
                when = f"while loading, {_times(failed_loads)}"
            else:
                was_ready, failed_loads = True, 0
                crashes = 1 if ready_seconds >= self._policy.stable else crashes + 1
                when = f"{_times(crashes)} without a stable minute"
            if was_ready:
                final = failed_loads + crashes >= self._policy.crashes
            if final:
                raise _gave_up(when, code, tail, self._faults)
            wait = self._policy.wait(max(1, failed_loads + crashes))
            log.error(
                "the worker %s%s; the next one starts in %.2g s",
                describe_exit(code),
                f" ({'; '.join(self._faults)})" if self._faults else "",
                wait,
                extra={"fields": {"load_failures": failed_loads, "crashes": crashes}},
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)

    def note_fault(self, text: str) -> None:
        """The hardware reported this; it is part of what is said about a worker that ends."""
        self._faults = [*self._faults[-2:], text]

    def no_restart(self) -> None:
        """From now on the end of the worker is the end of `run`."""
        self._stopping.set()

    async def stop(self) -> None:
        """Asks the worker to end, and kills it when it does not."""
        self.no_restart()
        if self._worker is None:
            return
        self._engine.shutdown_worker()
        worker = self._worker
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.ended.wait(), STOP_SECONDS)
            return
        log.warning("the worker did not end within %g s and is killed", STOP_SECONDS)
        worker.kill()
        await worker.ended.wait()

    def kill(self) -> None:
        """Ends the worker now."""
        self.no_restart()
        if self._worker is not None:
            self._worker.kill()

    async def _run_once(self, incarnation: int) -> tuple[int, list[str], float | None]:
        """One worker from start to end: its exit code, its last lines, and for how many seconds it
        was ready (None: never)."""
        try:
            self._worker = worker = _Worker(
                self._command.arguments(incarnation), self._command.environment, self._print_line
            )
        except OSError as error:  # no process, memory or file is left for it
            log.error("the worker cannot be started: %s", error)
            return ExitCode.TRY_AGAIN, [f"it cannot be started: {error}"], None
        self._engine.connect(self._command.endpoint(incarnation))
        watching = asyncio.create_task(self._ready_at(worker.pid))
        guarding = asyncio.create_task(self._end_if_hung(worker))
        try:
            code = await worker.wait()
        finally:
            guarding.cancel()
            if not worker.ended.is_set():  # cancelled: no worker outlives its supervisor
                worker.kill()
                await worker.wait()
            self._worker = None
            self._engine.disconnect(f"the worker {describe_exit(worker.code)}")
            self._command.socket(incarnation).unlink(missing_ok=True)
        ready_at = await watching
        seconds = None if ready_at is None else time.monotonic() - ready_at
        return code, list(worker.tail), seconds

    @property
    def in_time(self) -> bool:
        """Whether the worker is heard, or its silence is being dealt with."""
        late = self._engine.heartbeat_age - self._patience()
        return self._worker is None or late < OVERDUE_SECONDS

    def _patience(self) -> float:
        """Seconds of silence that mean nothing: loading is heard of only now and then."""
        ready = isinstance(self._engine.state, Ready)
        return self._hang_seconds if ready else max(LOAD_SECONDS, self._hang_seconds)

    async def _end_if_hung(self, worker: _Worker) -> None:
        late, stopped, pause = 0, 0.0, min(1.0, self._hang_seconds / 2)
        # Late twice: after a pause of this very process it may yet be heard.
        while late < 2 and stopped < min(STOPPED_SECONDS, self._hang_seconds):
            await asyncio.sleep(pause)
            late = late + 1 if self._engine.heartbeat_age > self._patience() else 0
            stopped = stopped + pause if is_stopped(worker.pid) else 0.0
        how = "is stopped" if stopped else "was not heard"
        log.error(
            "the worker %s for %.1f s and is ended", how, stopped or self._engine.heartbeat_age
        )
        # Its handler prints where each thread is. A worker that is stopped never gets there.
        worker.signal(signal.SIGABRT)
        await asyncio.sleep(TRACE_SECONDS)
        worker.kill()

    async def _ready_at(self, pid: int) -> float | None:
        """Ends at the latest when the engine is disconnected."""
        try:
            capacity = await self._engine.wait_ready()
        except EngineUnavailable:
            return None
        self._faults = []
        fields = {"pid": pid, "blocks": capacity.num_blocks, "seconds": capacity.load_seconds}
        log.info("the worker is ready", extra={"fields": fields})
        return time.monotonic()


class _Worker:
    """One process, its output and its end."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], line: Callable[[str], None]
    ) -> None:
        # Popen rather than asyncio's: a pidfd tells of the end at once on every event loop, and
        # the kernel ties PR_SET_PDEATHSIG to the thread that forks, which must be the main one.
        self._process = subprocess.Popen(
            list(arguments),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
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


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"


def _gave_up(when: str, code: int, tail: list[str], faults: list[str]) -> WorkerFailed:
    said = "\n".join(f"    {line}" for line in tail) or "    (nothing)"
    hint = "the worker's last lines are above"
    if code == -signal.SIGKILL:
        hint = "SIGKILL often means that the system ran out of memory: see `dmesg`"
    if faults:
        hint = f"the driver reported {'; '.join(faults)}; see `dmesg`"
    return WorkerFailed(
        Problem(
            code="TS-S210",
            message=f"the worker failed {when}; it {describe_exit(code)}. It printed last:\n{said}",
            hint=hint,
        ),
        code,
    )
