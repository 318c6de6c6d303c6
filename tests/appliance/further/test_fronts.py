"""When further fronts are started again, when that is given up, and what they share."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.appliance.live import tiny_model
from tests.rigs.plans import tiny_plan
from tokenspeed.appliance.further.fronts import (
    FrontCommand,
    FrontFailed,
    FurtherFronts,
    shared_cells,
)
from tokenspeed.appliance.supervise import RestartPolicy
from tokenspeed.server.admission import Admission, Places
from tokenspeed.server.keys import Keys
from tokenspeed.server.openai.errors import ApiError

Running: TypeAlias = "asyncio.Task[None]"
POLICY = RestartPolicy(first_wait=0.001, longest_wait=0.001)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A folder with a file for each start."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


# Leaves a mark and exits.
ENDING = "import os, sys; open(f'{sys.argv[1]}/{os.getpid()}', 'w'); print('no luck')"
ENDING += "; sys.exit(int(sys.argv[2]))"
# Leaves a mark once it was greeted, is up once it is told a log level, and leaves what it was told
# by the first Open after that.
COMING_UP = """
import pathlib, socket, sys
import msgspec
from tokenspeed.appliance.further.control import Message, Report
from tokenspeed.wire import FrameReader, framed

marks, control, reader = pathlib.Path(sys.argv[1]), int(sys.argv[2]), FrameReader()
decoder, control = msgspec.msgpack.Decoder(Message), socket.socket(fileno=control)
told = []
while data := control.recv(1 << 16):
    for frame in reader.feed(data):
        told.append(type(decoder.decode(frame)).__name__)
        if told[-1] == "Pause":
            (marks / "greeted").touch()
        if told[-1] == "SetLogLevel":
            control.sendall(framed(msgspec.msgpack.encode(Report(0, True, 0))))
        if told[-1] == "Open" and "SetLogLevel" in told:
            (marks / "draft").write_text(" ".join(told))
            (marks / "draft").rename(marks / "told")
"""


def ending_at_once(
    marks: Path, code: int
) -> AbstractAsyncContextManager[tuple[FurtherFronts, Running]]:
    """A front whose process leaves a mark and exits with `code`, whenever it is started."""
    return running_fronts(marks, lambda *_: ["-S", "-c", ENDING, str(marks), str(code)])


@asynccontextmanager
async def running_fronts(
    marks: Path, arguments: Callable[[int, int, int, int], list[str]]
) -> AsyncIterator[tuple[FurtherFronts, Running]]:
    """One front, whose process is Python with these arguments, as in a FrontCommand."""
    fronts = FurtherFronts(2, Keys(), 5.0, print_line=lambda line: None, policy=POLICY)
    fronts.take(tiny_plan(tiny_model(marks.parent / "model")))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = FrontCommand(
            arguments=lambda *given: [sys.executable, *arguments(*given)],
            own_socket=lambda number: marks / "none.sock",
            listener=listener,
            environment=dict(os.environ),
        )
        running = asyncio.create_task(fronts.run(command))
        try:
            yield fronts, running
        finally:
            fronts.kill()
            fronts.close()


@pytest.mark.parametrize(("code", "starts"), [(70, POLICY.load_failures), (64, 1)])
def test_one_that_does_not_come_up_ends_the_start(marks: Path, code: int, starts: int) -> None:
    async def scenario() -> None:
        async with ending_at_once(marks, code) as (_, running):
            with pytest.raises(FrontFailed, match="no luck") as caught:
                await running
        assert caught.value.problems[0].code == "TS-S211"

    asyncio.run(scenario())
    assert len(list(marks.iterdir())) == starts


def test_once_the_public_is_in_the_others_go_on(marks: Path) -> None:
    async def scenario() -> None:
        async with ending_at_once(marks, 70) as (fronts, running):
            fronts.open()
            while len(list(marks.iterdir())) < 2 * POLICY.load_failures:
                assert not running.done()
                await asyncio.sleep(0.01)
            fronts.kill()
            await running

    asyncio.run(scenario())


def test_one_that_is_not_up_yet_is_told_to_open_once_it_is(marks: Path) -> None:
    async def scenario() -> None:
        def arguments(number: int, listener: int, control: int, places: int) -> list[str]:
            return ["-c", COMING_UP, str(marks), str(control)]

        async with running_fronts(marks, arguments) as (fronts, running):
            while not (marks / "greeted").exists():
                assert not running.done()
                await asyncio.sleep(0.01)
            fronts.open()
            fronts.set_log_level("info")
            while not (marks / "told").exists():
                assert not running.done()
                await asyncio.sleep(0.01)
            fronts.kill()
            await running

    asyncio.run(scenario())
    assert (marks / "told").read_text() == "Take Pause SetLogLevel Open"


def test_places_are_shared_and_come_free_with_their_front() -> None:
    memory = os.memfd_create("places")
    os.ftruncate(memory, 16)
    places = [Places(shared_cells(memory), own) for own in range(2)]
    os.close(memory)
    one, other = (Admission(max_waiting=1, places=place) for place in places)
    held = one.hold(3, max_running=4)
    held.__enter__()
    with other.hold(2, max_running=4):
        for admission in (one, other):
            with pytest.raises(ApiError, match="5"), admission.hold(1, max_running=4):
                pass
    places[1].clear(0)  # the first one was killed with all that it held
    with other.hold(5, max_running=4):
        assert places[0].taken == 5
