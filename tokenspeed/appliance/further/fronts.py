"""The further fronts of an instance, as its first front has them: started, told, asked, started
again.

They share the listening socket, so whoever is free takes the next connection. One that ends by
itself is replaced after a wait that doubles; its connections are lost, and the worker ends its
requests. What one counted until its last report stays counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenspeed.appliance.child import Child, end_if_hung
from tokenspeed.appliance.drain import ABORT_SECONDS
from tokenspeed.appliance.front import FLUSH_SECONDS
from tokenspeed.appliance.further.control import (
    Ask,
    Channel,
    Connect,
    Disconnect,
    Done,
    Drain,
    Granted,
    Message,
    Open,
    Pause,
    Report,
    SetLogLevel,
    Take,
    Use,
)
from tokenspeed.appliance.process import describe_exit
from tokenspeed.appliance.supervise import FINAL, RestartPolicy
from tokenspeed.errors import ExitCode, Problem, TokenspeedError
from tokenspeed.metrics import FrontState, added
from tokenspeed.plan import Plan
from tokenspeed.server.admission import Places
from tokenspeed.server.company import Report as Said
from tokenspeed.server.keys import Key, Keys
from tokenspeed.server.openai.errors import ApiError
from tokenspeed.server.recent import newest

log = logging.getLogger(__name__)

START_SECONDS = 300.0  # until the first report: Python's imports from a disk that is busy
SILENCE_SECONDS = 30.0  # between two reports, of which two should come each second
LEAST_SILENCE_SECONDS = 2.0
ANSWER_SECONDS = 1.0
_POLL_SECONDS = 0.02


class FrontFailed(TokenspeedError):  # noqa: N818 - as WorkerFailed
    """A further front does not come up, so the instance does not either."""

    exit_code = ExitCode.INTERNAL


@dataclass(frozen=True, slots=True)
class FrontCommand:
    """How the n-th front is started, given the descriptors of the listener, its end of the pair
    and the places; where its own socket lies."""

    arguments: Callable[[int, int, int, int], Sequence[str]]
    own_socket: Callable[[int], Path]
    listener: socket.socket
    environment: Mapping[str, str]


class FurtherFronts:
    """`run` keeps them running until `drain` or `kill`: the second one to the `count`-th.

    `keys` count the use of keys for all of them; `places` are where sequences are counted.
    """

    def __init__(
        self,
        count: int,
        keys: Keys,
        hang_seconds: float,
        print_line: Callable[[str], None],
        policy: RestartPolicy | None = None,
    ) -> None:
        self.numbers = range(2, count + 1)
        self._keys = keys
        self._patience = min(SILENCE_SECONDS, max(LEAST_SILENCE_SECONDS, hang_seconds))
        self._hang_seconds = hang_seconds
        self._print_line = print_line
        self._policy = policy or RestartPolicy()
        self._memory = os.memfd_create("places", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, 8 * count)
        self.places = Places(shared_cells(self._memory), 0)
        self._fronts: dict[int, _Front] = {}
        self._gone = Said(state=_NOTHING, counts=(), errors=())
        self._stopping = asyncio.Event()
        # What a front is told when it starts.
        self._plan: Take | None = None
        self._worker: Connect | Disconnect | None = None
        self._paused = False
        self._log_level = ""
        self._is_open = False

    # ---- what all of them are told

    def take(self, plan: Plan) -> None:
        self._plan = Take(plan.to_json(), self._keys.made)
        self._tell(self._plan)

    def connect(self, endpoint: str) -> None:
        self._worker = Connect(endpoint)
        self._tell(self._worker)

    def disconnect(self, why: str) -> None:
        self._worker = Disconnect(why)
        self._tell(self._worker)

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._tell(Pause(paused))

    def set_log_level(self, level: str) -> None:
        self._log_level = level
        self._tell(SetLogLevel(level))

    def open(self) -> None:
        """The public is let in, by those that are not up yet as soon as they are."""
        self._is_open = True
        for front in self._fronts.values():
            front.let_in()

    def _tell(self, message: Message) -> None:
        for front in self._fronts.values():
            front.channel.send(message)

    # ---- what they say

    @property
    def open_requests(self) -> int:
        return sum(front.last.open_requests for front in self._fronts.values() if front.last)

    async def ready(self) -> None:
        """Waits until every one would take requests."""
        while not all(number in self._fronts and self._fronts[number].is_up
                      for number in self.numbers):  # fmt: skip
            await asyncio.sleep(_POLL_SECONDS)

    async def reports(self) -> Sequence[Said]:
        asked = [front.ask() for front in self._fronts.values() if front.last is not None]
        if asked:
            await asyncio.wait(asked, timeout=ANSWER_SECONDS)
        said = [front.last.said for front in self._fronts.values() if front.last is not None]
        return [*(one for one in said if one is not None), self._gone]

    # ---- processes

    async def run(self, command: FrontCommand) -> None:
        """Raises FrontFailed when one does not come up before the public was let in."""
        async with contextlib.AsyncExitStack() as stack:
            keeping = [asyncio.ensure_future(self._keep(command, n)) for n in self.numbers]
            stack.push_async_callback(_end, keeping)
            stopping = asyncio.ensure_future(self._stopping.wait())
            stack.push_async_callback(_end, [stopping])
            if keeping:
                await asyncio.gather(*keeping)
            await stopping

    async def drain(self, seconds: float, *, held: bool) -> None:
        """Each finishes what it has within `seconds`, then ends. `held` as in `let_go`."""
        self._stopping.set()
        fronts = list(self._fronts.values())
        self._tell(Drain(seconds, held))
        # Each step of a front's own way down has its time; what takes longer hangs.
        most = seconds + ABORT_SECONDS + 2 * FLUSH_SECONDS
        ending = [asyncio.ensure_future(front.child.ended.wait()) for front in fronts]
        if ending:
            await asyncio.wait(ending, timeout=most)
        for front in fronts:
            if not front.child.ended.is_set():
                log.warning("front %d did not end within %g s and is killed", front.number, most)
                front.child.kill()
        await _end(ending)

    def kill(self) -> None:
        """Ends all of them now."""
        self._stopping.set()
        for front in self._fronts.values():
            front.child.kill()

    def close(self) -> None:
        """Once they have ended."""
        os.close(self._memory)

    async def _keep(self, command: FrontCommand, number: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            code, tail, served_seconds = await self._run_once(command, number)
            if self._stopping.is_set():
                return
            if served_seconds >= self._policy.stable or code == ExitCode.OK:
                failures = 0
            failures += code != ExitCode.OK  # it was asked to end, by SIGTERM
            if not self._is_open and (code in FINAL or failures >= self._policy.load_failures):
                raise _gave_up(number, code, tail)
            wait = self._policy.wait(max(1, failures))
            how = describe_exit(code)
            level = logging.INFO if code == ExitCode.OK else logging.ERROR
            log.log(level, "front %d %s; the next one starts in %.2g s", number, how, wait)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)

    async def _run_once(
        self, command: FrontCommand, number: int
    ) -> tuple[int, Sequence[str], float]:
        """One process from start to end: its exit code, its last lines, and for how many seconds
        it would have taken requests."""
        ours, theirs = socket.socketpair()
        with theirs:
            passed = (command.listener.fileno(), theirs.fileno(), self._memory)
            try:
                child = Child(
                    command.arguments(number, *passed),
                    command.environment,
                    self._print_line,
                    passed,
                )
            except OSError as error:  # no process, memory or file is left for it
                ours.close()
                log.error("front %d cannot be started: %s", number, error)
                return ExitCode.TRY_AGAIN, [f"it cannot be started: {error}"], 0.0
        front = _Front(number, child, self._keys, lambda: self._is_open)
        guarding = asyncio.create_task(
            end_if_hung(
                child,
                f"front {number}",
                lambda: time.monotonic() - front.heard,
                lambda: START_SECONDS if front.last is None else self._patience,
                self._hang_seconds,
            )
        )
        try:
            self._fronts[number] = front  # from here on `kill` reaches it
            ours.setblocking(False)
            await front.channel.open(ours)
            if self._stopping.is_set():
                child.kill()  # it did not hear of the drain, and has nothing to finish
            self._greet(front)
            await child.wait()
        finally:
            guarding.cancel()
            if not child.ended.is_set():  # cancelled
                child.kill()
                await child.wait()
            self._retire(front)
            command.own_socket(number).unlink(missing_ok=True)
        return child.code, child.tail, front.served_seconds

    def _greet(self, front: _Front) -> None:
        assert self._plan is not None, "a plan is taken before anything is started"
        front.channel.send(self._plan)
        if self._log_level:
            front.channel.send(SetLogLevel(self._log_level))
        if self._worker is not None:
            front.channel.send(self._worker)
        front.channel.send(Pause(self._paused))

    def _retire(self, front: _Front) -> None:
        self._fronts.pop(front.number, None)
        front.close()
        self.places.clear(front.number - 1)
        said = front.last.said if front.last is not None else None
        if said is not None:
            state = replace(
                _NOTHING, bad_frames=self._gone.state.bad_frames + said.state.bad_frames
            )
            counts = added((self._gone.counts, said.counts))
            errors = tuple(newest(self._gone.errors, said.errors))
            self._gone = Said(state=state, counts=counts, errors=errors)


class _Front:
    """One process and what it said."""

    def __init__(self, number: int, child: Child, keys: Keys, is_open: Callable[[], bool]) -> None:
        self.number = number
        self.child = child
        self.channel = Channel(self._on_message, self._on_end)
        self.last: Report | None = None
        self.heard = time.monotonic()
        self._up_at: float | None = None
        self._keys = keys
        self._is_open = is_open
        self._queries = itertools.count(1)
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._uses: dict[int, contextlib.ExitStack] = {}

    @property
    def is_up(self) -> bool:
        return self.last is not None and self.last.is_up

    @property
    def served_seconds(self) -> float:
        return 0.0 if self._up_at is None else time.monotonic() - self._up_at

    def ask(self) -> asyncio.Future[None]:
        """Done once `last` is of now, or the front is gone."""
        query = next(self._queries)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[query] = future
        self.channel.send(Ask(query))
        return future

    def let_in(self) -> None:
        """Has it take connections, once it is up and the instance is open. It is told once."""
        if self._up_at is not None and self._is_open():
            self.channel.send(Open())

    def close(self) -> None:
        self.channel.close()
        self._on_end()

    def _on_message(self, message: Message) -> None:
        match message:
            case Report():
                self._on_report(message)
            case Use():
                self.channel.send(self._grant(message))
            case Done(query):
                if query in self._uses:
                    self._uses.pop(query).close()

    def _on_report(self, report: Report) -> None:
        self.last, self.heard = report, time.monotonic()
        future = self._asked.pop(report.query, None)
        if future is not None and not future.done():
            future.set_result(None)
        if report.is_up and self._up_at is None:
            self._up_at = time.monotonic()
            log.info("front %d is up", self.number, extra={"fields": {"pid": self.child.pid}})
            self.let_in()

    def _grant(self, use: Use) -> Granted:
        stack = contextlib.ExitStack()
        key = Key(use.digest, rate=use.rate, concurrent=use.concurrent)
        try:
            stack.enter_context(self._keys.using(key))
        except ApiError as refusal:
            return Granted(use.query, refusal.message, refusal.retry_after or 1)
        self._uses[use.query] = stack
        return Granted(use.query)

    def _on_end(self) -> None:
        for future in self._asked.values():
            if not future.done():
                future.set_result(None)
        self._asked.clear()
        for stack in self._uses.values():
            stack.close()
        self._uses.clear()


_NOTHING = FrontState(
    ready=False,
    draining=False,
    open_requests=0,
    heartbeat_age=0.0,
    bad_frames=0,
    worker_starts=0,
    gpu_faults=0,
    fronts=0,
)


def shared_cells(descriptor: int) -> memoryview:
    """The places of all fronts, one a front, in memory that they share."""
    size = os.fstat(descriptor).st_size
    return memoryview(mmap.mmap(descriptor, size)).cast("q")


async def _end(futures: Sequence[asyncio.Future[Any]]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


def _gave_up(number: int, code: int, tail: Sequence[str]) -> FrontFailed:
    said = "\n".join(f"    {line}" for line in tail) or "    (nothing)"
    hint = "the front's last lines are above"
    if code == -signal.SIGKILL:
        hint = "SIGKILL often means that the system ran out of memory: see `dmesg`"
    return FrontFailed(
        Problem(
            code="TS-S211",
            message=f"front {number} did not start; it {describe_exit(code)}. It printed "
            f"last:\n{said}",
            hint=hint,
        )
    )
