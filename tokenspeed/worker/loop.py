"""The main loop: schedule and launch until enough steps are in flight, wait for the oldest,
commit it, return its deltas. At depth 0 a step is scheduled once the previous one is done, at
depth 1 while it runs; there is no second loop for that.

No sockets here: `service` brings messages in and takes deltas out, and so may a test.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from tokenspeed_kernels.sampling.op import Logprobs

from tokenspeed.grammar.guide import Guide
from tokenspeed.grammar.limits import GrammarError
from tokenspeed.request import Delta, FinishReason, Request, TokenLogprobs
from tokenspeed.scheduler import Deltas, Scheduler, Step, SubmitResult
from tokenspeed.wire import EngineStats, LayerLoad
from tokenspeed.worker.checks import Limits, mistake_in, refusal
from tokenspeed.worker.guides import COMPILE_SECONDS, MAX_COMPILING, Guides
from tokenspeed.worker.runner import PendingStep, StepResult
from tokenspeed.worker.sampler import Entry, is_penalised
from tokenspeed.worker.scoring import Scored

log = logging.getLogger(__name__)

_FINISH = {0: None, 1: FinishReason.STOP, 2: FinishReason.LENGTH}
# Ends that the scheduler decides between commits.
_ENDS = {
    3: (FinishReason.EXPIRED, "it waited for longer than it may"),
    5: (FinishReason.ERROR, "the engine that shared it failed"),
    6: (FinishReason.ERROR, "blocks in quarantine leave too little room for it"),
}

# (front, delta): the front that it is for.
Output = tuple[str, Delta]


class StepRunner(Protocol):
    """What the loop asks of a `runner.Runner`."""

    def admit(self, request_id: int, entry: Entry) -> None: ...

    def recount(self, entry: Entry) -> None: ...

    def launch(self, step: Step, masked_rows: np.ndarray) -> PendingStep: ...

    def expert_load(self) -> tuple[LayerLoad, ...]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Open:
    """A request that has not ended. `started`: its first delta was sent. `arrived` is a time of
    the loop's clock."""

    front: str
    request: Request
    prompt: np.ndarray
    arrived: float
    cached_tokens: int = 0
    queued_seconds: float = 0.0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class _Flight:
    """A launched step. `guided` are the requests of its masked rows, in order; `overtaken` are
    those whose sampled token will be dropped, since forced tokens took its place."""

    step: Step
    pending: PendingStep
    guided: tuple[int, ...]
    overtaken: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Compiling:
    request: Request
    guide: Future[Guide]
    began: float


class Loop:
    """Requests in, deltas out. Every request that was accepted ends with exactly one final
    delta, from `turn`, `abort`, `abort_front` or `end_all`; one that waits to be scheduled for
    more than `max_wait_s` seconds in total ends as EXPIRED."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        guides: Guides,
        limits: Limits,
        in_flight_depth: int,
        max_wait_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._guides = guides
        self._limits = limits
        self._depth = in_flight_depth
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._open: dict[int, _Open] = {}
        self._ids: dict[tuple[str, int], int] = {}
        self._next_id = 1
        self._in_flight: deque[_Flight] = deque()
        self._idle = False  # nothing can be scheduled until something outside the loop happens
        self._compiling: dict[tuple[str, int], _Compiling] = {}
        self._guided: dict[int, Guide] = {}
        # Requests whose forced tokens the sampler has not counted yet.
        self._uncounted: set[int] = set()
        self._forced_tokens = 0
        self._step_seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether a turn has anything to do."""
        return bool(self._open or self._in_flight or self._compiling)

    @property
    def only_waits(self) -> bool:
        """Whether a turn can only poll for a compiled grammar or a finished transfer."""
        return not self._in_flight and (self._idle or not self._open)

    def submit(self, front: str, request: Request) -> Delta | None:
        """Take a request; a delta is its refusal, and its end."""
        mistake = self._mistake(front, request)
        if mistake:
            return _refused(request, _ERROR, mistake)
        guide = self._guides.of(request)
        if not isinstance(guide, Future):
            return self._take(front, request, guide)
        if len(self._compiling) < MAX_COMPILING:
            self._compiling[front, request.request_id] = _Compiling(request, guide, self._clock())
            return None
        guide.cancel()
        why = f"the queue is full: {MAX_COMPILING} requests wait for their grammar already"
        return _refused(request, FinishReason.FULL, why)

    def _mistake(self, front: str, request: Request) -> str:
        key = (front, request.request_id)
        if key in self._ids or key in self._compiling:
            return f"request {request.request_id} is open already"
        return mistake_in(request, self._limits)

    def _take(self, front: str, request: Request, guide: Guide | None) -> Delta | None:
        """Hands the request to the scheduler; a delta is its refusal."""
        prompt = np.frombuffer(request.tokens, dtype="<i4").astype(np.int32)
        params = request.sampling
        request_id, now = self._next_id, self._clock()
        result = self._scheduler.submit(
            request_id,
            prompt,
            request.max_tokens,
            np.array(request.stop_token_ids, dtype=np.int32),
            priority=request.priority,
            salt=request.salt,
            # A cached token has no hidden state left to score the next one with.
            read_prefix_cache=params.prompt_logprobs is None,
            now=now,
            max_wait_s=self._max_wait_s,
        )
        self._idle = False
        if result != SubmitResult.ACCEPTED:
            figures = self._scheduler.judge(len(prompt), request.max_tokens)
            why = refusal(
                result.name, len(prompt), request.max_tokens, figures.needed, figures.limit
            )
            full = result == SubmitResult.QUEUE_FULL
            return _refused(request, FinishReason.FULL if full else _ERROR, why)
        self._next_id += 1
        scored: list[TokenLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            scored = [None] * len(prompt)
        self._open[request_id] = _Open(front, request, prompt, now, prompt_logprobs=scored)
        self._ids[front, request.request_id] = request_id
        if guide is not None:
            self._guided[request_id] = guide
        return None

    def abort(self, front: str, request_id: int) -> Delta | None:
        """End a request now. None when it is not open."""
        compiling = self._compiling.pop((front, request_id), None)
        if compiling is not None:
            compiling.guide.cancel()
            return Delta(request_id=request_id, finish_reason=FinishReason.ABORT)
        own_id = self._ids.get((front, request_id))
        if own_id is None:
            return None
        self._scheduler.abort(own_id)
        self._idle = False
        return self._end(own_id, FinishReason.ABORT)

    def abort_front(self, front: str) -> int:
        """End every request of a front that is gone; nobody is told. Returns how many."""
        every = (*self._ids, *self._compiling)
        mine = [request_id for owner, request_id in every if owner == front]
        for request_id in mine:
            self.abort(front, request_id)
        return len(mine)

    def end_all(self, reason: FinishReason, error: str = "") -> list[Output]:
        """End every open request without another step."""
        ended = [
            (front, Delta(request_id=request_id, finish_reason=reason, error=error))
            for front, request_id in self._compiling
        ]
        self._compiling.clear()
        return ended + [self._stopped(request_id, reason, error) for request_id in list(self._open)]

    def turn(self) -> list[Output]:
        """Advances by one step. Raises what a step raised; after that only `end_all` may be
        called."""
        began = self._clock()
        outputs = self._take_compiled(began)
        while len(self._in_flight) <= self._depth:
            step = self._scheduler.step(self._clock())
            if step is None:
                break
            self._launch(step)
        ended = self._ended()
        outputs += ended
        if not self._in_flight:
            self._idle = bool(self._open) and not ended
            assert not self._idle or self._others_work(), "requests are held and none is scheduled"
            return outputs
        flight = self._in_flight.popleft()
        step, result = flight.step, flight.pending.wait()
        for scored in result.scored:
            self._note_scored(scored)
        # The step's views are not valid after the commit.
        sampled_ids = step.request_ids[step.samples != 0]
        tokens, counts, forced = result.tokens, None, None
        if self._guided:
            tokens, counts, forced = self._followed(flight, sampled_ids.tolist(), tokens)
        deltas = self._scheduler.commit(step.id, tokens, counts, forced)
        outputs += self._outputs(deltas, _logprobs_by_id(result, sampled_ids))
        self._release()
        outputs += self._failed()
        self._step_seconds += self._clock() - began
        return outputs

    def _followed(
        self, flight: _Flight, ids: list[int], sampled: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The guides accept what the step sampled. Returns the sampled tokens with those that must
        follow, the count for each request, and how many of these were forced."""
        tokens: list[int] = []
        forced = np.zeros(len(ids), dtype=np.int32)
        for row, (request_id, token) in enumerate(zip(ids, sampled.tolist(), strict=True)):
            tokens.append(token)
            guide = self._guided.get(request_id)
            if guide is None or request_id in flight.overtaken:
                continue
            request = self._open[request_id].request
            if token in request.stop_token_ids:
                continue
            guide.accept(token)
            run = self._guides.run_behind(request, guide)
            if run:
                tokens += run
                forced[row] = len(run)
                self._overtake(request_id, request)
        return np.array(tokens, dtype=np.int32), forced + 1, forced

    def _overtake(self, request_id: int, request: Request) -> None:
        """Forced tokens take the place of what steps in flight sample for the request."""
        for flight in self._in_flight:
            flight.overtaken.add(request_id)
        if is_penalised(request.sampling):
            self._uncounted.add(request_id)

    def _ended(self) -> list[Output]:
        """Requests that the scheduler ended between two commits."""
        ended = self._scheduler.take_ended()
        reasons = zip(ended.request_ids.tolist(), ended.finish.tolist(), strict=True)
        return [
            (self._open[request_id].front, self._end(request_id, *_ENDS[finish]))
            for request_id, finish in reasons
        ]

    def _others_work(self) -> bool:
        """Whether requests wait for a transfer or another engine."""
        now = self._scheduler.stats()
        return bool(now.transfers_in_flight or now.transfers_lost or now.peers)

    def _take_compiled(self, now: float) -> list[Output]:
        """Schedules the requests whose grammar is ready; the others that end are returned."""
        outputs: list[Output] = []
        for (front, request_id), one in list(self._compiling.items()):
            if one.guide.done() or now - one.began > COMPILE_SECONDS:
                del self._compiling[front, request_id]
                ended = self._compiled(front, one)
                if ended is not None:
                    outputs.append((front, ended))
        return outputs

    def _compiled(self, front: str, one: _Compiling) -> Delta | None:
        """As `_take`, of a request whose grammar is ready or takes too long."""
        if not one.guide.done():
            why = f"it takes more than {COMPILE_SECONDS:g} s to compile"
            return _refused(one.request, FinishReason.INVALID, why)
        try:
            return self._take(front, one.request, one.guide.result())
        except GrammarError as error:
            return _refused(one.request, FinishReason.INVALID, str(error))
        except Exception:
            log.exception("a grammar broke its compiler")
            return _refused(one.request, _ERROR, "the grammar could not be compiled")

    def _launch(self, step: Step) -> None:
        self._admit(step)
        rows, ids = _NO_ROWS, ()
        if self._guided:
            sampled = step.request_ids[step.samples != 0].tolist()
            rows = np.array([row for row, i in enumerate(sampled) if self._restricted(i)], np.int64)
            ids = tuple(sampled[row] for row in rows)
        self._in_flight.append(_Flight(step, self._runner.launch(step, rows), ids))
        if len(self._in_flight) == 1:
            self._release()

    def _restricted(self, request_id: int) -> bool:
        guide = self._guided.get(request_id)
        return guide is not None and guide.active

    def _release(self) -> None:
        """All tokens before the oldest step in flight are known now: its rows can be masked."""
        if self._in_flight and self._in_flight[0].guided:
            flight = self._in_flight[0]
            # The token of a request that has ended, or was overtaken, is dropped.
            guides = [
                _FREE if request_id in flight.overtaken else self._guided.get(request_id, _FREE)
                for request_id in flight.guided
            ]
            flight.pending.release(self._guides.masks(guides))

    def _failed(self) -> list[Output]:
        """Ends requests whose grammar failed."""
        failed = [request_id for request_id, guide in self._guided.items() if guide.error]
        return [
            self._stopped(request_id, FinishReason.INVALID, self._guided[request_id].error)
            for request_id in failed
        ]

    def _admit(self, step: Step) -> None:
        for row in np.flatnonzero(step.admitted):
            request_id = int(step.request_ids[row])
            held = self._open[request_id]
            if step.first[row]:
                held.cached_tokens = int(step.cached_lens[row])
                held.queued_seconds = self._clock() - held.arrived
            self._runner.admit(request_id, self._entry(request_id, int(step.slots[row])))
            self._uncounted.discard(request_id)
        if not self._uncounted:
            return
        for request_id, slot in zip(step.request_ids.tolist(), step.slots.tolist(), strict=True):
            if request_id in self._uncounted:
                self._uncounted.remove(request_id)
                self._runner.recount(self._entry(request_id, slot))

    def _entry(self, request_id: int, slot: int) -> Entry:
        held = self._open[request_id]
        output = self._scheduler.tokens(request_id)[len(held.prompt) :]
        return Entry(slot, held.request.sampling, held.prompt, output)

    def _outputs(
        self, deltas: Deltas, logprobs: dict[int, tuple[TokenLogprobs, ...]]
    ) -> list[Output]:
        outputs: list[Output] = []
        ids, finishes = deltas.request_ids.tolist(), deltas.finish.tolist()
        end = 0
        while end < len(ids):
            begin, request_id = end, ids[end]
            while end < len(ids) and ids[end] == request_id:
                end += 1
            tokens = tuple(deltas.tokens[begin:end].tolist())
            finish = finishes[end - 1]
            held = self._open[request_id]
            first = not held.started
            held.started = True
            delta = Delta(
                request_id=held.request.request_id,
                tokens=tokens if tokens[0] >= 0 else (),
                logprobs=_trimmed(logprobs.get(request_id, ()), held.request.sampling.logprobs),
                cached_tokens=held.cached_tokens if first else None,
                queued_seconds=held.queued_seconds if first else None,
                prompt_logprobs=(
                    tuple(held.prompt_logprobs) if first and held.prompt_logprobs else None
                ),
                finish_reason=_FINISH[finish],
            )
            outputs.append((held.front, delta))
            self._forced_tokens += len(tokens) - 1
            if finish:
                self._forget(request_id)
        return outputs

    def _note_scored(self, scored: Scored) -> None:
        held = self._open.get(scored.span.request_id)
        if held is None or held.prompt_logprobs is None:
            return
        span = scored.span
        entries = [entry for part in scored.parts for entry in _entries(part)]
        for place, (token, (logprob, top)) in enumerate(
            zip(span.targets.tolist(), entries, strict=True), start=span.first
        ):
            held.prompt_logprobs[place] = TokenLogprobs(token, logprob, top)

    def _stopped(self, request_id: int, reason: FinishReason, error: str) -> Output:
        """Ends a request that the scheduler still has."""
        self._scheduler.abort(request_id)
        return self._open[request_id].front, self._end(request_id, reason, error)

    def _end(self, request_id: int, reason: FinishReason, error: str = "") -> Delta:
        held = self._forget(request_id)
        return Delta(request_id=held.request.request_id, finish_reason=reason, error=error)

    def _forget(self, request_id: int) -> _Open:
        held = self._open.pop(request_id)
        self._guided.pop(request_id, None)
        self._uncounted.discard(request_id)
        del self._ids[held.front, held.request.request_id]
        return held

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self._scheduler.stats().steps

    def expert_load(self) -> tuple[LayerLoad, ...]:
        """Counts of the steps so far; waits for launched ones."""
        return self._runner.expert_load()

    def forget_prefixes(self) -> int:
        """Forgets every cached prefix; returns how many blocks held one."""
        return self._scheduler.reset_prefix_cache()

    def stats(self, bad_frames: int = 0) -> EngineStats:
        """The true state now. `bad_frames` is counted where frames are read."""
        now = self._scheduler.stats()
        return EngineStats(
            running=now.running,
            waiting=now.waiting + len(self._compiling),
            slots_used=now.slots_used,
            blocks_total=now.blocks_total,
            blocks_used=now.blocks_used,
            blocks_cached=now.blocks_cached,
            steps=now.steps,
            prompt_tokens=now.prompt_tokens,
            cached_prompt_tokens=now.cached_prompt_tokens,
            generated_tokens=now.generated_tokens,
            forced_tokens=self._forced_tokens,
            preemptions=now.preemptions,
            requests_finished=now.finished,
            requests_aborted=now.aborted,
            bad_frames=bad_frames,
            step_seconds_sum=self._step_seconds,
        )

    def close(self) -> None:
        """Waits for the steps in flight and releases the stream."""
        self._guides.close()
        self._runner.close()


_NO_ROWS = np.empty(0, dtype=np.int64)
_ERROR = FinishReason.ERROR
_FREE = Guide()


def _refused(request: Request, reason: FinishReason, why: str) -> Delta:
    return Delta(request_id=request.request_id, finish_reason=reason, error=why)


def _logprobs_by_id(
    result: StepResult, sampled_ids: np.ndarray
) -> dict[int, tuple[TokenLogprobs, ...]]:
    if result.logprobs is None or result.logprob_rows is None:
        return {}
    tokens = result.tokens[result.logprob_rows].tolist()
    ids = sampled_ids[result.logprob_rows].tolist()
    return {
        request_id: (TokenLogprobs(token, logprob, top),)
        for request_id, token, (logprob, top) in zip(
            ids, tokens, _entries(result.logprobs), strict=True
        )
    }


Alternatives = tuple[tuple[int, float], ...]


def _entries(logprobs: Logprobs) -> Iterable[tuple[float, Alternatives]]:
    rows = zip(logprobs.top_ids.tolist(), logprobs.top_values.tolist(), strict=True)
    tops = (tuple(zip(ids, values, strict=True)) for ids, values in rows)
    return zip(logprobs.chosen.tolist(), tops, strict=True)


def _trimmed(logprobs: tuple[TokenLogprobs, ...], wanted: int | None) -> tuple[TokenLogprobs, ...]:
    """Cut to the number of alternatives that this request asked for; a step computes the maximum
    over its rows."""
    return tuple(
        TokenLogprobs(entry.token, entry.logprob, entry.top[:wanted]) for entry in logprobs
    )
