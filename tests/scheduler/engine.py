"""An engine around a Scheduler, down to the bytes: device, host, disk and remote are numpy buffers,
and a mover carries out the transfers of every step late, out of order, badly or not at all.

Every cell of memory says which token of which history of which cache group was written there. Every
row reads back what its groups read and must find its own history, so a block that was reused,
shared, published, copied or handed over wrongly shows as a wrong read.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.scheduler.device import Ints, expected_output, next_token
from tokenspeed.scheduler import (
    Deltas,
    Guard,
    PeerDelivered,
    PeerGone,
    PeerProgress,
    PeerReady,
    Scheduler,
    SchedulerConfig,
    Step,
    SubmitResult,
    Tier,
    TransferDone,
    TransferLost,
    Word,
)

Longs = NDArray[np.uint64]
Groups = tuple[tuple[str, int], ...]
Report = TransferDone | TransferLost | PeerReady | PeerProgress | PeerDelivered | PeerGone
STOP, LENGTH, HANDED_OVER, PEER_FAILED, NO_ROOM = 1, 2, 4, 5, 6
GARBAGE = 0xDEAD


@dataclass(frozen=True)
class Chaos:
    """How often things go wrong. `fail`: of the blocks of a transfer; `lose`: of transfers."""

    fail: float = 0.0
    lose: float = 0.0


@dataclass(eq=False)
class Life:
    """A request as its client sees it, over all engines that work on it."""

    prompt: Ints
    max_tokens: int
    salt: int
    expected: list[int]
    expected_finish: int
    output: list[int] = field(default_factory=list)
    finish: int | None = None
    chain: list[int] = field(default_factory=list)

    def history(self, length: int) -> list[int]:
        """The first tokens that it must have, told before the engine knows them all."""
        return [*self.prompt.tolist(), *self.expected][:length]

    def cells(self, length: int) -> Longs:
        """What the first `length` tokens leave in memory, but for the group."""
        tokens = self.history(length)
        while len(self.chain) < length:
            state = self.chain[-1] if self.chain else self.salt
            token = tokens[len(self.chain)]
            self.chain.append(zlib.crc32(token.to_bytes(4, "little"), state))
        chain = np.array(self.chain[:length], np.uint64)
        return (chain << np.uint64(32)) + (np.array(tokens, np.uint64) << np.uint64(8))


def new_life(
    prompt: list[int], max_tokens: int, stops: frozenset[int] = frozenset(), salt: bytes = b""
) -> Life:
    tokens = np.array(prompt, np.int32)
    expected, how = expected_output(tokens, max_tokens, 0, stops)
    return Life(tokens, max_tokens, zlib.crc32(salt), expected, how)


@dataclass(eq=False)
class Transfer:
    """One transfer as the mover got it. `read` is what it has read and not yet written."""

    ticket: int
    source: Tier
    destination: Tier
    guard: Guard
    word: Word
    peer: int
    after: int
    token: int
    prefix_len: int
    prompt_len: int
    layers: int
    moves: Ints
    digests: list[tuple[int, int]]
    read: list[Longs | None] | None = None
    moved: bool = False
    lost: bool = False
    results: list[int] = field(default_factory=list)


@dataclass
class Row:
    life: Life
    slot: int
    context_len: int
    query_len: int
    tokens: Ints
    table: Ints
    samples: bool


@dataclass
class Flight:
    step: Step
    rows: list[Row]
    ordered: list[Transfer]
    copies: Ints


def transfers_of(step: Step) -> list[Transfer]:
    """Copies: the arrays of a step may be gone when the mover gets to work."""
    t = step.transfers
    found = []
    for i in range(len(t)):
        begin, end = int(t.begins[i]), int(t.begins[i + 1])
        found.append(
            Transfer(
                ticket=int(t.tickets[i]),
                source=Tier(t.sources[i]),
                destination=Tier(t.destinations[i]),
                guard=Guard(t.guards[i]),
                word=Word(t.words[i]),
                peer=int(t.peers[i]),
                after=int(t.after[i]),
                token=int(t.tokens[i]),
                prefix_len=int(t.prefix_lens[i]),
                prompt_len=int(t.prompt_lens[i]),
                layers=int(t.layers[i]),
                moves=t.moves[begin:end].copy(),
                digests=[(int(low), int(high)) for low, high in t.digests[begin:end]],
            )
        )
    return found


class Memory:
    """The tiers of one engine. `stores` outlive resets of everything else, as real ones do."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.device = np.zeros((config.num_blocks, config.block_size), np.uint64)
        self.host = np.zeros((max(1, config.num_host_blocks), config.block_size), np.uint64)
        self.stores: dict[Tier, dict[tuple[int, int], Longs]] = {Tier.DISK: {}, Tier.REMOTE: {}}

    def buffer(self, tier: Tier) -> Longs:
        return self.device if tier == Tier.DEVICE else self.host


class Engine:
    """Calls a scheduler as a worker would, with every promise of it asserted on the way."""

    def __init__(
        self,
        config: SchedulerConfig,
        groups: Groups,
        rng: random.Random,
        chaos: Chaos | None = None,
        depth: int = 0,
        role: str = "fused",
    ) -> None:
        self.config, self.groups, self.rng, self.depth = config, groups, rng, depth
        self.role = role
        self.chaos = chaos or Chaos()
        self.scheduler = Scheduler(config)
        self.memory = Memory(config)
        self.begins = np.cumsum([0, *config.row_lengths])
        self.tables = np.zeros((config.max_running, sum(config.row_lengths)), np.int32)
        self.now = 0.0
        self.ran = 0  # the last step that has run
        self.live: dict[int, Life] = {}
        self.accepted = self.ended = 0
        self.flights: deque[Flight] = deque()
        self.pending: list[Transfer] = []  # begun, or not yet, and not acknowledged
        self.mail: list[tuple[int, Report]] = []  # (peer or 0, report), to be delivered
        self.digests: list[int] = []
        self.log: list[Transfer] = []
        self.copied = 0  # blocks

    # ---- Calls -----------------------------------------------------------------------------

    def submit(
        self,
        request_id: int,
        life: Life,
        *,
        stops: frozenset[int] = frozenset(),
        salt: bytes = b"",
        peer: int = 0,
    ) -> SubmitResult:
        result = self.scheduler.submit(
            request_id,
            life.prompt,
            life.max_tokens,
            np.array(sorted(stops), np.int32),
            salt=salt,
            peer=peer,
            now=self.now,
        )
        if result is SubmitResult.ACCEPTED:
            self.live[request_id] = life
            self.accepted += 1
        self.scheduler.check()
        return result

    def abort(self, request_id: int) -> None:
        assert self.scheduler.abort(request_id) == (request_id in self.live)
        self.scheduler.check()
        if self.live.pop(request_id, None) is not None:
            self.ended += 1

    def step(self) -> Step | None:
        self.now += 0.01
        step = self.scheduler.step(self.now)
        self.scheduler.check()
        self.take(self.scheduler.take_ended())
        if step is None:
            return None
        self.digests.append(step.digest)
        self.copied += len(step.copies)
        for slot, begin, end in step.dirty.tolist():
            self.tables[slot, begin:end] = self.scheduler.block_tables[slot, begin:end]
        assert np.array_equal(self.tables, self.scheduler.block_tables)
        transfers = transfers_of(step)
        ordered = [t for t in transfers if t.guard == Guard.ORDERED]
        self.flights.append(Flight(step, self._rows(step), ordered, step.copies.copy()))
        self.pending += transfers
        self.log += transfers
        for transfer in transfers:
            if self.rng.random() < self.chaos.lose:
                transfer.lost = True
                if self.rng.random() < 0.5:  # said at once; otherwise found out by the clock
                    self.apply([TransferLost(transfer.ticket)])
        return step

    def commit(self) -> None:
        """Runs the oldest step in flight and commits it."""
        flight = self.flights.popleft()
        for transfer in flight.ordered:
            self._read(transfer)
        for source, destination, count in flight.copies.tolist():
            kept = self.memory.device[source, :count].copy()
            self.memory.device[destination] = GARBAGE
            self.memory.device[destination, :count] = kept
        sampled = self._run(flight.rows)
        self.ran = flight.step.id
        deltas = self.scheduler.commit(flight.step.id, sampled)
        self.scheduler.check()
        self.take(deltas)

    def apply(self, reports: list[Report]) -> None:
        deltas = self.scheduler.apply(reports, self.now)
        self.scheduler.check()
        self.take(deltas)

    def take(self, deltas: Deltas) -> None:
        for request_id, token, finish in zip(
            deltas.request_ids.tolist(),
            deltas.tokens.tolist(),
            deltas.finish.tolist(),
            strict=True,
        ):
            life = self.live[request_id]
            self.take_one(life, token, finish)
            if finish != 0:
                del self.live[request_id]
                self.ended += 1

    def take_one(self, life: Life, token: int, finish: int) -> None:
        if token >= 0:
            life.output.append(token)
        assert life.output == life.expected[: len(life.output)]
        complete = len(life.output) == len(life.expected)
        if finish in (STOP, LENGTH):
            assert complete and finish == life.expected_finish
        elif finish == HANDED_OVER:
            assert len(life.output) == 1
        else:
            assert finish in (0, PEER_FAILED, NO_ROOM)
            assert finish != 0 or not complete or self.role == "prefill"
        if finish != 0:
            life.finish = finish

    # ---- Turns -----------------------------------------------------------------------------

    def turn(self) -> None:
        """Some transfers move, some reports are delivered, a step is made or committed."""
        self.move(0.5)
        self.deliver(0.5)
        full = len(self.flights) > self.depth
        made = None if full else self.step()
        if self.flights and (made is None or full or self.rng.random() < 0.5):
            self.commit()

    def deliver(self, share: float) -> None:
        """Some of the mail, in any order; of one peer one report a time, and those in order."""
        batch: list[Report] = []
        later: list[tuple[int, Report]] = []
        peers: set[int] = set()
        for peer, report in self.mail:
            if peer in peers or self.rng.random() >= share:
                later.append((peer, report))
            else:
                batch.append(report)
            if peer:
                peers.add(peer)
        self.mail = later
        self.rng.shuffle(batch)
        if batch:
            self.apply(batch)

    def move(self, share: float) -> None:
        """Carries out some of the transfers that may begin, in any order."""
        self.rng.shuffle(self.pending)
        for transfer in list(self.pending):
            if transfer.after > self.ran or self.rng.random() >= share:
                continue
            if transfer.guard == Guard.ORDERED and transfer.read is None:
                continue  # its step has not run
            if transfer.read is None and self.rng.random() < 0.5:
                self._read(transfer)  # and writes later
                continue
            if not transfer.moved:
                self._move(transfer)
            if transfer.lost and self.rng.random() < 0.9:
                transfer.moved = self.rng.random() < 0.5  # nobody knows: it may write again
                continue
            self.pending.remove(transfer)
            self.acknowledge(transfer)

    def acknowledge(self, transfer: Transfer) -> None:
        results = np.array(transfer.results, np.uint8)
        self.mail.append((0, TransferDone(transfer.ticket, results)))

    def quiesce(self) -> None:
        """Everything that can still happen does."""
        quiet = 0
        for turn in range(20_000):
            busy = self.live or self.flights or self.pending or self.mail
            quiet = 0 if busy else quiet + 1
            if quiet == 20:  # nor does anything follow that nobody must have
                break
            for transfer in self.pending:
                transfer.lost = False  # it is found
            if turn % 50 == 49:
                self.now += 1000.0  # and what waits for a peer that is gone waits no longer
            self.turn()
        assert not self.live, f"{len(self.live)} requests did not end"
        assert quiet == 20

    def settle(self) -> None:
        """Everything that can still happen does, and nothing is left of anybody."""
        self.quiesce()
        self.audit_end()

    def audit_end(self) -> None:
        stats = self.scheduler.stats()
        assert self.accepted == self.ended
        assert stats.finished + stats.aborted + stats.failed + stats.expired == self.accepted
        assert (stats.running, stats.waiting, stats.peers) == (0, 0, 0)
        assert (stats.transfers_in_flight, stats.transfers_lost) == (0, 0)
        assert (stats.blocks_used, stats.blocks_quarantined, stats.slots_used) == (0, 0, 0)
        assert (stats.host_blocks_used, stats.host_blocks_quarantined) == (0, 0)
        cached = stats.blocks_cached + stats.host_blocks_cached
        assert self.scheduler.reset_prefix_cache() == cached
        self.scheduler.check()
        stats = self.scheduler.stats()
        assert stats.blocks_free == stats.blocks_total
        assert stats.host_blocks_free == stats.host_blocks_total

    # ---- The mover -------------------------------------------------------------------------

    def _read(self, transfer: Transfer) -> None:
        if transfer.source in (Tier.DEVICE, Tier.HOST):
            blocks = self.memory.buffer(transfer.source)
            transfer.read = [blocks[move[2]].copy() for move in transfer.moves]
        elif transfer.source in (Tier.DISK, Tier.REMOTE):
            store = self.memory.stores[transfer.source]
            transfer.read = [store.get(digest) for digest in transfer.digests]
        else:
            transfer.read = [None for _ in transfer.moves]

    def _move(self, transfer: Transfer) -> None:
        if transfer.read is None:
            self._read(transfer)
        assert transfer.read is not None
        transfer.moved = True
        transfer.results = []
        if transfer.source == Tier.PEER:  # a manifest is heard as a whole, or not at all
            heard = int(self.rng.random() >= self.chaos.fail)
            transfer.results = [heard] * len(transfer.moves)
        for move, digest, data in zip(transfer.moves, transfer.digests, transfer.read, strict=True):
            if transfer.source == Tier.PEER:
                break
            good = data is not None and self.rng.random() >= self.chaos.fail
            if transfer.destination == Tier.NONE:
                good = data is not None
            elif not good and data is not None:
                data = np.full_like(data, GARBAGE)  # what failed may have written anything
            if data is not None:
                self._write(transfer, int(move[3]), digest, data, good)
            transfer.results.append(int(good))
        self.moved(transfer)

    def _write(
        self, transfer: Transfer, block: int, digest: tuple[int, int], data: Longs, good: bool
    ) -> None:
        if transfer.destination in (Tier.DEVICE, Tier.HOST):
            assert block > 0
            self.memory.buffer(transfer.destination)[block] = data
        elif transfer.destination in (Tier.DISK, Tier.REMOTE) and good:
            self.memory.stores[transfer.destination][digest] = data.copy()

    def moved(self, transfer: Transfer) -> None:
        """What a transfer with a peer does on the other side."""

    # ---- The device ------------------------------------------------------------------------

    def _rows(self, step: Step) -> list[Row]:
        rows, at = [], 0
        for i in range(step.num_rows):
            query_len, slot = int(step.query_lens[i]), int(step.slots[i])
            rows.append(
                Row(
                    life=self.live[int(step.request_ids[i])],
                    slot=slot,
                    context_len=int(step.context_lens[i]),
                    query_len=query_len,
                    tokens=step.tokens[at : at + query_len].copy(),
                    table=self.tables[slot].copy(),
                    samples=bool(step.samples[i]),
                )
            )
            at += query_len
        return rows

    def _run(self, rows: list[Row]) -> Ints:
        """States are read before any is written; all else is written before anything is read."""
        device = self.memory.device
        for row in rows:
            end = row.context_len + row.query_len
            known = row.life.history(end)[row.context_len :]
            for token, true in zip(row.tokens.tolist(), known, strict=True):
                assert token in (-1, true), "a row is fed a token that is not its own"
            for g, (kind, _) in enumerate(self.groups):
                if kind != "state" or row.context_len == 0:
                    continue
                state = row.life.cells(row.context_len)[-1] + np.uint64(g)
                assert device[self._entry(row, g, 0), 0] == state, "a foreign state"
        for row in rows:
            cells = row.life.cells(row.context_len + row.query_len)
            for g, (kind, _) in enumerate(self.groups):
                if kind == "state":
                    device[self._entry(row, g, 1), 0] = cells[-1] + np.uint64(g)
                else:
                    blocks, at = self._places(row, g, row.context_len, len(cells))
                    device[blocks, at] = cells[row.context_len :] + np.uint64(g)
        sampled = []
        for row in rows:
            end = row.context_len + row.query_len
            cells = row.life.cells(end)
            for g, (kind, window) in enumerate(self.groups):
                if kind == "state":
                    continue
                begin = max(0, row.context_len - window + 1) if kind == "window" else 0
                blocks, at = self._places(row, g, begin, end)
                assert np.array_equal(device[blocks, at], cells[begin:] + np.uint64(g)), (
                    "a row reads what is not its own"
                )
            if row.samples:
                sampled.append(next_token(np.array(row.life.history(end), np.int32)))
        return np.array(sampled, np.int32)

    def _entry(self, row: Row, group: int, column: int) -> int:
        block = int(row.table[self.begins[group] + column])
        assert block > 0, "a row uses the null block"
        return block

    def _places(self, row: Row, group: int, begin: int, end: int) -> tuple[Ints, Ints]:
        positions = np.arange(begin, end)
        blocks = row.table[self.begins[group] + positions // self.config.block_size]
        assert (blocks > 0).all(), "a row uses the null block"
        return blocks, positions % self.config.block_size
