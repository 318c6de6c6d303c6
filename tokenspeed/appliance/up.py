"""From a plan to a server that answers, and down again: the life of one instance.

claim the name -> bind the port -> answer probes -> fetch weights -> start the worker
-> ready -> one real question -> serve until a signal -> drain -> leave nothing behind
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from tokenspeed import env
from tokenspeed.appliance.drain import SIGNALS, Stopped, StopSignals, drain_requests
from tokenspeed.appliance.front import Doorway, Server, listen, url_of
from tokenspeed.appliance.instance import RECORD_VERSION, Record, RunDir, claim
from tokenspeed.appliance.logfile import adopt
from tokenspeed.appliance.process import start_ticks
from tokenspeed.appliance.progress import Display, Rate, display, say
from tokenspeed.appliance.store import Store, Watch
from tokenspeed.appliance.supervise import Supervisor, WorkerCommand
from tokenspeed.appliance.warmup import Answer, Probe, probe_for, warm_up
from tokenspeed.checkpoint.source import parse
from tokenspeed.engine import Engine, Loading, Ready
from tokenspeed.errors import ExitCode, Problem, ResolveError
from tokenspeed.log import QueueHandler
from tokenspeed.plan import Plan
from tokenspeed.server.app import create_app
from tokenspeed.server.keys import open_to_strangers, read_keys
from tokenspeed.tokenizer import TextModel, load_text_model

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1  # between looks at the worker's progress
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What `up` was asked for. `log_draft` is where this process's output goes when detached: it
    becomes the log once the name is claimed. `overrides` are the texts of --set, which `status`
    needs to make the plan again."""

    plan: Plan
    recipe: Path
    offline: bool
    log_draft: Path | None
    overrides: tuple[str, ...] = ()


def refuse_unmet(plan: Plan) -> None:
    """Raises ResolveError when the plan needs what this build or machine has not got."""
    if plan.unmet:
        raise ResolveError(
            *(
                Problem(
                    code="TS-S200",
                    message=f"this plan cannot run here: it needs {unmet.need}: {unmet.detail}",
                    hint="`tokenspeed plan` shows the whole of it",
                )
                for unmet in plan.unmet
            )
        )


def up(order: Order, handler: QueueHandler) -> int:
    """Boots and serves until a signal; returns the exit code.

    0 after a drain or a stop before it was ready, 128 + signal when a second signal cut requests
    off. Raises TokenspeedError when it cannot start or cannot go on.
    """
    refuse_unmet(order.plan)
    _raise_file_limit()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it says nothing that we do not say
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_live(order, handler))
    finally:
        # Nothing is left to stop; one more Ctrl-C must not turn the exit into a traceback.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _raise_file_limit() -> None:
    """Each connection is a file; the usual soft limit of 1024 is meant for programs with select."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _live(order: Order, handler: QueueHandler) -> int:
    stop = StopSignals()
    try:
        run_dir = claim(env.run_root(), order.plan.name)
        try:
            log_file = adopt(order.log_draft, order.plan.name) if order.log_draft else None
            return await Instance(order, handler, stop, run_dir, log_file).live()
        finally:
            run_dir.remove()
    finally:
        stop.close()


class Instance:
    """One recipe that runs. Owns the listener, the server, the engine and the supervisor."""

    def __init__(
        self,
        order: Order,
        handler: QueueHandler,
        stop: StopSignals,
        run_dir: RunDir,
        log_file: Path | None,
    ) -> None:
        """Reads the API keys and binds the port. Raises UnavailableError when a key is not
        there, TryAgainError when the port is taken."""
        self._order = order
        self._plan = order.plan
        self._handler = handler
        self._stop = stop
        self._run_dir = run_dir
        self._log_file = log_file  # of a detached instance
        self._began = time.monotonic()
        self._started = time.time()
        self._keys = read_keys(order.plan.serve.api_keys)
        if open_to_strangers(order.plan.serve.host, self._keys):
            log.warning(
                "ANYBODY who reaches %s may use this server: it listens beyond this machine and "
                "asks for no key; set serve.api_keys, or serve.host to 127.0.0.1",
                order.plan.serve.host,
            )
        self._listener = listen(order.plan.serve.host, order.plan.serve.port)
        self._url = url_of(self._listener)
        self._doorway = Doorway(self._keys)
        self._server = Server(self._doorway)
        self._engine = Engine(f"{order.plan.name}-{os.getpid()}")
        self._threads = Threads()
        self._tasks: list[asyncio.Task[None]] = []  # the server's, then the supervisor's
        self._supervisor: Supervisor | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._exits = contextlib.AsyncExitStack()

    async def live(self) -> int:
        self._run_dir.write_plan(self._plan)
        self._run_dir.write_record(self._record(greeting=""))
        self._watch(self._server.serve([self._listener]))
        conducting = asyncio.ensure_future(self._conduct())
        try:
            first: set[asyncio.Future[Any]] = {conducting, self._broken}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
            return await conducting
        finally:
            conducting.cancel()
            await asyncio.gather(conducting, return_exceptions=True)
            await self._close()

    # ---- the stages

    async def _conduct(self) -> int:
        try:
            with display(self._handler) as shown:
                probe, answer = await self._stop.unless_stopped(self._boot(shown))
        except Stopped:
            log.info("stopped before it was ready")
            return ExitCode.OK
        greeting = self._greeting(probe, answer)
        self._run_dir.write_record(self._record(greeting))
        foreground = self._log_file is None
        self._threads.begin(lambda: say(greeting + "\nCtrl-C stops it." * foreground))
        await self._stop.first.wait()
        return await self._drain()

    async def _boot(self, shown: Display) -> tuple[Probe, Answer]:
        """Everything up to the first answer."""
        model_dir = await self._threads.run(lambda: self._fetch(shown))
        self._start_worker(model_dir)
        self._tell(shown, "reading the tokenizer")
        text = await self._threads.run(lambda: load_text_model(model_dir, self._plan))
        app = create_app(self._plan, self._engine, text, self._keys)
        self._exits.callback(app.close)
        self._doorway.inner = app
        await self._worker_ready(shown)
        shown.stage("warming up")
        probe = self._probe(text)
        return probe, await warm_up(self._url, probe, self._keys.local)

    def _fetch(self, shown: Display) -> Path | None:
        """The model's folder; None for random weights that need no files. Blocks."""
        model = self._plan.model
        source = parse(model.source)
        if source.kind == "path":
            return source.directory(Path("/"))
        if model.load == "dummy":
            return None
        rate = Rate(shown)

        def on_bytes(done: int, total: int) -> None:
            self._doorway.fraction = done / total if total else 0.0
            rate(done, total)

        watch = Watch(lambda text: self._tell(shown, text), on_bytes, self._stop.require_wanted)
        store = Store(env.data_root() / "weights")
        return store.obtain(source, model.files, watch, offline=self._order.offline)

    def _start_worker(self, model_dir: Path | None) -> None:
        folder = self._run_dir.path

        def arguments(incarnation: int) -> list[str]:
            # -P: a file random.py in the folder where `up` was called must not be imported.
            worker = [sys.executable, "-P", "-m", "tokenspeed.worker", "--run-dir", str(folder)]
            endpoint = self._run_dir.endpoint(incarnation)
            return [*worker, "--model-dir", str(model_dir or folder), "--endpoint", endpoint]

        command = WorkerCommand(
            arguments=arguments,
            endpoint=self._run_dir.endpoint,
            socket=self._run_dir.socket,
            environment=env.worker_environment(self._plan.device.threads),
        )
        self._supervisor = Supervisor(self._engine, command, self._handler.put)
        self._watch(self._supervisor.run())

    async def _worker_ready(self, shown: Display) -> None:
        while not isinstance(state := self._engine.state, Ready):
            if isinstance(state, Loading):
                shown.stage(f"worker: {state.stage}")
                shown.fraction(state.fraction)
            else:
                shown.stage("the worker starts again")
            await asyncio.sleep(POLL_SECONDS)

    async def _drain(self) -> int:
        assert self._supervisor is not None
        self._closing = True
        self._supervisor.no_restart()
        seconds = self._plan.serve.drain_seconds
        log.info(
            "draining: %d requests are open and get up to %g s; a second signal ends them at once",
            self._engine.open_requests,
            seconds,
        )
        try:
            await drain_requests(self._engine, seconds, self._stop)
            self._server.finish()
            await self._stop.unless_hurried(asyncio.wait({self._tasks[0]}))
        except Stopped:
            return 128 + self._stop.number
        await self._supervisor.stop()
        return ExitCode.OK

    async def _close(self) -> None:
        """Ends at once whatever still runs; after a drain that is nothing."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.kill()
        self._engine.disconnect("the server is stopping")
        self._server.drop()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._exits.aclose()
        self._listener.close()
        await self._engine.close()
        # A pip that was asked to give up ends within this time; nothing waits for a dead network.
        await asyncio.to_thread(self._threads.join, 1.0)
        for result in results:
            if isinstance(result, BaseException) and not self._broken.done():
                log.error("while stopping", exc_info=result)

    # ---- small parts

    def _watch(self, work: Coroutine[None, None, None]) -> None:
        """Runs `work` beside the stages; when it ends by itself, the instance is broken."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._on_end)
        self._tasks.append(task)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if self._closing or self._broken.done() or task.cancelled():
            return
        ended = AssertionError("the server or the supervisor ended by itself")
        self._broken.set_exception(task.exception() or ended)

    def _tell(self, shown: Display, stage: str) -> None:
        self._doorway.stage, self._doorway.fraction = stage, 0.0
        shown.stage(stage)

    def _probe(self, text: TextModel) -> Probe:
        name = self._plan.model.served_names[0]
        return probe_for(
            name, has_template=text.has_chat_template, has_tokenizer=text.has_tokenizer
        )

    def _greeting(self, probe: Probe, answer: Answer) -> str:
        seconds = time.monotonic() - self._began
        noise = (
            "  (random weights: the answer is noise)" if self._plan.model.load == "dummy" else ""
        )
        return (
            f"\n{self._plan.name} is ready at {self._url}  ({seconds:.1f} s)\n\n"
            f"  asked     {probe.question}\n"
            f"  answered  {answer.text}{noise}\n"
            f"            {answer.tokens} tokens in {answer.seconds:.2f} s\n\n"
            f"{probe.curl(self._url, self._keys.required)}\n"
        )

    def _record(self, greeting: str) -> Record:
        return Record(
            version=RECORD_VERSION,
            name=self._plan.name,
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()) or 0,
            url=self._url,
            recipe=str(self._order.recipe.absolute()),
            started=self._started,
            drain_seconds=self._plan.serve.drain_seconds,
            log=str(self._log_file) if self._log_file else None,
            greeting=greeting,
            overrides=self._order.overrides,
            key=self._keys.local,
        )


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
        self._threads.append(thread)
        thread.start()
        return future

    def join(self, seconds: float) -> None:
        """Waits for work that was given up, but not for ever."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
