"""What the worker does with frames: requests of any number of fronts in, deltas out to each.

The requests of a front that is gone end. The inbox is drained between steps without waiting; when
nothing runs, the wait for a frame is the idle state.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from tokenspeed import log as logs
from tokenspeed import wire
from tokenspeed.errors import ExitCode
from tokenspeed.request import Delta, FinishReason
from tokenspeed.wire import EngineStats, FrameError, WorkerMessage
from tokenspeed.worker.fronts import Connection, Fronts
from tokenspeed.worker.loop import Loop, Output
from tokenspeed.worker.profile import Profiler
from tokenspeed.worker.prompts import Prompts

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
STARTING_SECONDS = 0.2
# How often a loop that has nothing else to do looks whether what it waits for is there.
POLL_SECONDS = 0.001
CLOSE_SECONDS = 1.0
# Frames read between two steps: a flood of submissions must not keep the steps waiting.
FRAMES_PER_TURN = 256


class Service:
    """Serves fronts on one endpoint, from the first moment of loading to the shutdown."""

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Listens at the path `endpoint`; raises OSError when it cannot."""
        self._clock = clock
        self._sockets = Fronts(endpoint, self._lose)
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

    def starting(self, stage: str, fraction: float, detail: str = "") -> None:
        """Tell the fronts how far loading is; called often, sends a few times per second.

        Raises SystemExit when a shutdown was asked for meanwhile.
        """
        now = self._clock()
        if now - self._starting_at < STARTING_SECONDS and fraction < 1.0:
            return
        self._starting_at = now
        state = wire.Starting(stage=stage, fraction=fraction, detail=detail)
        self._drain(state)
        if self._stopping:
            raise SystemExit(ExitCode.OK)
        for front in self._sockets.ids:
            self._send(front, state)

    def serve(self, loop: Loop, ready: wire.Ready, profiler: Profiler) -> ExitCode:
        """Run until a shutdown. Raises what a step raised, after every open request was told."""
        self._loop = loop
        self._profiler = profiler
        for front in self._sockets.ids:
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
        self._sockets.close(CLOSE_SECONDS)

    def _end(self, outputs: list[Output], why: str) -> None:
        """Nothing runs any more: sends the last deltas, and refuses what is in the inbox."""
        self._send_outputs(outputs)
        self._loop, self._refusal = None, why
        self._drain(wire.Starting(stage=why, fraction=0.0))

    def _wait(self, most: float) -> None:
        left = min(most, self._heartbeat_at + HEARTBEAT_SECONDS - self._clock())
        self._sockets.wait(max(0.0, left))

    def _beat(self) -> None:
        now = self._clock()
        if now - self._heartbeat_at < HEARTBEAT_SECONDS:
            return
        self._heartbeat_at = now
        for front in self._sockets.ids:
            self._send(front, wire.Heartbeat(turns=self._turns))

    def _drain(self, state: wire.Starting | wire.Ready) -> None:
        """Handles the frames that are there; `state` answers a Hello."""
        for _ in range(FRAMES_PER_TURN):
            received = self._sockets.receive()
            if received is None:
                return
            self._handle(*received, state)

    def _handle(
        self, connection: Connection, frame: bytes, state: wire.Starting | wire.Ready
    ) -> None:
        try:
            envelope = wire.decode_from_front(frame)
            if not self._sockets.name(connection, envelope.front_id):
                raise FrameError("another front's id than before")
        except FrameError as error:
            self._bad_frames += 1
            log.warning("a frame was dropped: %s", error)
            return
        front = envelope.front_id
        match envelope.body:
            case wire.Hello():
                self._send(front, state)
            case wire.Submit() as message:
                self._answer(front, self._submit(front, message))
            case wire.Abort(request_id=request_id):
                if self._loop is not None:
                    self._answer(front, self._loop.abort(front, request_id))
            case wire.AskStats(query_id=query_id):
                self._send(front, wire.StatsAnswer(query_id=query_id, stats=self._stats()))
            case wire.AskExperts(query_id=query_id):
                layers = () if self._loop is None else self._loop.expert_load()
                self._send(front, wire.ExpertsAnswer(query_id=query_id, layers=layers))
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
            return EngineStats(bad_frames=self._bad_frames + self._sockets.bad_streams)
        return self._loop.stats(self._bad_frames + self._sockets.bad_streams)

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
        self._sockets.send(front, wire.encode_to_front(body, front))

    def _lose(self, front: str, why: str) -> None:
        self._prompts.drop(front)
        ended = self._loop.abort_front(front) if self._loop is not None else 0
        level = logging.WARNING if ended else logging.INFO
        log.log(level, "front %s %s: %d of its requests end", front, why, ended)
