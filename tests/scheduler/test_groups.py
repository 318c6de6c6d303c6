"""Cache groups: full attention, sliding windows, recurrent states, several in one pool of blocks.

The device keeps one memory for all groups and checks every read, so a window that slid too far, a
state read from the wrong block or a block shared across groups shows as a wrong read.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.scheduler.device import VOCAB, Device, Ints, Row
from tests.scheduler.driver import Loop, make_config
from tokenspeed.scheduler import SchedulerConfig, SubmitResult

Longs = NDArray[np.int64]
Groups = tuple[tuple[str, int], ...]
P = 4
FULL, WINDOW, STATE = ("full", 0), ("window", 6), ("state", 0)


class GroupDevice(Device):
    """Every group writes all its query tokens, then reads what its kind of layer reads."""

    def __init__(self, config: SchedulerConfig, groups: Groups) -> None:
        super().__init__(config)
        self.groups = groups
        self.tables = np.zeros((config.max_running, sum(config.row_lengths)), np.int32)
        self.begins = np.cumsum([0, *config.row_lengths])
        self.owner = np.full(config.num_blocks * config.block_size, -1)  # group that wrote last
        self.memories.append(self.owner)
        self.states: dict[int, int] = {}  # block: digest of the history it holds

    def run(self, rows: list[Row]) -> Ints:
        texts = [self._text(row) for row in rows]
        chains = [
            self._chain(text, row.salt).astype(np.int64)
            for text, row in zip(texts, rows, strict=True)
        ]
        begins = [len(text) - len(row.tokens) for text, row in zip(texts, rows, strict=True)]
        # States are read before any row of the step writes one: rows do not wait for each other.
        for row, chain, begin in zip(rows, chains, begins, strict=True):
            for group in self._of("state"):
                self._read_state(row, chain, begin, group)
        for row, text, chain, begin in zip(rows, texts, chains, begins, strict=True):
            for group in (*self._of("full"), *self._of("window")):
                where = self._where(row, group, np.arange(begin, len(text)))
                self.tokens[where] = text[begin:]
                self.chains[where] = chain[begin:]
                self.owner[where] = group
        for row, text, chain, begin in zip(rows, texts, chains, begins, strict=True):
            for group in (*self._of("full"), *self._of("window")):
                kind, window = self.groups[group]
                first = max(0, begin - window + 1) if kind == "window" else 0
                where = self._where(row, group, np.arange(first, len(text)))
                assert self.tokens[where].tolist() == text[first:]
                assert np.array_equal(self.chains[where], chain[first:])
                assert (self.owner[where] == group).all(), "a block of another group"
        sampled = self._sample(rows, texts)
        for row, chain, begin in zip(rows, chains, begins, strict=True):
            # The state after the last token that stood: what was drawn is not computed yet.
            stood = min(len(self.histories[row.slot]) - int(row.samples), len(chain))
            assert begin < stood
            for group in self._of("state"):
                self.states[self._entry(row, group, 1)] = (int(chain[stood - 1]) << 3) + group
        return sampled

    def _of(self, kind: str) -> list[int]:
        return [i for i, group in enumerate(self.groups) if group[0] == kind]

    def _entry(self, row: Row, group: int, column: int) -> int:
        return int(row.blocks[self.begins[group] + column])

    def _where(self, row: Row, group: int, positions: Longs) -> Longs:
        columns = self.begins[group] + positions // self.block_size
        blocks: Longs = row.blocks[columns].astype(np.int64)
        assert (blocks > 0).all(), "a row uses the null block"
        return blocks * self.block_size + positions % self.block_size

    def _read_state(self, row: Row, chain: Longs, begin: int, group: int) -> None:
        block = self._entry(row, group, 0)
        if begin == 0:
            assert block == 0, "an empty history has no state"
            return
        assert self.states[block] == (int(chain[begin - 1]) << 3) + group


class GroupLoop(Loop):
    def __init__(
        self, groups: Groups, forces: Callable[[], int] = lambda: 0, **changes: object
    ) -> None:
        super().__init__(make_config(groups=groups, **changes), forces)
        self.device = GroupDevice(self.config, groups)
        self.judges_blocks = groups[0] == FULL


MODELS: dict[str, Groups] = {
    "full": (FULL,),
    "window": (WINDOW,),
    "state": (STATE,),
    "full and window": (FULL, WINDOW),
    "full and state": (FULL, STATE),
    "two windows": (("window", 3), ("window", 11)),
    "all": (WINDOW, FULL, STATE, ("window", 1), STATE),
}


def fresh(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("seed", range(6))
def test_every_group_reads_its_own(model: str, depth: int, drafts: int, seed: int) -> None:
    groups = MODELS[model]
    rng = random.Random(f"{model} {depth} {seed} {drafts}")
    loop = GroupLoop(
        groups,
        num_blocks=1 + len(groups) * rng.choice([17, 24, 60]),
        block_size=rng.choice([1, 3, 4]) if seed else 4,
        max_running=rng.choice([2, 5]),
        max_step_tokens=rng.choice([15, 16, 40]) if drafts else rng.choice([7, 16, 40]),
        in_flight_depth=depth,
        prefix_cache=seed != 1,
        chunked_prefill=seed != 2,
        max_draft_tokens=drafts,
    )
    shared = [fresh(rng, 24) for _ in range(2)]
    for request_id in range(160):
        if rng.random() < 0.4 and request_id not in loop.live:
            prompt = rng.choice(shared)[: rng.randint(0, 24)] + fresh(rng, rng.randint(1, 6))
            loop.submit(request_id, prompt, rng.choice([0, 1, 5, 14]), salt=rng.choice([b"", b"x"]))
        if loop.live and rng.random() < 0.05:
            loop.abort(rng.choice(sorted(loop.live)))
        if rng.random() < 0.01:
            loop.scheduler.reset_prefix_cache()
        loop.turn()
    loop.drain()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("length", [2 * P, 4 * P - 1, 4 * P, 4 * P + 1, 31])
@pytest.mark.parametrize("chunk", [5, 7, 64])
def test_a_repeated_prompt_hits_in_every_model(model: str, length: int, chunk: int) -> None:
    """Whatever the chunk, a repetition finds all whole blocks before its last token."""
    groups = MODELS[model]
    loop = GroupLoop(groups, num_blocks=200, max_running=2, max_step_tokens=chunk)
    prompt = fresh(random.Random(length), length)
    for request_id in (1, 2):
        loop.submit(request_id, prompt, 3)
        life = loop.live[request_id]
        loop.drain_live()
    assert life.cached == (length - 1) // P * P
    loop.drain()


def test_the_second_of_two_equal_prompts_hits_a_step_later() -> None:
    loop = GroupLoop(MODELS["all"], num_blocks=400, max_step_tokens=64)
    prompt = fresh(random.Random(1), 30)
    loop.submit(1, prompt, 20)
    loop.turn()
    loop.submit(2, prompt, 20)
    loop.turn()
    assert loop.live[2].cached == 28
    loop.drain()


def test_a_window_gives_back_what_it_slid_over() -> None:
    loop = GroupLoop((WINDOW,), max_model_len=120, max_running=1, prefix_cache=False)
    loop.submit(1, fresh(random.Random(2), 8), 100)
    used = []
    while loop.live:
        loop.turn()
        used.append(loop.scheduler.stats().blocks_used)
    assert max(used) <= 4, "a window of 6 tokens touches 3 blocks of 4, and one may be in flight"
    loop.drain()


def test_a_state_takes_two_blocks_however_long_the_request() -> None:
    loop = GroupLoop((STATE,), num_blocks=3, max_model_len=200, max_running=1)
    assert loop.submit(1, fresh(random.Random(3), 90), 90) is SubmitResult.ACCEPTED
    loop.drain()
    assert loop.scheduler.stats().finished == 1


def test_a_request_that_no_pool_of_this_model_holds_is_refused() -> None:
    loop = GroupLoop((FULL, WINDOW, STATE), num_blocks=1 + 2 * 5 + 2, max_running=1)
    for length, fits in ((16, True), (17, False)):
        result = loop.submit(1, fresh(random.Random(4), length), 5)
        assert (result is SubmitResult.ACCEPTED) == fits
        assert fits or result is SubmitResult.NEVER_FITS
        loop.drain_live()
    loop.drain()


def test_dirty_ranges_do_not_span_groups() -> None:
    loop = GroupLoop((FULL, WINDOW), max_step_tokens=64)
    loop.submit(1, fresh(random.Random(5), 9), 2)
    step = loop.step()
    assert step is not None
    begins = [0, *np.cumsum(loop.config.row_lengths)]
    assert step.dirty.tolist() == [[0, begin, begin + 3] for begin, _ in pairwise(begins)]
    loop.commit()
    loop.drain()


@pytest.mark.parametrize(
    "groups", [(), (("window", 0),), (("full", 3),), (("odd", 0),), (FULL,) * 9]
)
def test_groups_that_make_no_sense_are_refused(groups: Groups) -> None:
    with pytest.raises(ValueError, match=r"group|window"):
        make_config(groups=groups)


def test_the_chain_of_the_device_tells_histories_apart() -> None:
    first, second = (Device._chain([1, 2], zlib.crc32(salt)) for salt in (b"", b"x"))
    assert first[-1] != second[-1]
