"""Blocking work beside an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Threads:
    """Blocking work beside the event loop that cannot hold up the end of the process.

    asyncio.to_thread would: a read from a dead network lasts until its own time-out.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    async def run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self.begin(work))

    def begin(self, work: Callable[[], Result]) -> concurrent.futures.Future[Result]:
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run() -> None:
            future.set_running_or_notify_cancel()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, daemon=True, name="work")
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()
        return future

    def join(self, seconds: float) -> None:
        """Waits for work that was given up, but not for ever."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
