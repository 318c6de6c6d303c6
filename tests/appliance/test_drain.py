from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.appliance import scripted_worker
from tests.appliance.test_supervise import request
from tokenspeed.appliance.drain import Stopped, StopSignals, drain_requests
from tokenspeed.engine import Answer, Engine, EngineUnavailable
from tokenspeed.request import Delta, FinishReason


@asynccontextmanager
async def engine_with_worker() -> AsyncIterator[Engine]:
    """A worker that takes requests and never answers them, nor their aborts."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as name:
        endpoint = f"{name}/w"
        process = await asyncio.create_subprocess_exec(
            sys.executable, scripted_worker.__file__, endpoint, stdout=asyncio.subprocess.DEVNULL
        )
        engine = Engine("front")
        engine.connect(endpoint)
        await engine.wait_ready()
        try:
            yield engine
        finally:
            await engine.close()
            process.kill()
            await process.wait()


async def last(answer: Answer) -> Delta:
    return [delta async for delta in answer][-1]


@asynccontextmanager
async def stop_signals() -> AsyncIterator[StopSignals]:
    stop = StopSignals()
    try:
        yield stop
    finally:
        stop.close()


def test_work_is_awaited_unless_a_signal_comes_first() -> None:
    async def scenario() -> None:
        async with stop_signals() as stop:
            assert await stop.unless_stopped(asyncio.sleep(0, "done")) == "done"
            never = asyncio.create_task(asyncio.Event().wait())
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(Stopped):
                await stop.unless_stopped(never)
            assert never.cancelled()
            assert stop.number == signal.SIGHUP
            with pytest.raises(Stopped):
                stop.require_wanted()
            assert not stop.second.is_set()

    asyncio.run(scenario())


def test_errors_of_the_work_come_through() -> None:
    async def fail() -> None:
        raise ValueError("mine")

    async def scenario() -> None:
        async with stop_signals() as stop:
            with pytest.raises(ValueError, match="mine"):
                await stop.unless_stopped(fail())

    asyncio.run(scenario())


def test_nothing_open_drains_at_once_and_refuses_from_then_on() -> None:
    async def scenario() -> None:
        async with engine_with_worker() as engine, stop_signals() as stop:
            assert await drain_requests(engine, 600, stop) == 0
            with pytest.raises(EngineUnavailable, match="draining"):
                engine.generate(request(engine))

    asyncio.run(scenario())


def test_requests_beyond_the_deadline_end_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenspeed.appliance.drain.ABORT_SECONDS", 0.05)

    async def scenario() -> None:
        async with engine_with_worker() as engine, stop_signals() as stop:
            ends = [asyncio.create_task(last(engine.generate(request(engine)))) for _ in range(3)]
            await asyncio.sleep(0)
            assert await drain_requests(engine, 0.02, stop) == 3
            for delta in await asyncio.gather(*ends):
                assert delta.finish_reason is FinishReason.ERROR
            assert engine.open_requests == 0

    asyncio.run(scenario())


def test_a_second_signal_breaks_off_the_wait() -> None:
    async def scenario() -> None:
        async with engine_with_worker() as engine, stop_signals() as stop:
            answer = engine.generate(request(engine))
            stop.on_signal(signal.SIGTERM)
            draining = asyncio.create_task(drain_requests(engine, 600, stop))
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(Stopped):
                await draining
            assert stop.number == signal.SIGTERM
            answer.close()

    asyncio.run(scenario())
