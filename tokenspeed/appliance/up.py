"""The process of `tokenspeed up`: claims the name of the instance, holds its port, runs one
generation after another (`serving.py`), and leaves nothing behind."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import resource
import signal
import time
from collections.abc import Callable, Coroutine

import uvloop

from tokenspeed import env
from tokenspeed.appliance.activation import Port
from tokenspeed.appliance.drain import SIGNALS, StopSignals
from tokenspeed.appliance.instance import claim
from tokenspeed.appliance.logfile import adopt
from tokenspeed.appliance.notify import Notifier
from tokenspeed.appliance.order import Order, refuse_unmet
from tokenspeed.appliance.rollout import Rollout
from tokenspeed.appliance.serving import Instance, Surroundings
from tokenspeed.log import QueueHandler
from tokenspeed.stages import process_age


def up(order: Order, again: Callable[[], Order], handler: QueueHandler) -> int:
    """Boots and serves until a signal; returns the exit code. `again` is the order of the same
    recipe at a later time, and may raise TokenspeedError.

    0 after a drain or a stop before it was ready, 128 + signal when a second signal cut requests
    off. Raises TokenspeedError when it cannot start or cannot go on.
    """
    refuse_unmet(order.plan)
    return _run(_live(order, None, again, handler))


def up_installed(rollout: Rollout, handler: QueueHandler) -> int:
    """The same for the generations of an installed recipe: one that cannot run gives way to the
    one before, and SIGUSR1 starts the one selected last. The port stays open between them."""
    return _run(_live(rollout.next(), rollout, rollout.selected, handler))


def _run(life: Coroutine[None, None, int]) -> int:
    _raise_file_limit()
    faulthandler.enable()  # a watchdog's SIGABRT shows where this process hangs
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it says nothing that we do not say
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(life)
    finally:
        # Nothing is left to stop; one more Ctrl-C must not turn the exit into a traceback.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _raise_file_limit() -> None:
    """Each connection is a file; the usual soft limit of 1024 is meant for programs with select."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _live(
    order: Order, rollout: Rollout | None, again: Callable[[], Order], handler: QueueHandler
) -> int:
    manager = env.service_manager()
    stop = StopSignals(
        switches=rollout is not None, reloads=bool(manager.notify or order.log_draft)
    )
    notifier = Notifier(manager.notify)
    port = Port(manager.sockets, notifier, keep=rollout is not None)
    try:
        run_dir = claim(env.run_root(), order.plan.name)
        try:
            log_file = adopt(order.log_draft, order.plan.name) if order.log_draft else None
            surroundings = Surroundings(
                handler=handler,
                stop=stop,
                run_dir=run_dir,
                log_file=log_file,
                port=port,
                notifier=notifier,
                watchdog_seconds=manager.watchdog_seconds,
                rollout=rollout,
                again=again,
            )
            began = time.monotonic() - process_age()
            while (code := await _one(order, surroundings, began)) is None:
                assert rollout is not None, "only a generation has a successor"
                began, order = time.monotonic(), rollout.next()
            return code
        finally:
            run_dir.remove()
    finally:
        stop.close()
        port.close()
        notifier.close()


async def _one(order: Order, surroundings: Surroundings, began: float) -> int | None:
    """One generation, or all there is: its exit code, None when the next one follows."""
    rollout = surroundings.rollout
    try:
        return await Instance(order, surroundings, began).live()
    except Exception as error:
        if rollout is None:
            raise
        rollout.failed(error)
        return None
    finally:
        surroundings.run_dir.clear()
