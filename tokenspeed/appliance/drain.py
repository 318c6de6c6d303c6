"""The way down: a first signal lets open requests finish, a second ends at once.

SIGTERM or SIGINT (or SIGHUP, where a terminal may go away) -> new requests get 503 -> open ones
run up to `drain_seconds`, then end -> connections close -> the worker ends -> the run folder goes
-> exit 0
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from tokenspeed.appliance.front import Doorway, Server
from tokenspeed.engine.engine import Engine

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SWITCH = signal.SIGUSR1
RELOAD = signal.SIGHUP
# What the worker gets to end requests that were cut off, before it is killed with them.
ABORT_SECONDS = 2.0
CALM_SECONDS = 0.3
_LOOK_SECONDS = 0.01

Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818 - not a failure: it was asked for
    """A signal came while something else was awaited."""


class StopSignals:
    """Counts the signals that ask this process to stop. Made on the event loop's main thread.

    `switches`: SIGUSR1 asks it to go on with another generation. `reloads`: nobody's terminal can
    go away, so SIGHUP asks it to read its recipe again.
    """

    def __init__(self, *, switches: bool = False, reloads: bool = False) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.switch = asyncio.Event()
        self.reload = asyncio.Event()
        self.number = signal.SIGTERM
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self.on_signal, number)
        if switches:
            self._loop.add_signal_handler(SWITCH, self.switch.set)
        if reloads:
            self._loop.add_signal_handler(RELOAD, self.reload.set)

    def on_signal(self, number: signal.Signals) -> None:
        if self.first.is_set():
            self.second.set()
            return
        self.number = number
        self.first.set()

    def close(self) -> None:
        for number in (*SIGNALS, SWITCH):
            self._loop.remove_signal_handler(number)

    def require_wanted(self) -> None:
        """Raises Stopped once a signal came; may be called from any thread."""
        if self.first.is_set():
            raise Stopped

    async def asked(self, seconds: float | None) -> None:
        """Waits for a stop, a switch or a reload, for `seconds` at most."""
        events = (self.first, self.switch, self.reload)
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        left = None if seconds is None else max(0.0, seconds)
        await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def unless_stopped(self, work: Awaitable[Result]) -> Result:
        """Awaits `work`; cancels it and raises Stopped when a signal comes first."""
        return await self._unless(work, self.first)

    async def unless_hurried(self, work: Awaitable[Result]) -> Result:
        """The same for the second signal."""
        return await self._unless(work, self.second)

    async def _unless(self, work: Awaitable[Result], event: asyncio.Event) -> Result:
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            for future in (task, stop):
                future.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)


class Hurry(Protocol):
    """Who may ask for an end at once."""

    async def unless_hurried(self, work: Awaitable[Result]) -> Result:
        """Awaits `work`; raises Stopped when that is asked for first."""


class Patient:
    """Nobody hurries; who does kills."""

    async def unless_hurried(self, work: Awaitable[Result]) -> Result:
        return await work


class Counter(Protocol):
    """Knows how many requests are being answered."""

    active: int


async def quiet(requests: Counter, seconds: float) -> None:
    """Waits until for a while nothing was asked, for `seconds` at most.

    A client with an open connection may send its next request at any moment; closing just then
    would lose it.
    """
    until = time.monotonic() + seconds
    calm_since = time.monotonic()
    while (now := time.monotonic()) < until and now - calm_since < CALM_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        if requests.active:
            calm_since = time.monotonic()


async def let_go(
    server: Server, doorway: Doorway, engine: Engine, seconds: float, hurry: Hurry, *, held: bool
) -> None:
    """What each front does on its way down: finishes open requests within `seconds`, then lets the
    server end. `held`: the queue of the listening socket outlives it, so what is not taken waits
    for the next one. Raises Stopped."""
    deadline = time.monotonic() + seconds
    if held:
        server.pause()
        doorway.farewell = True
        await hurry.unless_hurried(quiet(doorway, seconds))
    await drain_requests(engine, max(0.0, deadline - time.monotonic()), hurry)
    server.finish()


async def drain_requests(engine: Engine, seconds: float, stop: Hurry) -> int:
    """Refuses new requests and waits for the open ones; returns how many were cut off.

    Raises Stopped when another signal comes meanwhile.
    """
    engine.start_draining()
    if await _drained_within(engine, seconds, stop):
        return 0
    cut_off = engine.open_requests
    log.warning("%d requests did not finish within %g s and are ended", cut_off, seconds)
    engine.abort_all()
    if not await _drained_within(engine, ABORT_SECONDS, stop):
        engine.disconnect("the server is stopping")
    return cut_off


async def _drained_within(engine: Engine, seconds: float, stop: Hurry) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.unless_hurried(engine.drained())
            return True
    return False
