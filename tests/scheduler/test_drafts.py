"""Drafts: rows that carry guesses, commits that say how many stood, and what is rolled back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.scheduler.driver import Loop, make_config
from tests.scheduler.test_cases import prompt_of, run_alone
from tests.scheduler.test_groups import FULL, STATE, WINDOW, GroupLoop, Groups
from tokenspeed.scheduler import Scheduler, Step

NO_STOPS = np.array([], np.int32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def decoding(max_tokens: int = 20, stops: np.ndarray = NO_STOPS, **changes: object) -> Scheduler:
    """One request of 5 prompt tokens whose first token, 50, has come."""
    core = Scheduler(make_config(max_draft_tokens=3, **changes))
    core.submit(1, np.arange(5, dtype=np.int32), max_tokens, stops, now=0.0)
    core.commit(step_of(core).id, ints(50))
    return core


def step_of(core: Scheduler) -> Step:
    step = core.step(0.0)
    core.check()
    assert step is not None
    return step


def test_a_row_carries_its_token_and_drafts() -> None:
    core = decoding()
    step = step_of(core)
    assert (step.num_decode_rows, step.query_lens.tolist()) == (1, [4])
    assert step.tokens.tolist() == [50, -1, -1, -1]
    assert core.commit(step.id, ints(51, 52), ints(2)).tokens.tolist() == [51, 52]
    assert core.tokens(1).tolist() == [0, 1, 2, 3, 4, 50, 51, 52]
    step = step_of(core)
    assert step.context_lens.tolist() == [7], "51 is computed, 52 is not"
    assert step.tokens.tolist() == [52, -1, -1, -1]


def test_a_step_ahead_counts_on_every_draft() -> None:
    core = decoding(in_flight_depth=1)
    first, second = step_of(core), step_of(core)
    assert (first.context_lens.tolist(), first.unsure_lens.tolist()) == ([5], [0])
    assert (second.context_lens.tolist(), second.unsure_lens.tolist()) == ([9], [3])
    assert second.tokens.tolist() == [-1] * 4
    core.commit(first.id, ints(51), ints(1))
    third = step_of(core)
    assert (third.context_lens.tolist(), third.unsure_lens.tolist()) == ([10], [3])


def test_rejected_drafts_are_never_published() -> None:
    """Blocks of 4: tokens 5 to 8 are drafts at first. Only those that stood may be found."""
    for stood, blocks in ((1, 1), (2, 1), (3, 2), (4, 2)):
        core = decoding()
        core.commit(step_of(core).id, ints(*range(51, 51 + stood)), ints(stood))
        core.check()
        assert len(core.cached_digests()) == blocks
        expected = core.digests_of(core.tokens(1))[:blocks]
        assert sorted(core.cached_digests().tolist()) == sorted(expected.tolist())


def test_the_last_tokens_get_no_more_drafts_than_they_can_use() -> None:
    core = decoding(max_tokens=4)
    step = step_of(core)
    assert step.query_lens.tolist() == [3]
    core.commit(step.id, ints(51, 52), ints(2))
    step = step_of(core)
    assert step.query_lens.tolist() == [1]
    assert core.commit(step.id, ints(53), ints(1)).finish.tolist() == [2]
    assert core.step(0.0) is None


def test_what_may_all_be_on_its_way_waits() -> None:
    core = decoding(max_tokens=5, in_flight_depth=1)
    step = step_of(core)
    assert step.query_lens.tolist() == [4]
    assert core.step(0.0) is None
    core.commit(step.id, ints(51), ints(1))
    assert step_of(core).query_lens.tolist() == [3]


def test_what_comes_after_a_stop_is_dropped() -> None:
    core = decoding(stops=ints(52))
    deltas = core.commit(step_of(core).id, ints(51, 52, 53, 54), ints(4))
    assert (deltas.tokens.tolist(), deltas.finish.tolist()) == ([51, 52], [0, 1])
    assert core.stats().blocks_used == 0


def test_wrong_counts_change_nothing() -> None:
    core = decoding()
    step = step_of(core)
    for tokens, counts, why in (
        ([51], [1, 1], "samples 1 rows, not 2"),
        ([], [0], "cannot bring 0 tokens"),
        ([51] * 5, [5], "cannot bring 5 tokens"),
        ([51, 52], [1], "samples 1 tokens, not 2"),
    ):
        with pytest.raises(ValueError, match=why):
            core.commit(step.id, ints(*tokens), ints(*counts))
    assert core.commit(step.id, ints(51)).tokens.tolist() == [51], "no counts: one each"


def test_drafts_take_no_block_from_anybody() -> None:
    core = Scheduler(make_config(max_draft_tokens=3, num_blocks=6, block_size=4, max_running=2))
    for request_id in (1, 2):
        tokens = np.full(7, request_id, np.int32)
        core.submit(request_id, tokens, 5, NO_STOPS, now=0.0)
    core.commit(step_of(core).id, ints(50, 50))
    step = step_of(core)
    assert step.query_lens.tolist() == [4, 1], "one block is left, and the first has it"
    assert core.stats().preemptions == 0


def test_a_row_that_may_not_fit_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="max_step_tokens"):
        make_config(max_draft_tokens=4, max_running=4, max_step_tokens=19)
    with pytest.raises(ValueError, match="max_draft_tokens"):
        make_config(max_draft_tokens=-1)


@pytest.mark.parametrize("groups", [(STATE,), (FULL, STATE), (FULL, WINDOW, STATE)])
@pytest.mark.parametrize("length", [5, 8, 11])
def test_states_are_kept_at_block_ends_under_drafts(groups: Groups, length: int) -> None:
    """Lesson 32: the next turn finds every whole block of the prompt and of the answer, because
    rows stop at blocks and a state is that after the last token that stood."""
    loop = GroupLoop(groups, num_blocks=200, max_running=2, max_draft_tokens=3, max_step_tokens=32)
    life = run_alone(loop, 1, prompt_of(random.Random(length), length), 23)
    following = run_alone(loop, 2, [*life.known, 3, 4, 5], 1)
    assert following.cached == (len(life.known) - 1) // 4 * 4
    loop.drain()


@pytest.mark.parametrize("depth", [0, 1])
def test_drafts_save_steps(depth: int) -> None:
    """With two of three guesses right an answer takes far fewer steps, and the same tokens (the
    loop asserts those)."""
    steps = []
    for drafts in (0, 3):
        loop = Loop(make_config(max_draft_tokens=drafts, in_flight_depth=depth))
        run_alone(loop, 1, prompt_of(random.Random(4), 6), 40)
        steps.append(len(loop.digests))
    assert steps[1] < 0.7 * steps[0]
