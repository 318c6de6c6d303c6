"""Keeps a worker running: starts it, notices its end at once, starts it again or gives up.

    start -> loading -> ready -> ended, or silent for too long -> wait (longer each time) -> start

A plan that cannot be loaded is given up soon. One that was loaded before is not at fault when a
later load fails: a disk is full or a mount is away, and the next try may find it mended.
The worker runs in a session of its own, so Ctrl-C in a terminal reaches only the front, which
drains first. It dies with the front (it asks the kernel for that at its start).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenspeed.appliance.child import Child, end_if_hung
from tokenspeed.appliance.early import EarlyWorker
from tokenspeed.appliance.process import describe_exit
from tokenspeed.engine.engine import Engine
from tokenspeed.engine.state import EngineUnavailable, Ready
from tokenspeed.errors import ExitCode, Problem, TokenspeedError

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0  # for a worker that was asked to end; then it is killed
LOAD_SECONDS = 900.0  # of silence while loading, as when a large graph is compiled
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
    """How the n-th worker is started and reached, counting from 1. `arguments` are those of a
    worker's `command`; `early` was started for the first of them. `hindrance` says why a later one
    must not be started."""

    arguments: Callable[[int], Sequence[str]]
    endpoint: Callable[[int], str]
    socket: Callable[[int], Path]
    environment: Mapping[str, str]
    command: Sequence[str] = ()
    early: EarlyWorker | None = None
    hindrance: Callable[[], Awaitable[str | None]] | None = None


class Follower(Protocol):
    """Goes to each worker that is started, as the engine of this process does."""

    def connect(self, endpoint: str) -> None: ...

    def disconnect(self, why: str) -> None: ...


class Supervisor:
    """`run` until `stop` or `kill`. `print_line` gets each line that the worker prints. A worker
    whose loop is silent for `hang_seconds` is ended, and replaced like one that crashed.
    `followers` are told of each worker's beginning and end."""

    def __init__(
        self,
        engine: Engine,
        command: WorkerCommand,
        print_line: Callable[[str], None],
        hang_seconds: float,
        policy: RestartPolicy | None = None,
        followers: Sequence[Follower] = (),
    ) -> None:
        self._followers = (engine, *followers)
        self._hang_seconds = hang_seconds
        self._engine = engine
        self._command = command
        self._print_line = print_line
        self._policy = policy or RestartPolicy()
        self._worker: Child | None = None
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

    def _started(self, incarnation: int) -> Child:
        """Raises OSError where it cannot be."""
        how = self._command
        arguments, early = how.arguments(incarnation), how.early
        process = None if early is None else early.tell(arguments, how.environment)
        whole = [*how.command, *arguments]
        return Child(whole, how.environment, self._print_line, process=process)

    async def _run_once(self, incarnation: int) -> tuple[int, list[str], float | None]:
        """One worker from start to end: its exit code, its last lines, and for how many seconds it
        was ready (None: never)."""
        hindrance = await self._hindrance() if incarnation > 1 else None
        if self._stopping.is_set():
            return ExitCode.OK, [], None
        if hindrance is not None:
            log.error("the worker is not started: %s", hindrance)
            return ExitCode.TRY_AGAIN, [f"it is not started: {hindrance}"], None
        try:
            self._worker = worker = self._started(incarnation)
        except OSError as error:  # no process, memory or file is left for it
            log.error("the worker cannot be started: %s", error)
            return ExitCode.TRY_AGAIN, [f"it cannot be started: {error}"], None
        for follower in self._followers:
            follower.connect(self._command.endpoint(incarnation))
        watching = asyncio.create_task(self._ready_at(worker.pid))
        guarding = asyncio.create_task(
            end_if_hung(
                worker,
                "the worker",
                lambda: self._engine.heartbeat_age,
                self._patience,
                self._hang_seconds,
            )
        )
        try:
            code = await worker.wait()
        finally:
            guarding.cancel()
            if not worker.ended.is_set():  # cancelled: no worker outlives its supervisor
                worker.kill()
                await worker.wait()
            self._worker = None
            for follower in self._followers:
                follower.disconnect(f"the worker {describe_exit(worker.code)}")
            self._command.socket(incarnation).unlink(missing_ok=True)
        ready_at = await watching
        seconds = None if ready_at is None else time.monotonic() - ready_at
        return code, list(worker.tail), seconds

    async def _hindrance(self) -> str | None:
        how = self._command.hindrance
        return None if how is None else await how()

    @property
    def in_time(self) -> bool:
        """Whether the worker is heard, or its silence is being dealt with."""
        late = self._engine.heartbeat_age - self._patience()
        return self._worker is None or late < OVERDUE_SECONDS

    def _patience(self) -> float:
        """Seconds of silence that mean nothing: loading is heard of only now and then."""
        ready = isinstance(self._engine.state, Ready)
        return self._hang_seconds if ready else max(LOAD_SECONDS, self._hang_seconds)

    async def _ready_at(self, pid: int) -> float | None:
        """Ends at the latest when the engine is disconnected."""
        try:
            ready = await self._engine.wait_ready()
        except EngineUnavailable:
            return None
        self._faults = []
        fields = {"pid": pid, "blocks": ready.capacity.num_blocks, "stages": ready.stages}
        log.info("the worker is ready", extra={"fields": fields})
        return time.monotonic()


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
