"""One further front: HTTP and text like the first one, which says what it is to do.

It has the listening socket, a socket of its own in the run folder, and a connection of its own to
the worker. What is told of the whole instance, it asks the first front for. SIGTERM makes it
finish what it has and end; another one takes its place.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import http.client
import itertools
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from starlette.responses import Response

from tokenspeed import log as logs
from tokenspeed import streams
from tokenspeed.appliance.drain import Patient, let_go
from tokenspeed.appliance.front import Doorway, Server, ask, listen_here
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
from tokenspeed.appliance.further.fronts import shared_cells
from tokenspeed.appliance.instance import UNIX
from tokenspeed.appliance.threads import Threads
from tokenspeed.appliance.tracer import tracing
from tokenspeed.engine import Engine, EngineUnavailable, Ready
from tokenspeed.errors import ExitCode, TokenspeedError
from tokenspeed.metrics import CONTENT_TYPE
from tokenspeed.plan import Plan
from tokenspeed.server.admission import Places
from tokenspeed.server.app import App, create_app
from tokenspeed.server.company import Company
from tokenspeed.server.keys import Key, Keys, read_keys
from tokenspeed.server.openai.errors import rate_limited, unavailable
from tokenspeed.server.status import HEADERS
from tokenspeed.server.tls import read_tls
from tokenspeed.tokenizer import load_text_model

log = logging.getLogger("tokenspeed.front")

REPORT_SECONDS = 0.5
STARTING_SECONDS = 0.05  # between reports until it is up


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 after a drain, that of the error otherwise."""
    streams.prepare()
    faulthandler.enable()  # the first front ends one that hangs with SIGABRT: this shows where
    options = _parse(arguments)
    handler = logs.setup()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_live(options))
    except TokenspeedError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception:
        log.exception("a front failed")
        return ExitCode.INTERNAL
    finally:
        handler.close()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tokenspeed.appliance.further", description=__doc__
    )
    parser.add_argument("--number", type=int, required=True, help="from 2 on")
    parser.add_argument("--first", required=True, help="the first front's own socket: a path")
    parser.add_argument("--socket", type=Path, required=True, help="this front's own")
    parser.add_argument("--model-dir", type=Path, required=True, help="holds the tokenizer")
    for name in ("listener", "control", "places"):
        parser.add_argument(f"--{name}", type=int, required=True, help="a descriptor")
    return parser.parse_args(arguments)


async def _live(options: argparse.Namespace) -> int:
    front = FurtherFront(options)
    try:
        return await front.live()
    finally:
        await front.close()


class FurtherFront:
    """`live` returns the exit code."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(fileno=options.listener)
        self._places = Places(shared_cells(options.places), options.number - 1)
        os.close(options.places)
        self._channel = Channel(self._on_message, self._on_end)
        self._uses = SharedUses(self._channel)
        self._threads = Threads()
        self._exits = contextlib.AsyncExitStack()
        self._over: asyncio.Future[int] = self._loop.create_future()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._work: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None
        self._app: App | None = None
        self._draining = False
        # These are there from the first plan on, which comes before any other message.
        self._plan: Plan
        self._keys: Keys
        self._doorway: Doorway
        self._server: Server
        self._engine = Engine(f"front-{options.number}-{os.getpid()}")

    async def live(self) -> int:
        control = socket.socket(fileno=self._options.control)
        control.setblocking(False)
        await self._channel.open(control)
        self._loop.add_signal_handler(signal.SIGTERM, self._on_signal)
        self._watch(self._report_always())
        await self._either(self._begun, self._over)
        if not self._over.done():
            self._watch(self._boot())
        return await self._over

    async def close(self) -> None:
        """Ends at once whatever still runs; after a drain that is nothing."""
        self._engine.disconnect("the server is stopping")
        if self._serving is not None:
            self._server.drop()
            await asyncio.gather(self._serving, return_exceptions=True)
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._exits.aclose()
        self._channel.close()
        self._listener.close()
        await asyncio.to_thread(self._threads.join, 1.0)

    # ---- from the first plan to an application

    def _begin(self, take: Take) -> None:
        plan = self._plan = Plan.from_json(take.plan)
        self._keys = read_keys(plan.serve.api_keys, take.made)
        tls = read_tls(plan.serve.tls)
        self._doorway = Doorway(self._keys, tls)
        self._server = Server(self._doorway, tls)
        self._begun.set_result(None)

    async def _boot(self) -> None:
        self._serving = asyncio.ensure_future(self._server.serve([]))
        local = listen_here(self._options.socket)
        self._exits.callback(local.close)
        await self._server.open_local(local)
        plan = self._plan
        text = await self._threads.run(lambda: load_text_model(self._options.model_dir, plan))
        tracer = await self._exits.enter_async_context(tracing(plan, self._threads))
        company = Company(places=self._places, uses=self._uses, relay=self._relay)
        app = create_app(plan, self._engine, text, self._keys, tracer=tracer, company=company)
        self._exits.callback(app.close)
        if self._plan != plan:
            app.take(self._plan)
        self._app = self._doorway.inner = app

    async def _open(self) -> None:
        if self._draining:
            return
        self._doorway.is_open = True
        await self._server.open(self._listener)

    async def _relay(self, path: str) -> Response:
        """What the first front answers."""
        url = f"{UNIX}{self._options.first}"
        try:
            status, body = await ask(url, "GET", path, key=self._keys.made)
        except (OSError, http.client.HTTPException) as error:
            raise unavailable(EngineUnavailable("down", str(error))) from error
        if isinstance(body, str):
            return Response(body, status, media_type=CONTENT_TYPE)
        return Response(msgspec.json.encode(body), status, HEADERS, "application/json")

    # ---- what the first front says

    def _on_message(self, message: Message) -> None:
        try:
            self._obey(message)
        except Exception as error:  # of keys that cannot be read: nobody may use others instead
            self._fail(error)

    def _obey(self, message: Message) -> None:
        match message:
            case Take():
                self._take(message)
            case Connect(endpoint):
                self._engine.connect(endpoint)
            case Disconnect(why):
                self._engine.disconnect(why)
            case Pause(paused):
                self._engine.paused = paused
            case SetLogLevel(level):
                logs.set_level(level)
            case Open():
                self._watch(self._open())
            case Ask(query):
                self._report(query)
            case Granted():
                self._uses.granted(message)
            case Drain(seconds, held):
                self._drain(seconds, held)

    def _take(self, take: Take) -> None:
        if not self._begun.done():
            self._begin(take)
            return
        plan = Plan.from_json(take.plan)
        if plan.serve.api_keys != self._plan.serve.api_keys:
            self._keys.take(plan.serve.api_keys)
        self._plan = plan
        if self._app is not None:
            self._app.take(plan)

    def _on_signal(self) -> None:
        if self._begun.done():
            self._drain(self._plan.serve.drain_seconds, held=True)
        else:
            self._end(ExitCode.OK)

    def _drain(self, seconds: float, held: bool) -> None:
        if not self._draining:
            self._draining = True
            self._watch(self._let_go(seconds, held))

    async def _let_go(self, seconds: float, held: bool) -> None:
        if self._serving is not None:
            await let_go(self._server, self._doorway, self._engine, seconds, Patient(), held=held)
            await asyncio.wait({self._serving})
        self._report(0)  # what it counted last
        self._end(ExitCode.OK)

    def _on_end(self) -> None:
        self._fail(ConnectionError("the first front is gone"))

    # ---- what it says

    async def _report_always(self) -> None:
        while True:
            self._report(0)
            await asyncio.sleep(REPORT_SECONDS if self._is_up else STARTING_SECONDS)

    @property
    def _is_up(self) -> bool:
        return self._app is not None and isinstance(self._engine.state, Ready)

    def _report(self, query: int) -> None:
        said = None if self._app is None else self._app.report()
        self._channel.send(Report(query, self._is_up, self._engine.open_requests, said))

    # ---- small parts

    @staticmethod
    async def _either(*futures: asyncio.Future[Any]) -> None:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)

    def _watch(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _end(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)


class SharedUses:
    """Asks the first front whether a key may be used once more: limits hold for all fronts."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queries = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Granted]] = {}

    @contextlib.asynccontextmanager
    async def using(self, key: Key) -> AsyncIterator[None]:
        query = next(self._queries)
        future: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._asked[query] = future
        self._channel.send(Use(query, key.digest, key.rate, key.concurrent))
        try:
            granted = await future
            if granted.refusal:
                raise rate_limited(granted.refusal, granted.seconds)
            yield
        finally:
            self._asked.pop(query, None)
            self._channel.send(Done(query))

    def granted(self, answer: Granted) -> None:
        future = self._asked.get(answer.query)
        if future is not None and not future.done():
            future.set_result(answer)
