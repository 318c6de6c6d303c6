from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import uvloop

from tests.appliance import scripted_worker
from tokenspeed.appliance.process import start_ticks
from tokenspeed.appliance.supervise import RestartPolicy, Supervisor, WorkerCommand, WorkerFailed
from tokenspeed.engine.engine import Engine
from tokenspeed.engine.state import Down, Loading, Ready
from tokenspeed.errors import ExitCode
from tokenspeed.request import FinishReason, Request, SamplingParams

QUICK = RestartPolicy(first_wait=0.01, longest_wait=0.05, stable=60.0, load_failures=3, crashes=4)


@dataclass
class Rig:
    supervisor: Supervisor
    engine: Engine
    folder: Path
    lines: list[str] = field(default_factory=list)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, f"never happened: {what}"
            await asyncio.sleep(0.005)


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@asynccontextmanager
async def rig(
    *behaviours: str,
    policy: RestartPolicy = QUICK,
    hang_seconds: float = 60.0,
    hindrance: Callable[[], Awaitable[str | None]] | None = None,
) -> AsyncIterator[Rig]:
    """Worker n behaves as the n-th of `behaviours` says, later ones as the last."""
    lines: list[str] = []
    engine = Engine("front")
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as name:
        folder = Path(name)

        def arguments(incarnation: int) -> list[str]:
            behaviour = behaviours[min(incarnation, len(behaviours)) - 1].split()
            if behaviour == ["unstartable"]:
                return [f"{folder}/no-such-program"]
            program = [sys.executable, scripted_worker.__file__]
            return [*program, f"{folder}/{incarnation}", *behaviour]

        command = WorkerCommand(
            arguments=arguments,
            endpoint=lambda n: f"{folder}/{n}",
            socket=lambda n: folder / str(n),
            environment=dict(os.environ),
            hindrance=hindrance,
        )
        supervisor = Supervisor(engine, command, lines.append, hang_seconds, policy)
        try:
            yield Rig(supervisor, engine, folder, lines)
        finally:
            supervisor.kill()
            await engine.close()


def request(engine: Engine) -> Request:
    return Request(
        request_id=engine.next_request_id(),
        tokens=np.array([1, 2], np.int32).tobytes(),
        max_tokens=2,
        sampling=SamplingParams(),
    )


def test_a_worker_is_started_serves_and_stops_when_asked(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with rig("") as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            pid = it.supervisor.worker_pid
            await it.supervisor.stop()
            await running
            assert start_ticks(pid) is None
            assert isinstance(it.engine.state, Down)
            assert list(it.folder.iterdir()) == []
            assert it.lines == ["scripted worker starts"]

    runner.run(scenario())


def test_a_killed_worker_is_replaced_and_its_requests_end_with_an_error(
    runner: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        async with rig("") as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            answers = [it.engine.generate(request(it.engine)) for _ in range(5)]
            first = it.supervisor.worker_pid
            os.kill(first, signal.SIGKILL)
            for answer in answers:
                (delta,) = [delta async for delta in answer]
                assert delta.finish_reason is FinishReason.ERROR
                assert "SIGKILL" in delta.error
            assert it.engine.open_requests == 0
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready again")
            assert it.supervisor.worker_pid not in (None, first)
            assert it.supervisor.incarnation == 2
            assert [path.name for path in it.folder.iterdir()] == ["2"]
            await it.supervisor.stop()
            await running

    runner.run(scenario())


def test_one_that_cannot_be_started_is_tried_again(runner: asyncio.Runner) -> None:
    """As where no process may be made, or the interpreter is just being replaced."""

    async def scenario() -> None:
        async with rig("", "unstartable", "unstartable", "") as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            pid = it.supervisor.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await it.until(lambda: it.supervisor.incarnation == 4, "the fourth one")
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready again")
            await it.supervisor.stop()
            await running
        async with rig("unstartable") as it:
            with pytest.raises(WorkerFailed, match=r"it cannot be started: .*no-such-program"):
                await it.supervisor.run()

    runner.run(scenario())


def test_what_hinders_a_later_worker_is_said_and_waited_for(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        asked = 0

        async def hindrance() -> str | None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return "it is Monday" if asked < 3 else None

        async with rig("", hindrance=hindrance) as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            assert asked == 0  # the first one loads what was just planned
            pid = it.supervisor.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await it.until(lambda: it.supervisor.incarnation == 4, "the third attempt")
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready again")
            await it.supervisor.stop()
            await running

        async def always() -> str | None:
            return "it is Monday"

        async with rig("exit=1", hindrance=always) as it:
            with pytest.raises(WorkerFailed, match="it is not started: it is Monday"):
                await it.supervisor.run()

    runner.run(scenario())


def test_nothing_is_started_once_the_end_was_asked_for(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        looking, looked = asyncio.Event(), asyncio.Event()

        async def hindrance() -> str | None:
            looking.set()
            await looked.wait()
            return None

        async with rig("", hindrance=hindrance) as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            pid = it.supervisor.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await looking.wait()
            await it.supervisor.stop()
            looked.set()
            await running
            assert it.supervisor.worker_pid is None
            assert it.lines == ["scripted worker starts"]

    runner.run(scenario())


def test_a_worker_that_never_loads_is_given_up_with_its_own_words(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with rig("exit=1") as it:
            with pytest.raises(WorkerFailed, match="the reason is here") as caught:
                await it.supervisor.run()
            assert it.supervisor.incarnation == QUICK.load_failures
            assert caught.value.exit_code is ExitCode.INTERNAL
            assert "3 times in a row" in str(caught.value)

    runner.run(scenario())


def test_a_mistake_of_the_user_is_not_tried_again() -> None:
    async def scenario() -> None:
        async with rig("exit=78") as it:
            with pytest.raises(WorkerFailed) as caught:
                await it.supervisor.run()
            assert it.supervisor.incarnation == 1
            assert caught.value.exit_code is ExitCode.UNSATISFIABLE

    asyncio.run(scenario())


def test_one_failed_load_is_forgiven_once_it_loads() -> None:
    async def scenario() -> None:
        async with rig("exit=1", "die", "", "exit=1", "die", "") as it:
            running = asyncio.create_task(it.supervisor.run())
            for incarnation in (3, 6):
                await it.until(
                    lambda n=incarnation: (
                        it.supervisor.incarnation == n and isinstance(it.engine.state, Ready)
                    ),
                    f"ready at {incarnation}",
                )
                os.kill(it.supervisor.worker_pid, signal.SIGKILL)
            await it.until(lambda: it.supervisor.incarnation == 7, "restarted")
            await it.supervisor.stop()
            await running

    asyncio.run(scenario())


def test_what_was_loaded_once_is_tried_again_whatever_a_later_load_says() -> None:
    async def scenario() -> None:
        patient = RestartPolicy(first_wait=0.01, longest_wait=0.01, crashes=6)
        async with rig("", "exit=66", "exit=78", "exit=1", "exit=70", "", policy=patient) as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            os.kill(it.supervisor.worker_pid, signal.SIGKILL)
            await it.until(
                lambda: it.supervisor.incarnation == 6 and isinstance(it.engine.state, Ready),
                "ready again",
            )
            await it.supervisor.stop()
            await running

    asyncio.run(scenario())


def test_a_worker_that_is_stopped_while_loading_is_replaced() -> None:
    async def scenario() -> None:
        async with rig("slow", "", hang_seconds=0.2) as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: it.engine.state == Loading("load", 0.5), "loading")
            os.kill(it.supervisor.worker_pid, signal.SIGSTOP)
            await it.until(lambda: it.supervisor.incarnation > 1, "another one is started")
            await it.supervisor.stop()
            await running

    asyncio.run(scenario())


def test_a_worker_that_crashes_on_every_request_is_given_up() -> None:
    async def scenario() -> None:
        async with rig("die-on-request") as it:
            running = asyncio.create_task(it.supervisor.run())
            for _ in range(QUICK.crashes):
                await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
                async for _ in it.engine.generate(request(it.engine)):
                    pass
            with pytest.raises(WorkerFailed, match="about to die"):
                await running

    asyncio.run(scenario())


def test_a_stable_worker_starts_the_count_anew() -> None:
    async def scenario() -> None:
        steady = RestartPolicy(first_wait=0.01, longest_wait=0.01, stable=0.0, crashes=2)
        async with rig("", policy=steady) as it:
            running = asyncio.create_task(it.supervisor.run())
            for incarnation in range(1, 6):
                await it.until(
                    lambda n=incarnation: (
                        it.supervisor.incarnation == n and isinstance(it.engine.state, Ready)
                    ),
                    f"ready at {incarnation}",
                )
                os.kill(it.supervisor.worker_pid, signal.SIGKILL)
            await it.until(lambda: it.supervisor.incarnation == 6, "restarted")
            await it.supervisor.stop()
            await running

    asyncio.run(scenario())


def test_output_is_read_whatever_comes_and_only_its_end_is_kept(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with rig("flood exit=66") as it:
            with pytest.raises(WorkerFailed) as caught:
                await it.supervisor.run()
            assert len(it.lines) == 20_002
            assert "noise 19999" in str(caught.value)
            assert "noise 10000" not in str(caught.value)

    runner.run(scenario())


def test_a_stubborn_worker_and_its_children_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("tokenspeed.appliance.supervise.STOP_SECONDS", 0.05)
        async with rig("stubborn child") as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            group = it.supervisor.worker_pid
            await it.supervisor.stop()
            await running
            await it.until(lambda: not members(group), "the whole group is gone")

    asyncio.run(scenario())


def members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and start_ticks(int(entry.name)) is not None:
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def test_a_stop_while_loading_or_waiting_ends_at_once() -> None:
    async def scenario() -> None:
        slow = RestartPolicy(first_wait=600.0, longest_wait=600.0)
        async with rig("slow", policy=slow) as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: it.engine.state == Loading("load", 0.5), "loading")
            os.kill(it.supervisor.worker_pid, signal.SIGKILL)
            await it.until(lambda: it.supervisor.worker_pid is None, "noticed")
            await it.supervisor.stop()
            await running

    asyncio.run(scenario())


def test_cancelling_the_supervisor_leaves_no_worker() -> None:
    async def scenario() -> None:
        async with rig("") as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: isinstance(it.engine.state, Ready), "ready")
            pid = it.supervisor.worker_pid
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert start_ticks(pid) is None

    asyncio.run(scenario())


def test_waits_double_up_to_the_longest() -> None:
    policy = RestartPolicy(first_wait=0.5, longest_wait=3.0)
    assert [policy.wait(n) for n in (1, 2, 3, 4, 50)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_silent_worker_is_ended_and_replaced(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        # The scripted worker sends no heartbeats.
        async with rig("", hang_seconds=0.1) as it:
            running = asyncio.create_task(it.supervisor.run())
            await it.until(lambda: it.supervisor.incarnation > 1, "another one is started")
            it.supervisor.kill()
            await running

    runner.run(scenario())
