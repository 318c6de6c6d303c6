"""Several ranks, of which one has a scheduler: the others see its Steps as bytes, and nothing else.

No worker has more than one rank yet. What a second one will rest on holds today: a Step says all
that a rank must do, whatever the scheduler knew when it decided.
"""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from tests.scheduler.device import VOCAB, Ints, next_token
from tests.scheduler.engine import Chaos, Engine, Life, Longs, Row, Transfer, new_life
from tests.scheduler.pair import config_for
from tests.scheduler.test_tiers import FULL, random_request
from tokenspeed.scheduler import SchedulerConfig, Step, Tier


def message_of(step: Step, tables: Ints) -> bytes:
    """A Step for those who share no memory with the scheduler."""
    names = ("slots", "query_lens", "context_lens", "samples", "tokens", "copies")
    arrays = {name: getattr(step, name).copy() for name in names}
    cells = [(slot, begin, tables[slot, begin:end].copy()) for slot, begin, end in step.dirty]
    return pickle.dumps((step.id, arrays, cells))


class Follower:
    """A rank without a scheduler. A cell holds the token written there; what a row reads there is
    all that its next token depends on."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = config.block_size
        self.memory = {
            Tier.DEVICE: np.full((config.num_blocks, config.block_size), -1, np.int32),
            Tier.HOST: np.full((config.num_host_blocks, config.block_size), -1, np.int32),
        }
        self.tables = np.zeros((config.max_running, sum(config.row_lengths)), np.int32)
        self.last = np.zeros(config.max_running, np.int32)
        self.read: dict[int, Ints] = {}  # by ticket
        self.followed: list[int] = []

    def follow(self, message: bytes) -> Ints:
        """Takes part in the step, which no condition of its own may keep it from."""
        step_id, step, cells = pickle.loads(message)
        self.followed.append(step_id)
        for slot, begin, values in cells:
            self.tables[slot, begin : begin + len(values)] = values
        device = self.memory[Tier.DEVICE]
        for source, destination, count in step["copies"].tolist():
            device[destination, :count] = device[source, :count].copy()
        ends = np.cumsum(step["query_lens"])
        rows = list(zip(step["slots"], step["context_lens"], step["query_lens"], ends, strict=True))
        for slot, context, length, end in rows:
            given = step["tokens"][end - length : end]
            where = self._places(slot, context, context + length)
            device.reshape(-1)[where] = np.where(given < 0, self.last[slot], given)
        sampled = []
        for (slot, context, length, _), samples in zip(rows, step["samples"], strict=True):
            if samples:
                history = device.reshape(-1)[self._places(slot, 0, context + length)]
                self.last[slot] = next_token(history)
                sampled.append(self.last[slot])
        return np.array(sampled, np.int32)

    def _places(self, slot: int, begin: int, end: int) -> Ints:
        positions = np.arange(begin, end)
        blocks = self.tables[slot, positions // self.block_size]
        return np.asarray(blocks * self.block_size + positions % self.block_size, np.int32)


class Leader(Engine):
    """The rank with the scheduler. What its mover does, the movers of the others do."""

    def __init__(self, config: SchedulerConfig, rng: random.Random, depth: int, ranks: int) -> None:
        super().__init__(config, (FULL,), rng, Chaos(), depth)
        self.followers = [Follower(config) for _ in range(ranks - 1)]
        self.messages: dict[int, bytes] = {}
        self.empty = 0

    def step(self) -> Step | None:
        step = super().step()
        if step is not None:
            self.messages[step.id] = message_of(step, self.scheduler.block_tables)
            self.empty += step.num_rows == 0
        return step

    def commit(self) -> None:
        flight = self.flights[0]
        # What the step's own transfers read is read before its rows run, on every rank.
        for follower in self.followers:
            for transfer in flight.ordered:
                self._read_there(follower, transfer)
        made = [follower.follow(self.messages[flight.step.id]) for follower in self.followers]
        super().commit()
        assert all(np.array_equal(tokens, self.sampled) for tokens in made)

    def _run(self, rows: list[Row]) -> Ints:
        self.sampled = super()._run(rows)
        return self.sampled

    def _read(self, transfer: Transfer) -> None:
        super()._read(transfer)
        for follower in self.followers:
            if transfer.ticket not in follower.read:
                self._read_there(follower, transfer)

    def _read_there(self, follower: Follower, transfer: Transfer) -> None:
        follower.read[transfer.ticket] = follower.memory[transfer.source][transfer.moves[:, 2]]

    def _write(
        self, transfer: Transfer, block: int, digest: tuple[int, int], data: Longs, good: bool
    ) -> None:
        super()._write(transfer, block, digest, data, good)
        which = transfer.moves[:, 3].tolist().index(block)
        for follower in self.followers:
            follower.memory[transfer.destination][block] = follower.read[transfer.ticket][which]


def play(depth: int, seed: int) -> Leader:
    rng = random.Random(f"ranks {depth} {seed}")
    config = config_for(
        "fused", groups=(FULL,), num_blocks=20, num_host_blocks=40, max_running=6,
        max_step_tokens=16, in_flight_depth=depth, min_tail_tokens=1,
    )  # fmt: skip
    leader = Leader(config, rng, depth, ranks=3)
    families = [[rng.randrange(VOCAB) for _ in range(44)] for _ in range(3)]
    lives: list[Life] = []
    for turn in range(300):
        if rng.random() < 0.4 and len(leader.live) < 10:
            prompt, max_tokens, stops, salt = random_request(rng, families, 44)
            ended = [life for life in lives if life.finish and not life.salt]
            history = ended[-1].history(64) if ended else []
            if history and len(history) < 44 and rng.random() < 0.5:  # the next turn of an agent
                prompt, max_tokens, salt = [*history, 1, 2], 4, b""
            lives.append(new_life(prompt, max_tokens, stops, salt))
            leader.submit(turn, lives[-1], stops=stops, salt=salt)
        if leader.live and rng.random() < 0.03:
            leader.abort(rng.choice(sorted(leader.live)))
        leader.turn()
    leader.settle()
    return leader


@pytest.mark.parametrize("depth", [0, 1])
def test_ranks_that_see_only_steps_compute_the_same(depth: int) -> None:
    """Every step is compared on the way."""
    leaders = [play(depth, seed) for seed in range(3)]
    for leader in leaders:
        steps = sorted(leader.messages)
        assert all(follower.followed == steps for follower in leader.followers)
        # Steps without rows, prompts computed again and transfers did occur; here and there copies.
        assert leader.empty and leader.scheduler.stats().preemptions and leader.log
    assert sum(leader.copied for leader in leaders)
