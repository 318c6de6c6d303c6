"""Closes the loop around a Scheduler: a client that submits and aborts, a device that runs the
steps (tests/scheduler/device.py), and a referee that audits after every call.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.scheduler.device import Device, Ints, Row, expected_output
from tokenspeed.scheduler import Scheduler, SchedulerConfig, Step, SubmitResult

STOP, LENGTH = 1, 2


def make_config(**changes: object) -> SchedulerConfig:
    """A small scheduler; every field can be changed."""
    fields: dict[str, object] = {
        "num_blocks": 33,
        "block_size": 4,
        "max_running": 4,
        "max_step_tokens": 16,
        "max_model_len": 64,
        "prefix_cache": True,
        "chunked_prefill": True,
        "in_flight_depth": 0,
        "digest_key": (1, 2),
    }
    return SchedulerConfig(**{**fields, **changes})  # type: ignore[arg-type]


@dataclass
class Life:
    """What the client knows of one request, from submission to its end."""

    prompt: Ints
    max_tokens: int
    salt: int
    reads_cache: bool
    expected: list[int]
    expected_finish: int
    output: list[int] = field(default_factory=list)
    admissions: int = 0
    cached: int | None = None  # as told with the first admission
    slot: int | None = None
    finish: int | None = None
    aborted: bool = False

    @property
    def known(self) -> list[int]:
        return [*self.prompt.tolist(), *self.output]


@dataclass
class Flight:
    """A step in flight."""

    step: Step
    rows: list[Row]
    copies: Ints


class Loop:
    """`turn` makes one step of the loop. Every promise of the scheduler is asserted on the way."""

    # Whether the first columns of a row are blocks of tokens without holes.
    judges_blocks = True

    def __init__(self, config: SchedulerConfig, forces: Callable[[], int] = lambda: 0) -> None:
        """`forces()`: how many tokens must follow a sampled one. They are those that would have
        been sampled, so the answers stay what they are."""
        self.config = config
        self.forces = forces
        self.scheduler = Scheduler(config)
        self.device = Device(config)
        self.now = 0.0
        self.live: dict[int, Life] = {}
        self.ended: list[Life] = []
        self.flights: deque[Flight] = deque()
        self.digests: list[int] = []

    def submit(
        self,
        request_id: int,
        prompt: list[int] | Ints,
        max_tokens: int,
        *,
        min_tokens: int = 0,
        stops: frozenset[int] = frozenset(),
        priority: int = 0,
        salt: bytes = b"",
        reads_cache: bool = True,
    ) -> SubmitResult:
        tokens = np.array(prompt, np.int32)
        result = self.scheduler.submit(
            request_id,
            tokens,
            max_tokens,
            np.array(sorted(stops), np.int32),
            min_tokens=min_tokens,
            priority=priority,
            salt=salt,
            read_prefix_cache=reads_cache,
            now=self.now,
        )
        if result is SubmitResult.ACCEPTED:
            assert request_id not in self.live
            expected, how = expected_output(tokens, max_tokens, min_tokens, stops)
            life = Life(tokens, max_tokens, zlib.crc32(salt), reads_cache, expected, how)
            self.live[request_id] = life
        self.scheduler.check()
        return result

    def abort(self, request_id: int) -> bool:
        known = self.scheduler.abort(request_id)
        assert known == (request_id in self.live)
        if known:
            life = self.live.pop(request_id)
            life.aborted = True
            self.ended.append(life)
        self.scheduler.check()
        return known

    def step(self) -> Step | None:
        self.now += 0.01
        step = self.scheduler.step(self.now)
        self.scheduler.check()
        if step is None:
            assert self.flights or not self.live, "live requests, nothing in flight, and no step"
            return None
        rows = self.device.receive(step, self.scheduler.block_tables, self._describe)
        self._judge(step, rows)
        self.flights.append(Flight(step, rows, step.copies.copy()))
        self.digests.append(step.digest)
        return step

    def commit(self) -> None:
        flight = self.flights.popleft()
        self.device.copy(flight.copies)
        sampled = self.device.run(flight.rows)
        counts, forced = self.device.counts, [self.forces() for _ in self.device.counts]
        if any(forced):
            sampled = self.device.foresee(flight.rows, sampled, forced)
            given = np.array(forced, np.int32)
            deltas = self.scheduler.commit(flight.step.id, sampled, counts + given, given)
        else:
            deltas = self.scheduler.commit(flight.step.id, sampled, counts)
        self.scheduler.check()
        for request_id, token, finish in zip(
            deltas.request_ids.tolist(),
            deltas.tokens.tolist(),
            deltas.finish.tolist(),
            strict=True,
        ):
            self._take(request_id, token, finish)

    def turn(self) -> bool:
        """One turn of a worker's loop. False: nothing was left to do."""
        step = self.step()
        if self.flights and (step is None or len(self.flights) > self.config.in_flight_depth):
            self.commit()
            return True
        return step is not None

    def drain_live(self) -> None:
        """Turns until every request ended."""
        while self.live:
            self.turn()

    def drain(self, limit: int = 20_000) -> None:
        """Turns until every request ended and checks that nothing is left behind."""
        for _ in range(limit):
            if not self.turn():
                break
        assert not self.live, f"{len(self.live)} requests did not end"
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert (stats.slots_used, stats.blocks_used) == (0, 0)
        assert stats.blocks_cached + stats.blocks_free == stats.blocks_total
        assert stats.finished + stats.aborted == len(self.ended)
        assert self.scheduler.reset_prefix_cache() == stats.blocks_cached
        self.scheduler.check()
        assert self.scheduler.stats().blocks_free == self.config.num_blocks - 1

    def _describe(self, request_id: int) -> tuple[list[int], int]:
        life = self.live[request_id]
        return life.known, life.salt

    def _take(self, request_id: int, token: int, finish: int) -> None:
        life = self.live[request_id]
        if token == -1:
            assert life.max_tokens == 0
        else:
            life.output.append(token)
        assert life.output == life.expected[: len(life.output)], f"request {request_id}"
        if len(life.output) < len(life.expected):
            assert finish == 0
            return
        assert finish == life.expected_finish
        life.finish = finish
        self.ended.append(self.live.pop(request_id))

    def _judge(self, step: Step, rows: list[Row]) -> None:
        assert step.num_tokens <= self.config.max_step_tokens
        assert step.num_rows == len({row.slot for row in rows}) <= self.config.max_running
        assert step.num_samples == int(step.samples.sum())
        block_size = self.config.block_size
        for i, row in enumerate(rows):
            life = self.live[row.request_id]
            if i < step.num_decode_rows:
                assert len(row.tokens) <= 1 + self.config.max_draft_tokens
                assert row.samples and not row.admitted
            if row.tokens[0] != -1:
                tokens = row.tokens[row.tokens >= 0].tolist()
                end = row.context_len + len(tokens)
                assert tokens == row.known[row.context_len : end]
                assert len(row.tokens) == len(tokens) or i < step.num_decode_rows
            else:
                assert self.config.in_flight_depth == 1 and not row.admitted
            room = len(life.prompt) + life.max_tokens
            assert row.context_len + len(row.tokens) <= room, "a draft past the last token"
            self._judge_admission(step, i, row, life)
            for flight in self.flights if self.judges_blocks else ():
                for other in flight.rows:
                    if other.slot == row.slot and not row.admitted:
                        continue  # the same request
                    clash = row.written(block_size) & other.touched(block_size)
                    assert not clash, f"blocks {clash} are written while a step may use them"
                    assert other.slot != row.slot, "a slot is reused while a step may use it"

    def _judge_admission(self, step: Step, i: int, row: Row, life: Life) -> None:
        first, cached = bool(step.first[i]), int(step.cached_lens[i])
        if not row.admitted:
            assert life.slot == row.slot and not first and cached == 0
            return
        assert first == (life.admissions == 0)
        life.admissions += 1
        life.slot = row.slot
        if first:
            life.cached = cached
        block_size = self.config.block_size
        assert cached == row.context_len and cached < len(row.known)
        tail = cached % block_size
        assert tail == 0 or tail >= self.config.min_tail_tokens > 0
        assert cached == 0 or (life.reads_cache and self.config.prefix_cache)
