"""A worker that is started before its plan: it becomes the first one, or leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.rigs import build_rand
from tests.rigs.plans import tiny_plan
from tokenspeed import env
from tokenspeed.appliance.early import EarlyWorker, worker_command
from tokenspeed.appliance.process import start_ticks
from tokenspeed.appliance.supervise import RestartPolicy, Supervisor, WorkerCommand
from tokenspeed.engine.engine import Engine


def pid_of(early: EarlyWorker) -> int:
    assert early._process is not None
    return early._process.pid


def test_the_first_worker_is_the_early_one_and_the_next_one_is_not(tmp_path: Path) -> None:
    model = build_rand(tmp_path / "model")
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "plan.json").write_bytes(tiny_plan(model).to_json())

        async def scenario(early: EarlyWorker) -> None:
            engine = Engine("front")
            how = WorkerCommand(
                arguments=lambda n: [
                    *("--run-dir", str(folder), "--model-dir", str(model)),
                    *("--endpoint", f"{folder}/{n}"),
                ],
                endpoint=lambda n: f"{folder}/{n}",
                socket=lambda n: folder / str(n),
                environment=env.worker_environment(0),
                command=worker_command(),
                early=early,
            )
            lines: list[str] = []
            policy = RestartPolicy(first_wait=0.01)
            supervisor = Supervisor(engine, how, lines.append, 60.0, policy)
            running = asyncio.ensure_future(supervisor.run())
            try:
                pid = pid_of(early)
                while supervisor.worker_pid is None:
                    await asyncio.sleep(0.005)
                ready = await asyncio.wait_for(engine.wait_ready(), 60)
                assert supervisor.worker_pid == pid
                assert list(ready.stages)[:2] == ["imports", "loading weights"]
                os.kill(pid, signal.SIGKILL)
                while supervisor.worker_pid in (pid, None):
                    await asyncio.sleep(0.005)
                await asyncio.wait_for(engine.wait_ready(), 60)
                assert any("loading weights" in line or "ready" in line for line in lines)
            finally:
                await supervisor.stop()
                await running
                await engine.close()

        early = EarlyWorker()
        asyncio.run(scenario(early))
        early.drop()  # it is the supervisor's, and nobody's by now


@pytest.mark.parametrize("how", ["dropped", "another environment"])
def test_one_that_is_of_no_use_ends(how: str) -> None:
    early = EarlyWorker()
    pid = pid_of(early)
    if how == "dropped":
        early.drop()
    else:
        assert early.tell([], env.worker_environment(3)) is None
    assert start_ticks(pid) is None
    assert early.tell([], early.environment) is None
    early.drop()


def test_one_that_was_ended_meanwhile_is_no_worker() -> None:
    early = EarlyWorker()
    os.kill(pid_of(early), signal.SIGKILL)
    os.waitid(os.P_PID, pid_of(early), os.WEXITED | os.WNOWAIT)
    assert early.tell([], early.environment) is None
    early.drop()
