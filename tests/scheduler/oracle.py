"""A model of the scheduler in plain Python: what it must decide, not how.

It keeps lists and dicts, recomputes who holds what whenever it asks, compares prefixes token by
token instead of by digest, and looks at every waiting request and every block. It knows no block
ids and no memory: a block is an object with the prefix it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenspeed.scheduler import SchedulerConfig

STOP, LENGTH, DEADLINE = 1, 2, 3
Prefix = tuple[bytes, tuple[int, ...]]  # salt, and all tokens up to the end of a block


class Row(NamedTuple):
    """What one row of a Step says, but for the slot."""

    request_id: int
    query_len: int
    context_len: int
    sample: bool
    admitted: bool
    cached_len: int
    first: bool
    tokens: tuple[int, ...]


@dataclass(eq=False)
class Block:
    """`prefix` while it can be found; `fence` is the last step that may touch it."""

    prefix: Prefix | None = None
    fence: int = 0
    given_up: int = 0  # when its last holder left, in ticks
    rested: int | None = None  # when it became evictable, in ticks


@dataclass(eq=False)
class Life:
    """One request. `blocks` is None while it holds nothing."""

    request_id: int
    rank: tuple[float, int]
    prompt_len: int
    tokens: list[int]
    max_tokens: int
    min_tokens: int
    stops: frozenset[int]
    salt: bytes
    reads_cache: bool
    blocks: list[Block] | None = None
    scheduled: int = 0
    pending: int = 0  # samples in flight
    unsure: int = 0  # drafts in flight
    last_step: int = 0
    era: int = 0  # resets of the cache before its admission
    offered: int = 0  # leading blocks that were offered to the cache
    seen: bool = False  # admitted before
    decoding: bool = False  # sampled since it was admitted
    wait_left: float = math.inf  # seconds
    queued: float | None = None  # since when it waits

    @property
    def total(self) -> int:
        return len(self.tokens) + self.pending + self.unsure

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def done(self) -> bool:
        """Nothing is left to schedule; results may be in flight."""
        if self.max_tokens == 0:
            return self.scheduled == self.prompt_len
        return self.generated + self.pending == self.max_tokens


@dataclass
class ModelScheduler:
    """Calls as on Scheduler; `step` returns rows, `commit` (request, token, finish) triples."""

    config: SchedulerConfig
    ageing_s: float = 30.0
    lives: list[Life] = field(default_factory=list)
    cached: list[Block] = field(default_factory=list)  # every block that can be found
    fenced: list[Block] = field(default_factory=list)  # no holder, but a step may touch it
    slots_fenced: list[int] = field(default_factory=list)
    flights: list[list[tuple[Life, bool, int]]] = field(default_factory=list)
    last_step: int = 0
    committed: int = 0
    arrivals: int = 0
    ticks: int = 0
    era: int = 0
    preemptions: int = 0
    starved: int = 0  # steps beside decodes whose first prompt in line got nothing
    full: int = 0  # steps beside decodes in a row that prompts filled
    now: float = 0.0
    ended: list[tuple[int, int, int]] = field(default_factory=list)

    def submit(
        self,
        request_id: int,
        prompt: list[int],
        max_tokens: int,
        min_tokens: int,
        stops: frozenset[int],
        priority: int,
        salt: bytes,
        reads_cache: bool,
        max_wait_s: float,
        now: float,
    ) -> str:
        config = self.config
        if any(life.request_id == request_id for life in self.lives):
            return "DUPLICATE"
        if not prompt:
            return "EMPTY"
        if len(prompt) + max_tokens > config.max_model_len:
            return "TOO_LONG"
        computed = len(prompt) + max(0, max_tokens - 1)
        if math.ceil(computed / config.block_size) > config.num_blocks - 1:
            return "NEVER_FITS"
        if not config.chunked_prefill and len(prompt) > config.max_step_tokens:
            return "EXCEEDS_STEP"
        if len(self.lives) >= config.max_running + config.max_waiting:
            return "QUEUE_FULL"
        self.arrivals += 1
        life = Life(
            request_id=request_id,
            rank=(0.0, self.arrivals),
            prompt_len=len(prompt),
            tokens=list(prompt),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stops=stops,
            salt=salt,
            reads_cache=reads_cache,
            wait_left=max_wait_s,
            queued=now,
        )
        found = len(self._find(life, len(prompt))) * config.block_size
        lead = config.cache_lead_s * found / len(prompt)
        life.rank = (now - priority * self.ageing_s - lead, self.arrivals)
        self.lives.append(life)
        self.lives.sort(key=lambda life: life.rank)
        return "ACCEPTED"

    def abort(self, request_id: int) -> bool:
        for life in self.lives:
            if life.request_id == request_id:
                self._end(life)
                return True
        return False

    def reset_prefix_cache(self) -> int:
        forgotten = len(self.cached)
        for block in self.cached:
            block.prefix = None
        self.cached.clear()
        self.era += 1
        return forgotten

    # ---- Step -------------------------------------------------------------------------------

    def step(self, now: float) -> list[Row] | None:
        self.now = now
        self._expire()
        step_id = self.last_step + 1
        rows: list[tuple[Life, Row]] = []
        alone = self.starved >= self.config.patience_steps
        budget, decodes, short = self.config.max_step_tokens, 0, False
        if not alone:
            budget, decodes, short = self._decode(rows, step_id)
        beside = len(rows)
        denied = self._prefill(rows, budget, short, step_id)
        self.starved = self.starved + 1 if denied and beside else 0
        if beside:
            filled = sum(row.query_len for _, row in rows[beside:]) == budget
            filled = filled and (budget > 0 or denied)
            self.full = self.full + 1 if filled else 0
        if alone and not rows:
            _, decodes, _ = self._decode(rows, step_id)
        if not rows:
            return None
        self.last_step = step_id
        self.flights.append(
            [
                (life, row.sample, row.query_len if i < decodes else 1)
                for i, (life, row) in enumerate(rows)
            ]
        )
        return [row for _, row in rows]

    def _mixed_tokens(self) -> int:
        """Twice as many after every so many full steps, as long as that is allowed."""
        config = self.config
        tokens = config.max_mixed_tokens
        for _ in range(self.full // config.backlog_steps):
            tokens = min(2 * tokens, max(config.max_mixed_tokens, config.max_backlog_tokens))
        return tokens

    def _expire(self) -> None:
        waiting = [life for life in self.lives if life.queued is not None]
        overdue = [life for life in waiting if life.queued + life.wait_left <= self.now]
        for life in sorted(overdue, key=lambda life: (life.queued + life.wait_left, life.rank[1])):
            self.ended.append((life.request_id, -1, DEADLINE))
            self._end(life)

    def _decode(self, rows: list[tuple[Life, Row]], step_id: int) -> tuple[int, int, bool]:
        """(tokens that are left for prompts, rows of one token and its drafts, blocks were short).

        Behind those rows come the ones of who has several known tokens to compute.
        """
        short = False
        runs: list[Life] = []
        for life in list(self._running()):
            if life.blocks is None or life.done or not life.decoding:
                continue
            run = len(life.tokens) - life.scheduled
            width = run if run > 1 else self._width(life)
            got = width > 0
            while got and life.scheduled + width > len(life.blocks) * self.config.block_size:
                got, lacked = self._grow(life)
                short = short or lacked
            if got and run > 1:
                runs.append(life)
            elif got:
                rows.append((life, self._row(life, width, step_id)))
        decodes, budget = len(rows), self.config.max_step_tokens
        if rows or runs:
            taken = sum(row.query_len for _, row in rows)
            budget = min(budget - taken - len(runs), self._mixed_tokens()) + len(runs)
        for place, life in enumerate(runs, start=1):
            # One token of each of those behind it is set aside.
            chunk = min(len(life.tokens) - life.scheduled, budget - (len(runs) - place))
            chunk = 1 if self.starved else chunk  # the prompts got nothing of the last step
            rows.append((life, self._row(life, chunk, step_id)))
            budget -= chunk
        return budget, decodes, short

    def _width(self, life: Life) -> int:
        """Its own token and drafts: no more than it may get, and in blocks that nobody holds."""
        left = life.max_tokens - (life.total - life.prompt_len)
        columns = len(life.blocks) + self._available()
        room = max(1, columns * self.config.block_size - life.scheduled)
        return min(1 + self.config.max_draft_tokens, left, room)

    def _prefill(
        self, rows: list[tuple[Life, Row]], budget: int, short: bool, step_id: int
    ) -> bool:
        """Whether the first prompt in line found too little budget."""
        last = (math.inf, 0)
        begun = [life for life in self._running() if not life.done and not life.decoding]
        if not budget:
            return bool(begun) or (not short and self._first_in_line() is not None)
        for life in [*begun, None]:
            while not short and budget:
                admitted = self._admit(budget, step_id, life.rank if life else last)
                if admitted is None:
                    break
                if isinstance(admitted, str):
                    return True
                rows.append(admitted)
                budget -= admitted[1].query_len
            if life is None or not budget:
                return False
            chunk = self._chunk(len(life.tokens) - life.scheduled, budget)
            if not chunk:
                return True
            rows.append((life, self._row(life, chunk, step_id)))
            budget -= chunk
        return False

    def _grow(self, life: Life) -> tuple[bool, bool]:
        """(has room for one more token, blocks were lacking)."""
        assert life.blocks is not None
        lacked = False
        while self._available() == 0:
            lacked = True
            if self.fenced or any(other.done for other in self._running()):
                return False, True
            behind = [other for other in self._running() if other.rank > life.rank]
            if not behind:
                return False, True
            victim = max(behind, key=lambda other: (self._frees(other), other.rank))
            self.preemptions += 1
            self._release(victim)
            if not victim.pending:
                victim.queued = self.now
        life.blocks.append(self._take())
        return True, lacked

    def _frees(self, life: Life) -> bool:
        holders = [other for other in self._running() if life.blocks[-1] in other.blocks]
        return len(holders) == 1

    def _chunk(self, remaining: int, budget: int) -> int:
        if self.config.chunked_prefill or remaining > self.config.max_step_tokens:
            return min(remaining, budget)
        return remaining if remaining <= budget else 0

    def _admit(
        self, budget: int, step_id: int, before: tuple[float, int]
    ) -> tuple[Life, Row] | str | None:
        """None: it lacks a slot or blocks, or its rank is not `before`; "denied": tokens."""
        running = list(self._running())
        life = self._first_in_line()
        if life is None or life.rank > before:
            return None
        found = self._find(life, len(life.tokens) - 1)
        size = self.config.block_size
        tail, cached = self._find_tail(life, len(found) * size)
        chunk = self._chunk(len(life.tokens) - cached, budget)
        total = math.ceil(len(life.tokens) / size)
        free = self._available() - sum(block.rested is not None for block in found)
        needed = total - len(found) + len(running)
        if not chunk:
            return "denied"
        if tail is not None and needed > free - (tail.rested is not None):
            tail, cached = None, len(found) * size
            chunk = self._chunk(len(life.tokens) - cached, budget)
            if not chunk:
                return "denied"
        if needed > free:
            return None
        if life.queued is not None:
            life.wait_left -= self.now - life.queued
            life.queued = None
        for block in found:
            block.rested = None
            if block in self.fenced:
                self.fenced.remove(block)
        if tail is not None:  # its holder of this step
            self.ticks += 1
            tail.rested, tail.fence, tail.given_up = None, step_id, self.ticks
            if tail in self.fenced:
                self.fenced.remove(tail)
            self.fenced.append(tail)
        life.blocks = list(found)
        while len(life.blocks) < total:
            life.blocks.append(self._take())
        life.scheduled = cached
        life.era = self.era
        life.decoding = False
        first, life.seen = not life.seen, True
        row = self._row(life, chunk, step_id)
        return life, row._replace(admitted=True, cached_len=cached, first=first)

    def _first_in_line(self) -> Life | None:
        """Who waits and would have a slot."""
        queue = [life for life in self.lives if life.blocks is None and life.pending == 0]
        slots = len(list(self._running())) + len(self.slots_fenced)
        return queue[0] if queue and slots < self.config.max_running else None

    def _row(self, life: Life, count: int, step_id: int) -> Row:
        begin = life.scheduled
        known = life.tokens[begin : begin + count]
        tokens = (*known, *[-1] * (count - len(known)))
        life.scheduled += count
        life.last_step = step_id
        sample = life.scheduled >= life.total and life.max_tokens > 0
        life.pending += sample
        life.unsure += count - max(1, len(known))
        life.decoding = life.decoding or sample
        self._publish(life)
        return Row(life.request_id, count, begin, sample, False, 0, False, tokens)

    # ---- Commit -----------------------------------------------------------------------------

    def commit(
        self, tokens: list[int], counts: list[int], forced: list[int]
    ) -> list[tuple[int, int, int]]:
        self.committed += 1
        for block in sorted(self.fenced, key=lambda block: block.given_up):
            if block.fence <= self.committed:
                self.fenced.remove(block)
                self._rest(block)
        self.slots_fenced = [step for step in self.slots_fenced if step > self.committed]
        deltas: list[tuple[int, int, int]] = []
        left, left_counts = list(tokens), list(zip(counts, forced, strict=True))
        for life, sampled, width in self.flights.pop(0):
            count, given = left_counts.pop(0) if sampled else (0, 0)
            brought, left = left[:count], left[count:]
            if life not in self.lives:
                continue
            if sampled:
                self._accept(life, brought, given, width, deltas)
            elif life.max_tokens == 0 and life.done and life.last_step == self.committed:
                deltas.append((life.request_id, -1, LENGTH))
                self._end(life)
        return deltas

    def _accept(
        self,
        life: Life,
        brought: list[int],
        given: int,
        width: int,
        deltas: list[tuple[int, int, int]],
    ) -> None:
        life.pending -= 1
        if life.blocks is not None:
            life.unsure -= width - 1
            life.scheduled -= width - (len(brought) - given)
        if given:  # what is in flight brings nothing that is not known by now
            life.pending = 0
            for flight in self.flights:
                nobody = Life(-1, life.rank, 0, [], 0, 0, frozenset(), b"", False)
                flight[:] = [
                    (nobody if other is life and sampled else other, sampled, width)
                    for other, sampled, width in flight
                ]
        finish = 0
        for token in brought:
            life.tokens.append(token)
            if token in life.stops and life.generated >= life.min_tokens:
                finish = STOP
            elif life.generated == life.max_tokens:
                finish = LENGTH
            deltas.append((life.request_id, token, finish))
            if finish:
                break
        if life.blocks is not None:
            self._publish(life)
        if finish:
            self._end(life)
        elif life.blocks is None and not life.pending:
            life.queued = self.now

    # ---- Blocks -----------------------------------------------------------------------------

    def _running(self) -> Iterator[Life]:
        return (life for life in self.lives if life.blocks is not None)

    def _held(self) -> set[int]:
        return {id(block) for life in self._running() for block in life.blocks or ()}

    def _available(self) -> int:
        return self.config.num_blocks - 1 - len(self._held()) - len(self.fenced)

    def _take(self) -> Block:
        idle = [block for block in self.cached if block.rested is not None]
        if len(idle) == self._available():  # no free block is left
            self.cached.remove(min(idle, key=lambda block: block.rested or 0))
        return Block()

    def _find(self, life: Life, most: int) -> list[Block]:
        """The cached blocks of its first `most` tokens."""
        found: list[Block] = []
        size = self.config.block_size
        if not (life.reads_cache and self.config.prefix_cache):
            return found
        for end in range(size, most + 1, size):
            prefix = (life.salt, tuple(life.tokens[:end]))
            match = [block for block in self.cached if block.prefix == prefix]
            if not match:
                break
            found += match
        return found

    def _find_tail(self, life: Life, whole: int) -> tuple[Block | None, int]:
        """The longest tail behind `whole` cached tokens, and the tokens found with it."""
        least, size = self.config.min_tail_tokens, self.config.block_size
        if not (least and life.reads_cache and self.config.prefix_cache):
            return None, whole
        for end in range(min(len(life.tokens) - 1, whole + size - 1), whole + least - 1, -1):
            prefix = (life.salt, tuple(life.tokens[:end]))
            for block in self.cached:
                if block.prefix == prefix:
                    return block, end
        return None, whole

    def _publish_tail(self, life: Life) -> None:
        config = self.config
        if not config.min_tail_tokens or not config.prefix_cache or life.era != self.era:
            return
        end = min(life.scheduled - life.unsure, len(life.tokens))
        if end % config.block_size < config.min_tail_tokens:
            return
        assert life.blocks is not None
        block = life.blocks[end // config.block_size]
        prefix = (life.salt, tuple(life.tokens[:end]))
        for other in [other for other in self.cached if other.prefix == prefix]:
            other.prefix = other.rested = None
            self.cached.remove(other)
        block.prefix = prefix
        self.cached.append(block)

    def _publish(self, life: Life) -> None:
        if not self.config.prefix_cache or life.era != self.era:
            return
        size = self.config.block_size
        held = self._held()
        for i in range(min(life.scheduled, len(life.tokens)) // size):
            assert life.blocks is not None
            block = life.blocks[i]
            prefix = (life.salt, tuple(life.tokens[: (i + 1) * size]))
            others = [other for other in self.cached if other.prefix == prefix]
            # A held copy stays; a copy that nobody holds makes way for one that will live longer.
            if block in others or i < life.offered or (others and id(others[0]) in held):
                continue
            for other in others:
                other.prefix = other.rested = None
                self.cached.remove(other)
            block.prefix = prefix
            self.cached.append(block)
        life.offered = max(life.offered, min(life.scheduled, len(life.tokens)) // size)

    def _release(self, life: Life) -> None:
        blocks, life.blocks = life.blocks or [], None
        if life.last_step > self.committed:
            self.slots_fenced.append(life.last_step)
        life.offered = 0
        life.scheduled = life.unsure = 0
        held = self._held()
        for block in reversed(blocks):
            self.ticks += 1
            block.given_up = self.ticks
            block.fence = max(block.fence, life.last_step)
            if id(block) in held:
                continue
            if block.fence > self.committed:
                self.fenced.append(block)
            else:
                self._rest(block)

    def _rest(self, block: Block) -> None:
        self.ticks += 1
        if block.prefix is not None:
            block.rested = self.ticks

    def _end(self, life: Life) -> None:
        if life.blocks is not None:
            self._publish_tail(life)
            self._release(life)
        self.lives.remove(life)
