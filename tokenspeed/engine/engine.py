"""The front's handle on a worker: submit, stream, abort, state.

One object lives as long as the front; workers come and go (`connect`, `disconnect`). Everything
happens on one event loop. A request ends exactly once: with the worker's final Delta, with an
ERROR Delta when the worker is gone, or by the consumer's `close`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from tokenspeed.engine.answer import Answer, merged
from tokenspeed.engine.asking import Asking
from tokenspeed.engine.link import Link
from tokenspeed.engine.shipping import Shipping
from tokenspeed.engine.state import Down, EngineUnavailable, Loading, Ready, State
from tokenspeed.request import Delta, FinishReason, Request
from tokenspeed.wire import (
    Abort,
    Capacity,
    EngineStats,
    ExpertsAnswer,
    Flushed,
    FrameError,
    FrontMessage,
    Heartbeat,
    Hello,
    Outputs,
    Profiled,
    Shutdown,
    Starting,
    StatsAnswer,
    WorkerMessage,
    decode_from_worker,
    encode_to_worker,
)
from tokenspeed.wire import Ready as ReadyMessage

log = logging.getLogger(__name__)

HELLO_SECONDS = 0.2


class Engine:
    """See the module. `bad_frames` counts malformed frames from workers that were dropped,
    `worker_starts` the workers so far; `gpu_faults` is incremented by the GPU watch."""

    def __init__(self, front_id: str) -> None:
        self.state: State = Loading("starting", 0.0)
        self.paused = False
        self.bad_frames = 0
        self.worker_starts = 0
        self.gpu_faults = 0
        self.last_heartbeat = 0.0
        self.asking = Asking(self._tell)
        self._stopping = False
        self._front_id = front_id
        self._link: Link | None = None
        self._shipping = Shipping()
        self._greeting: asyncio.TimerHandle | None = None
        self._answers: dict[int, Answer] = {}
        self._waiting_ready: list[asyncio.Future[Ready]] = []
        self._last_request = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- a worker comes and goes

    def connect(self, endpoint: str) -> None:
        """A new worker will listen at `endpoint`; its socket need not exist yet.

        Must be called on the event loop. The previous worker is disconnected.
        """
        if self._link is not None:
            self.disconnect("another worker takes its place")
        self.worker_starts += 1
        self._link = Link(endpoint, self._on_frames, self._on_again)
        self._shipping = Shipping()
        self.state = Loading("starting", 0.0)
        self.last_heartbeat = time.monotonic()
        self._greet()

    def disconnect(self, why: str) -> None:
        """The worker is gone: every open request ends with an ERROR Delta now.

        `why` goes to operators (state, log); clients are told only "the engine stopped".
        """
        if self._greeting is not None:
            self._greeting.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None
        self.state = Down(why)
        self._fail_answers(why)
        unavailable = EngineUnavailable("down", why)
        self.asking.fail(unavailable)
        for waiting in self._waiting_ready:
            if not waiting.done():
                waiting.set_exception(unavailable)
        self._waiting_ready.clear()

    async def wait_ready(self) -> Ready:
        """Waits until the worker is ready. Raises EngineUnavailable when it goes down instead."""
        if isinstance(self.state, Ready):
            return self.state
        if isinstance(self.state, Down):
            raise EngineUnavailable("down", self.state.why)
        future: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._waiting_ready.append(future)
        return await future

    def shutdown_worker(self) -> None:
        """Asks the worker to end its requests and exit."""
        self._send(Shutdown())

    async def close(self) -> None:
        """Disconnects the worker. The engine cannot be used afterwards."""
        self.disconnect("the server is stopping")

    # ---- requests

    @property
    def open_requests(self) -> int:
        """Requests whose last Delta has not come yet."""
        return len(self._answers)

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last message from the worker's loop."""
        return time.monotonic() - self.last_heartbeat

    def next_request_id(self) -> int:
        self._last_request += 1
        return self._last_request

    def generate(self, request: Request) -> Answer:
        """Submits at once and returns the stream of its Deltas.

        Raises EngineUnavailable when no worker is ready or the front is draining.
        """
        self.require_available()
        assert request.request_id not in self._answers, "a request id is used once"
        answer = Answer(request.request_id, self._abandon)
        self._answers[request.request_id] = answer
        self._idle.clear()
        self._send(self._shipping.submit(request))
        return answer

    def require_available(self) -> Capacity:
        """The capacity; raises EngineUnavailable if a new request would be refused now."""
        if self.draining:
            raise EngineUnavailable("draining", "open requests are finished, new ones refused")
        match self.state:
            case Ready(capacity):
                return capacity
            case Loading(stage, fraction):
                raise EngineUnavailable("loading", f"{stage}, {fraction:.0%}")
            case Down(why):
                raise EngineUnavailable("down", why)

    @property
    def draining(self) -> bool:
        """Whether new requests are refused while open ones continue."""
        return self._stopping or self.paused

    def start_draining(self) -> None:
        """Refuses new requests for good; open ones continue. `paused` does the same until it is
        unset."""
        self._stopping = True

    async def drained(self) -> None:
        """Waits until no request is open."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """Ends every open request; each gets its final ABORT Delta from the worker."""
        for request_id in self._answers:
            self._send(Abort(request_id))

    async def stats(self, timeout: float) -> EngineStats:
        """The worker's current state, asked for now.

        Raises EngineUnavailable when it does not answer within `timeout` seconds.
        """
        return await self.asking.stats(timeout)

    # ---- inside

    def _greet(self) -> None:
        if isinstance(self.state, Loading):
            self._send(Hello())
            self._greeting = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._greet)

    def _on_again(self) -> None:
        """The worker closed the connection but lives: it has ended this front's requests."""
        self._fail_answers("the connection to the engine was lost")
        self._shipping = Shipping()

    def _fail_answers(self, why: str) -> None:
        answers, self._answers = self._answers, {}
        for request_id, answer in answers.items():
            answer.put(Delta(request_id=request_id, finish_reason=FinishReason.ERROR, error=why))
        self._idle.set()

    def _on_frames(self, frames: list[bytes]) -> None:
        messages = [message for frame in frames if (message := self._decoded(frame)) is not None]
        self.last_heartbeat = time.monotonic()
        try:
            for message in _coalesced(messages):
                self._on_message(message)
        except Exception:
            # A bug of ours: whoever the message was for would wait for ever.
            log.exception("the engine client failed")
            self.disconnect("the engine client failed")

    def _decoded(self, frame: bytes) -> WorkerMessage | None:
        try:
            return decode_from_worker(frame).body
        except FrameError as error:
            self.bad_frames += 1
            log.warning("dropped a malformed frame from the worker: %s", error)
            return None

    def _on_message(self, message: WorkerMessage) -> None:
        match message:
            case Outputs(deltas):
                for delta in deltas:
                    self._on_delta(delta)
            case Heartbeat():
                pass
            case Starting(stage, fraction, detail):
                if isinstance(self.state, Loading):
                    self.state = Loading(stage, fraction, detail)
            case ReadyMessage(capacity, stages):
                self._on_ready(Ready(capacity, stages))
            case StatsAnswer() | ExpertsAnswer() | Flushed() | Profiled():
                self.asking.answered(message)

    def _on_ready(self, ready: Ready) -> None:
        self.state = ready
        self.asking.greet()
        for future in self._waiting_ready:
            if not future.done():
                future.set_result(ready)
        self._waiting_ready.clear()

    def _on_delta(self, delta: Delta) -> None:
        answer = self._answers.get(delta.request_id)
        if answer is None:
            return  # the consumer left while this was on its way
        if delta.finish_reason is not None:
            self._forget(delta.request_id)
        answer.put(delta)

    def _abandon(self, request_id: int) -> None:
        if request_id in self._answers:
            self._forget(request_id)
            self._send(Abort(request_id))

    def _forget(self, request_id: int) -> None:
        del self._answers[request_id]
        if not self._answers:
            self._idle.set()

    def _tell(self, message: FrontMessage) -> None:
        """Raises EngineUnavailable when there is no worker."""
        if self._link is None:
            raise EngineUnavailable("down", self.state.why if isinstance(self.state, Down) else "")
        self._send(message)

    def _send(self, message: FrontMessage) -> None:
        if self._link is not None:
            self._link.send(encode_to_worker(message, self._front_id))


def _coalesced(messages: list[WorkerMessage]) -> Iterable[WorkerMessage]:
    """The same with the deltas of consecutive Outputs merged by request: a front that falls behind
    the engine does less for each token."""
    if len(messages) < 2:
        yield from messages
        return
    held: dict[int, list[Delta]] = {}
    for message in messages:
        if isinstance(message, Outputs):
            for delta in message.deltas:
                held.setdefault(delta.request_id, []).append(delta)
            continue
        if held:
            yield Outputs(tuple(map(merged, held.values())))
            held = {}
        yield message
    if held:
        yield Outputs(tuple(map(merged, held.values())))
