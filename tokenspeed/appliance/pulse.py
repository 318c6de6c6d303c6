"""The instance's signs of life: what a service manager is told, about once a second.

Starting and stopping may take as long as they get on: each step forward extends the time that the
manager allows. The watchdog is fed only while the worker is heard, or a silent one is dealt with.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tokenspeed.appliance.notify import Notifier

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 300.0  # between two steps forward of a start
STOP_MARGIN_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Sign:
    """How the instance is. `progress` changes with each step forward, None where there is none to
    make."""

    text: str
    progress: object
    alive: bool


class Pulse:
    """`begin` on the event loop; `sign` is asked at each beat."""

    def __init__(
        self, notifier: Notifier, watchdog_seconds: float | None, sign: Callable[[], Sign]
    ) -> None:
        self._notifier = notifier
        # Three chances before a watchdog bites.
        self._seconds = min(BEAT_SECONDS, (watchdog_seconds or 3 * BEAT_SECONDS) / 3)
        self._sign = sign
        self._progress: object = None
        self._starting = True
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._notifier.wanted:
            self._task = asyncio.create_task(self._run())

    def ready(self) -> None:
        self._starting = False
        self._notifier.ready()
        self._beat()

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """The manager waits for the end of it before it says that the reload is done."""
        self._notifier.reloading()
        try:
            yield
        finally:
            self._notifier.ready()

    def stopping(self, seconds: float, *, for_good: bool) -> None:
        """The stop may take `seconds` for open requests; not for good: a new plan follows it."""
        if for_good:
            self._notifier.stopping()
        else:
            self._notifier.reloading()
        self._notifier.extend(seconds + STOP_MARGIN_SECONDS)

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(self._seconds)

    def _beat(self) -> None:
        sign = self._sign()
        self._notifier.status(sign.text)
        if self._starting and sign.progress != self._progress:
            self._notifier.extend(PATIENCE_SECONDS)
        self._progress = sign.progress
        if sign.alive:
            self._notifier.alive()
