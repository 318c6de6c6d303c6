"""The worker's socket: frames of any number of fronts in, deltas out to each.

A front is known by the identity of its DEALER. One that cannot be reached or does not read is
gone: its requests end, so that nobody's memory grows for it. The inbox is drained between steps
without waiting; when nothing runs, the wait for a frame is the idle state.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import zmq

from tokenspeed import log as logs
from tokenspeed import wire
from tokenspeed.errors import ExitCode
from tokenspeed.request import Delta, FinishReason
from tokenspeed.wire import Capacity, EngineStats, FrameError, FrontEnvelope, WorkerMessage
from tokenspeed.worker.loop import Loop, Output
from tokenspeed.worker.profile import Profiler
from tokenspeed.worker.prompts import Prompts

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
STARTING_SECONDS = 0.2
# How often a loop that has nothing else to do looks whether what it waits for is there.
POLL_SECONDS = 0.001
# Frames that may wait for one front before it counts as gone.
SEND_QUEUE_FRAMES = 100_000
# Frames read between two steps: a flood of submissions must not keep the steps waiting.
FRAMES_PER_TURN = 256


class Service:
    """Serves fronts on one endpoint, from the first moment of loading to the shutdown."""

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Binds; raises zmq.ZMQError when it cannot."""
        self._clock = clock
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # Sending to a front that is gone must fail, not vanish; a front that connects again under
        # its name takes over from its former self.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_FRAMES)
        self._socket.setsockopt(zmq.RCVHWM, SEND_QUEUE_FRAMES)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.bind(endpoint)
        self._fronts: set[str] = set()
        self._prompts = Prompts()
        self._bad_frames = 0
        self._turns = 0
        self._heartbeat_at = 0.0
        self._starting_at = 0.0
        self._stopping = False
        # Absent while nothing can run; then the refusal says why.
        self._loop: Loop | None = None
        self._refusal = "the engine is still loading"
        self._profiler: Profiler | None = None
        self._profile_for = ("", 0)  # the front and its query, while one is recorded

    @property
    def stopping(self) -> bool:
        """Whether a shutdown was asked for."""
        return self._stopping

    def stop(self) -> None:
        """Shut down at the next chance, as after a Shutdown message. Safe in a signal handler."""
        self._stopping = True

    def starting(self, stage: str, fraction: float) -> None:
        """Tell the fronts how far loading is; called often, sends a few times per second.

        Raises SystemExit when a shutdown was asked for meanwhile.
        """
        now = self._clock()
        if now - self._starting_at < STARTING_SECONDS and fraction < 1.0:
            return
        self._starting_at = now
        self._drain(wire.Starting(stage=stage, fraction=fraction))
        if self._stopping:
            raise SystemExit(ExitCode.OK)
        for front in tuple(self._fronts):
            self._send(front, wire.Starting(stage=stage, fraction=fraction))

    def serve(self, loop: Loop, capacity: Capacity, profiler: Profiler) -> ExitCode:
        """Run until a shutdown. Raises what a step raised, after every open request was told."""
        self._loop = loop
        self._profiler = profiler
        ready = wire.Ready(capacity=capacity)
        for front in tuple(self._fronts):
            self._send(front, ready)
        try:
            while not self._stopping:
                if loop.only_waits:
                    self._wait(POLL_SECONDS if loop.busy else HEARTBEAT_SECONDS)
                self._drain(ready)
                if loop.busy and not self._stopping:
                    self._send_outputs(loop.turn())
                    self._turns += 1
                if profiler.recording:
                    self._profile(profiler, loop)
                self._beat()
        except Exception as error:
            reason = f"the engine failed: {type(error).__name__}: {error}"
            self._end(loop.end_all(FinishReason.ERROR, reason), reason)
            raise
        self._end(loop.end_all(FinishReason.ABORT), "the engine is shutting down")
        return ExitCode.OK

    def close(self) -> None:
        """Sends what is queued, for a second at most."""
        self._socket.close()
        self._context.term()

    def _end(self, outputs: list[Output], why: str) -> None:
        """Nothing runs any more: sends the last deltas, and refuses what is in the inbox."""
        self._send_outputs(outputs)
        self._loop, self._refusal = None, why
        self._drain(wire.Starting(stage=why, fraction=0.0))

    def _wait(self, most: float) -> None:
        left = min(most, self._heartbeat_at + HEARTBEAT_SECONDS - self._clock())
        self._socket.poll(max(0, int(left * 1000)), zmq.POLLIN)

    def _beat(self) -> None:
        now = self._clock()
        if now - self._heartbeat_at < HEARTBEAT_SECONDS:
            return
        self._heartbeat_at = now
        for front in tuple(self._fronts):
            self._send(front, wire.Heartbeat(turns=self._turns))

    def _drain(self, state: wire.Starting | wire.Ready) -> None:
        """Handles the frames that are there; `state` answers a Hello."""
        for _ in range(FRAMES_PER_TURN):
            if not self._socket.poll(0, zmq.POLLIN):
                return
            self._handle(self._socket.recv_multipart(), state)

    def _handle(self, frames: list[bytes], state: wire.Starting | wire.Ready) -> None:
        try:
            envelope = _envelope(frames)
        except FrameError as error:
            self._bad_frames += 1
            log.warning("a frame was dropped: %s", error)
            return
        front = envelope.front_id
        match envelope.body:
            case wire.Hello():
                self._fronts.add(front)
                self._send(front, state)
            case wire.Submit() as message:
                self._answer(front, self._submit(front, message))
            case wire.Abort(request_id=request_id):
                if self._loop is not None:
                    self._answer(front, self._loop.abort(front, request_id))
            case wire.AskStats(query_id=query_id):
                self._send(front, wire.StatsAnswer(query_id=query_id, stats=self._stats()))
            case wire.Flush(query_id=query_id):
                blocks = 0 if self._loop is None else self._loop.forget_prefixes()
                self._send(front, wire.Flushed(query_id=query_id, blocks=blocks))
            case wire.Profile() as message:
                self._begin_profile(front, message)
            case wire.SetLogLevel(level=level):
                logs.set_level(level)
            case wire.Shutdown():
                self._stopping = True

    def _submit(self, front: str, message: wire.Submit) -> Delta | None:
        self._fronts.add(front)
        request = self._prompts.whole(front, message)
        if request is not None and self._loop is not None:
            return self._loop.submit(front, request)
        refusal = self._refusal if self._loop is None else "the prompt's beginning is not here"
        return Delta(
            request_id=message.request.request_id,
            finish_reason=FinishReason.ERROR,
            error=refusal,
        )

    def _begin_profile(self, front: str, message: wire.Profile) -> None:
        error = ""
        if self._profiler is None or self._loop is None:
            error = self._refusal
        elif self._profiler.recording:
            error = "another profile is being recorded"
        else:
            until = self._clock() + message.seconds
            self._profiler.begin(self._loop.steps, message.steps, until)
            self._profile_for = (front, message.query_id)
        if error:
            self._send(front, wire.Profiled(query_id=message.query_id, error=error))

    def _profile(self, profiler: Profiler, loop: Loop) -> None:
        """Ends the recording once it has its steps or its time is over."""
        trace = profiler.finish(loop.steps, self._clock())
        if trace is not None:
            front, query_id = self._profile_for
            answer = wire.Profiled(query_id=query_id, file=trace.file, steps=trace.steps)
            self._send(front, answer)

    def _stats(self) -> EngineStats:
        if self._loop is None:
            return EngineStats(bad_frames=self._bad_frames)
        return self._loop.stats(self._bad_frames)

    def _answer(self, front: str, delta: Delta | None) -> None:
        if delta is not None:
            self._send(front, wire.Outputs(deltas=(delta,)))

    def _send_outputs(self, outputs: Iterable[Output]) -> None:
        by_front: defaultdict[str, list[Delta]] = defaultdict(list)
        for front, delta in outputs:
            by_front[front].append(delta)
        for front, deltas in by_front.items():
            self._send(front, wire.Outputs(deltas=tuple(deltas)))

    def _send(self, front: str, body: WorkerMessage) -> None:
        frame = wire.encode_to_front(body, front, time.time_ns())
        try:
            self._socket.send_multipart((front.encode(), frame), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._lose(front, "is gone" if error.errno == zmq.EHOSTUNREACH else "does not read")

    def _lose(self, front: str, why: str) -> None:
        self._fronts.discard(front)
        self._prompts.drop(front)
        ended = self._loop.abort_front(front) if self._loop is not None else 0
        log.warning("front %s %s: %d of its requests end", front, why, ended)


def _envelope(frames: list[bytes]) -> FrontEnvelope:
    """Identity and one payload, by the front that the payload names. Raises FrameError."""
    if len(frames) != 2:
        raise FrameError(f"{len(frames)} parts, expected an identity and one payload")
    envelope = wire.decode_from_front(frames[1])
    if envelope.front_id.encode() != frames[0]:
        raise FrameError("the front's id is not the identity of its socket")
    return envelope
