"""One generation of an instance, from its plan to a server that answers, and down again.

bind the port -> answer probes -> fetch weights -> start the worker -> ready -> one real question
-> serve until a signal -> drain

A port passed on by the service manager is not answered at until the start is over: clients wait in
its queue, and are neither refused nor told to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenspeed import env
from tokenspeed.appliance.activation import Port
from tokenspeed.appliance.admin import Admin
from tokenspeed.appliance.drain import Stopped, StopSignals, let_go
from tokenspeed.appliance.early import worker_command
from tokenspeed.appliance.front import (
    Doorway,
    Server,
    listen_for_metrics,
    listen_here,
    url_of,
)
from tokenspeed.appliance.further.fronts import FrontCommand, FurtherFronts
from tokenspeed.appliance.gpus import Fault, GpuWatch
from tokenspeed.appliance.greeting import Start, greeting
from tokenspeed.appliance.held import HeldFiles
from tokenspeed.appliance.instance import RECORD_VERSION, Record, RunDir
from tokenspeed.appliance.ledger import require_room
from tokenspeed.appliance.notify import Notifier
from tokenspeed.appliance.order import Order, made
from tokenspeed.appliance.process import start_ticks
from tokenspeed.appliance.progress import Display, Rate, display, say
from tokenspeed.appliance.pulse import Pulse, Sign
from tokenspeed.appliance.reload import Reloaded, reloaded, taken_over
from tokenspeed.appliance.rollout import Rollout
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.supervise import Supervisor, WorkerCommand
from tokenspeed.appliance.threads import Threads
from tokenspeed.appliance.tracer import tracing
from tokenspeed.appliance.warmup import Answer, Probe, probe_for, warm_up
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.source import parse
from tokenspeed.engine import Engine, EngineUnavailable, Loading, Ready
from tokenspeed.errors import ExitCode, TokenspeedError
from tokenspeed.log import QueueHandler
from tokenspeed.server.app import App, create_app
from tokenspeed.server.company import Company
from tokenspeed.server.keys import open_to_strangers, read_keys
from tokenspeed.server.tls import read_tls
from tokenspeed.tokenizer import TextModel, load_text_model

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1  # between looks at the worker's progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What outlives an instance, for the next one in the same process."""

    handler: QueueHandler
    stop: StopSignals
    run_dir: RunDir
    log_file: Path | None
    port: Port
    notifier: Notifier
    watchdog_seconds: float | None
    rollout: Rollout | None
    again: Callable[[], Order]


class Instance:
    """One recipe that runs. Owns the listener, the server, the engine, the supervisor, and the
    fronts beside this one."""

    def __init__(self, order: Order, surroundings: Surroundings, began: float) -> None:
        """Reads the API keys and binds the port. `began` is when its start did, monotonic seconds.
        Raises UnavailableError when a key is not there, TryAgainError when the port is taken."""
        self._order = order
        self._plan = order.plan
        self._handler = surroundings.handler
        self._stop = surroundings.stop
        self._run_dir = surroundings.run_dir
        self._log_file = surroundings.log_file  # of a detached instance
        self._rollout = surroundings.rollout
        self._again = surroundings.again
        self._notifier = surroundings.notifier
        self._began = self._worker_began = began
        self._started = time.time()
        self._keys = read_keys(order.plan.serve.api_keys)
        tls = read_tls(order.plan.serve.tls)
        self._listener = surroundings.port.take(order.plan.serve)
        try:
            self._metrics = listen_for_metrics(order.plan.serve)
        except TokenspeedError:
            self._listener.socket.close()
            raise
        if open_to_strangers(order.plan.serve.host, self._keys):
            log.warning(
                "ANYBODY who reaches %s may use this server: it listens beyond this machine and "
                "asks for no key; set serve.api_keys, or serve.host to 127.0.0.1",
                order.plan.serve.host,
            )
        self._url = url_of(self._listener.socket, "http" if tls is None else "https")
        self._local = listen_here(self._run_dir.front_socket)
        self._doorway = Doorway(self._keys, tls)
        self._server = Server(self._doorway, tls)
        self._app: App | None = None
        self._engine = Engine(f"{order.plan.name}-{os.getpid()}")
        self._further = FurtherFronts(
            order.plan.serve.fronts,
            self._keys,
            order.plan.scheduler.hang_seconds,
            self._handler.put,
        )
        self._further.take(self._plan)
        self._threads = Threads()
        self._tasks: list[asyncio.Task[None]] = []  # the server's, then of other processes
        self._pulse = Pulse(self._notifier, surroundings.watchdog_seconds, self._sign)
        self._supervisor: Supervisor | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._is_followed = False  # by another generation in this process
        self._greeted = ""
        self._reloading = asyncio.Lock()
        self._exits = contextlib.AsyncExitStack()

    async def live(self) -> int | None:
        """The exit code; None when the next generation is to follow."""
        try:
            self._run_dir.write_plan(self._plan)
            self._run_dir.write_record(own := self._record(greeting=""))
            require_room(own, self._plan, env.run_roots())
            self._watch_gpus()
            self._watch(self._server.serve([]))
            self._pulse.begin()
            return await self._conducted()
        finally:
            await self._close()

    async def _conducted(self) -> int | None:
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

    # ---- the stages

    async def _conduct(self) -> int | None:
        try:
            with display(self._handler) as shown:
                probe, answer = await self._stop.unless_stopped(self._boot(shown))
        except Stopped:
            log.info("stopped before it was ready")
            if self._rollout is not None:
                await self._threads.run(self._rollout.put_off)
            return ExitCode.OK
        self._greeted = self._greeting(probe, answer)
        if self._rollout is not None:  # first: whoever is told that it is ready may count on it
            await self._threads.run(self._rollout.ready)
        self._tell_of_it()
        self._pulse.ready()
        foreground = self._log_file is None
        self._threads.begin(lambda: say(self._greeted + "\nCtrl-C stops it." * foreground))
        self._is_followed = await self._until_asked()
        return await self._drain()

    async def _boot(self, shown: Display) -> tuple[Probe, Answer]:
        """Everything up to the first answer, after which the public is let in."""
        await self._server.open_local(self._local)
        if self._metrics is not None:
            await self._server.open_metrics(self._metrics)
        if not self._listener.passed:
            await self._server.open(self._listener.socket)
        model_dir = await self._threads.run(lambda: self._fetch(shown))
        files = [model_dir / file.name for file in self._plan.model.files] if model_dir else []
        held = await self._threads.run(lambda: HeldFiles(files))
        self._start_worker(model_dir, held)
        self._start_fronts(model_dir)
        self._tell(shown, "reading the tokenizer")
        text = await self._threads.run(lambda: load_text_model(model_dir, self._plan))
        tracer = await self._exits.enter_async_context(tracing(self._plan, self._threads))
        company = Company(peers=self._further, places=self._further.places)
        app = create_app(self._plan, self._engine, text, self._keys, tracer=tracer, company=company)
        self._exits.callback(app.close)
        self._app = app
        self._doorway.inner = app
        await self._worker_ready(shown)
        await self._further.ready()
        self._tell(shown, "warming up")
        probe = self._probe(text)
        real = self._plan.model.load == "weights"
        answer = await warm_up(self._run_dir.front_url, probe, self._keys.local, real_weights=real)
        for url in map(self._run_dir.further_url, self._further.numbers):
            await warm_up(url, probe, self._keys.local)
        self._doorway.is_open = True
        if self._listener.passed:
            await self._server.open(self._listener.socket)
        self._further.open()
        return probe, answer

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
        token = env.secret(model.token).strip() if model.token else None
        return store.obtain(source, model.files, watch, offline=self._order.offline, token=token)

    def _start_worker(self, model_dir: Path | None, held: HeldFiles) -> None:
        folder = self._run_dir.path

        async def hindrance() -> str | None:
            return await self._threads.run(held.changed)

        def arguments(incarnation: int) -> list[str]:
            with contextlib.suppress(TokenspeedError):  # the worker says what it could not read
                self._run_dir.write_plan(self._plan)
            worker = ["--run-dir", str(folder), "--model-dir", str(model_dir or folder)]
            return [*worker, "--endpoint", self._run_dir.endpoint(incarnation)]

        how = WorkerCommand(
            arguments=arguments,
            endpoint=self._run_dir.endpoint,
            socket=self._run_dir.socket,
            environment=env.worker_environment(self._plan.device.threads),
            command=worker_command(),
            early=self._order.early,
            hindrance=hindrance,
        )
        self._supervisor = Supervisor(
            self._engine,
            how,
            self._handler.put,
            self._plan.scheduler.hang_seconds,
            followers=[self._further],
        )
        self._worker_began = time.monotonic()
        self._watch(self._supervisor.run())

    def _start_fronts(self, model_dir: Path | None) -> None:
        run_dir = self._run_dir

        def arguments(number: int, listener: int, control: int, places: int) -> list[str]:
            front = [sys.executable, "-P", "-m", "tokenspeed.appliance.further"]
            front += ["--number", str(number), "--model-dir", str(model_dir or run_dir.path)]
            front += ["--first", str(run_dir.front_socket)]
            front += ["--socket", str(run_dir.further_socket(number))]
            front += ["--listener", str(listener), "--control", str(control)]
            return [*front, "--places", str(places)]

        command = FrontCommand(
            arguments=arguments,
            own_socket=run_dir.further_socket,
            listener=self._listener.socket,
            environment=env.child_environment({}),
        )
        self._watch(self._further.run(command))

    async def _worker_ready(self, shown: Display) -> None:
        while not isinstance(state := self._engine.state, Ready):
            if isinstance(state, Loading):
                self._tell(shown, f"worker: {state.stage}", state.fraction)
                shown.fraction(state.fraction, state.detail)
            else:
                self._tell(shown, "the worker starts again")
            await asyncio.sleep(POLL_SECONDS)

    async def _until_asked(self) -> bool:
        """Waits for the end; whether another generation follows it."""
        rollout = self._rollout
        self._doorway.local = Admin(self._keys, self._reload)
        while True:
            await self._stop.asked(None if rollout is None else rollout.remaining())
            if self._stop.first.is_set():
                if rollout is not None:
                    await self._threads.run(rollout.put_off)
                return False
            if self._stop.reload.is_set():
                self._stop.reload.clear()
                with contextlib.suppress(TokenspeedError):  # it is in the log
                    await self._reload()
            elif rollout is not None and (
                self._stop.switch.is_set() or await self._threads.run(rollout.lapse)
            ):
                self._stop.switch.clear()
                if not await self._switch_in_place(rollout):
                    return True

    async def _reload(self) -> dict[str, Any]:
        """Takes over what it can of the recipe as it is now, and says what became of the rest.
        Raises TokenspeedError when the recipe cannot be used; then all stays as it was."""
        async with self._reloading:
            with self._pulse.reloading():
                try:
                    wanted = await self._threads.run(lambda: made(self._again))
                    result = self._take(wanted)
                except TokenspeedError as error:
                    log.error("the changed recipe cannot be applied: %s", error)
                    raise
        for change in result.changes:
            became = f"not applied: it needs {change.needs}" if change.needs else "applied"
            log.info("%s: %s -> %s, %s", change.key, change.before, change.after, became)
        return result.to_json()

    async def _switch_in_place(self, rollout: Rollout) -> bool:
        """Goes on with the generation that is selected, if nothing has to start anew for it; or
        with the one that runs, if that one cannot even be planned."""
        async with self._reloading:
            try:
                number, wanted = await self._threads.run(rollout.selection)
                if number == rollout.generation:
                    return True
                if not reloaded(self._order, wanted).complete:
                    return False
                with self._pulse.reloading():
                    self._take(wanted)
            except TokenspeedError as error:
                return await self._threads.run(partial(rollout.goes_on, error))
            await self._threads.run(partial(rollout.took_over, number))
            self._tell_of_it()
        log.info("generation %d goes on with the workers that run", rollout.generation)
        return True

    def _take(self, wanted: Order) -> Reloaded:
        """Raises UnavailableError for keys that cannot be read; then all stays as it was."""
        result = reloaded(self._order, wanted)
        if result.plan.serve.api_keys != self._plan.serve.api_keys:
            self._keys.take(result.plan.serve.api_keys)
        assert self._app is not None, "a reload comes after the start"
        self._app.take(result.plan)
        self._further.take(result.plan)
        self._plan = result.plan
        wishes = taken_over(self._order.wishes, wanted, result)
        self._order = replace(self._order, plan=result.plan, recipe=wanted.recipe, wishes=wishes)
        self._tell_of_it()
        return result

    def _tell_of_it(self) -> None:
        """Answering counts for more than who is told."""
        try:
            self._run_dir.write_plan(self._plan)
            self._run_dir.write_record(self._record(self._greeted))
        except TokenspeedError as error:
            log.error("it serves, and `tokenspeed status` will not know how: %s", error)

    async def _drain(self) -> int | None:
        assert self._supervisor is not None
        self._closing = True
        self._supervisor.no_restart()
        seconds = self._plan.serve.drain_seconds
        self._pulse.stopping(seconds, for_good=not self._is_followed)
        log.info(
            "draining: open requests (%d) get up to %g s; a second signal ends them at once",
            self._open_requests,
            seconds,
        )
        held = self._listener.held or self._is_followed
        others = asyncio.ensure_future(self._further.drain(seconds, held=held))
        try:
            await let_go(self._server, self._doorway, self._engine, seconds, self._stop, held=held)
            await self._stop.unless_hurried(asyncio.wait({self._tasks[0]}))
            await self._stop.unless_hurried(others)
        except Stopped:
            return 128 + self._stop.number
        finally:
            others.cancel()
        await self._supervisor.stop()
        return None if self._is_followed and not self._stop.first.is_set() else ExitCode.OK

    async def _close(self) -> None:
        """Ends at once whatever still runs; after a drain that is nothing."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.kill()
        self._further.kill()
        self._engine.disconnect("the server is stopping")
        self._server.drop()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._further.close()
        await self._exits.aclose()
        await self._pulse.end()
        self._listener.socket.close()
        self._local.close()
        if self._metrics is not None:
            self._metrics.close()
        await self._engine.close()
        # A pip that was asked to give up ends within this time; nothing waits for a dead network.
        await asyncio.to_thread(self._threads.join, 1.0)
        for result in results:
            if isinstance(result, BaseException) and not self._broken.done():
                log.error("while stopping", exc_info=result)

    # ---- small parts

    def _watch_gpus(self) -> None:
        if self._plan.device.kind != "cuda":
            return
        loop = asyncio.get_running_loop()

        def report(fault: Fault) -> None:
            loop.call_soon_threadsafe(self._on_fault, fault)

        watch = GpuWatch(self._plan.device.count, report)
        watch.start()
        self._exits.callback(watch.stop)

    def _on_fault(self, fault: Fault) -> None:
        fields = {"gpu": fault.gpu, "kind": fault.kind, "number": fault.number}
        log.error("%s", fault, extra={"fields": fields})
        self._engine.gpu_faults += 1
        if self._supervisor is not None:
            self._supervisor.note_fault(str(fault))

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

    def _tell(self, shown: Display, stage: str, fraction: float = 0.0) -> None:
        self._doorway.stage, self._doorway.fraction = stage, fraction
        self._notifier.status(f"{stage}, {fraction:.0%}")
        shown.stage(stage)

    def _sign(self) -> Sign:
        """How it is, for the service manager."""
        alive = self._supervisor is None or self._supervisor.in_time
        if not self._doorway.is_open:
            progress = (self._doorway.stage, self._doorway.fraction)
            return Sign(f"{progress[0]}, {progress[1]:.0%}", progress, alive)
        if self._closing:
            count = max(self._open_requests, self._doorway.active)
            return Sign(f"draining, open requests: {count}", count, alive)
        try:
            self._engine.require_available()
        except EngineUnavailable as unavailable:
            return Sign(f"{unavailable.reason}: {unavailable.detail}", None, alive)
        return Sign(f"serving at {self._url}, {self._open_requests} open", None, alive)

    @property
    def _open_requests(self) -> int:
        """Of all fronts."""
        return self._engine.open_requests + self._further.open_requests

    def _probe(self, text: TextModel) -> Probe:
        name = self._plan.model.served_names[0]
        return probe_for(
            name, has_template=text.has_chat_template, has_tokenizer=text.has_tokenizer
        )

    def _greeting(self, probe: Probe, answer: Answer) -> str:
        state = self._engine.state
        start = Start(
            seconds=time.monotonic() - self._began,
            planned=self._worker_began - self._began,
            worker=state.stages if isinstance(state, Ready) else {},
        )
        return greeting(self._plan, self._url, start, probe, answer, keyed=self._keys.required)

    def _record(self, greeting: str) -> Record:
        return Record(
            version=RECORD_VERSION,
            name=self._plan.name,
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()) or 0,
            url=self._url,
            local=self._run_dir.front_url,
            recipe=str(self._order.recipe.absolute()),
            started=self._started,
            drain_seconds=self._plan.serve.drain_seconds,
            log=str(self._log_file) if self._log_file else None,
            greeting=greeting,
            overrides=self._order.overrides,
            key=self._keys.local,
            generation=self._rollout.generation if self._rollout else None,
        )
