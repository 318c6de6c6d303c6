"""Tokens that must follow a sampled one: known without a step, computed in one row."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.scheduler.driver import LENGTH, STOP, Loop, make_config
from tests.scheduler.test_cases import prompt_of, run_alone
from tests.scheduler.test_closed_loop import play
from tests.scheduler.test_drafts import NO_STOPS, ints, step_of
from tests.scheduler.test_groups import MODELS, GroupLoop
from tokenspeed.scheduler import Deltas, Scheduler, Step


def started(max_tokens: int = 20, stops: np.ndarray = NO_STOPS, **changes: object) -> Scheduler:
    """One request of 5 prompt tokens."""
    core = Scheduler(make_config(**changes))
    core.submit(1, np.arange(5, dtype=np.int32), max_tokens, stops, now=0.0)
    return core


def commit(core: Scheduler, step: Step, sampled: int, *forced: int) -> Deltas:
    counts = ints(1 + len(forced))
    deltas = core.commit(step.id, ints(sampled, *forced), counts, ints(len(forced)))
    core.check()
    return deltas


def test_they_are_computed_in_one_row_with_the_sampled_one() -> None:
    core = started()
    deltas = commit(core, step_of(core), 50, 51, 52, 53)
    assert deltas.tokens.tolist() == [50, 51, 52, 53]
    assert core.tokens(1).tolist() == [0, 1, 2, 3, 4, 50, 51, 52, 53]
    step = step_of(core)
    assert (step.num_decode_rows, step.query_lens.tolist()) == (0, [4])
    assert (step.tokens.tolist(), step.samples.tolist()) == ([50, 51, 52, 53], [1])
    assert len(core.cached_digests()) == 2, "their full blocks can be found from here on"
    assert commit(core, step, 54).tokens.tolist() == [54]
    step = step_of(core)
    assert (step.num_decode_rows, step.tokens.tolist()) == (1, [54])


def test_a_step_in_flight_computes_and_brings_nothing() -> None:
    core = started(in_flight_depth=1)
    first, second = step_of(core), step_of(core)
    assert second.tokens.tolist() == [-1]
    assert commit(core, first, 50, 51, 52).tokens.tolist() == [50, 51, 52]
    third = step_of(core)
    assert (third.context_lens.tolist(), third.tokens.tolist()) == ([6], [51, 52])
    assert commit(core, second, 51, 52, 9).tokens.tolist() == [], "it was known"
    assert core.tokens(1).tolist()[5:] == [50, 51, 52]
    assert commit(core, third, 53).tokens.tolist() == [53]


def test_one_token_is_a_row_like_any_other_where_a_step_is_in_flight() -> None:
    core = started(in_flight_depth=1)
    first, second = step_of(core), step_of(core)
    commit(core, first, 50, 51)
    third = step_of(core)
    assert (third.num_decode_rows, third.tokens.tolist()) == (1, [51])
    assert commit(core, second, 51).tokens.tolist() == []
    assert commit(core, third, 52).tokens.tolist() == [52]


@pytest.mark.parametrize("depth", [0, 1])
def test_an_answer_ends_among_them(depth: int) -> None:
    for max_tokens, stops, said, how in (
        (3, NO_STOPS, [50, 51, 52], LENGTH),
        (20, ints(52), [50, 51, 52], STOP),
        (2, NO_STOPS, [50, 51], LENGTH),  # its last result was in flight
        (20, ints(50), [50], STOP),
    ):
        core = started(max_tokens, stops, in_flight_depth=depth)
        steps = [step_of(core), *([step_of(core)] if depth else [])]
        deltas = commit(core, steps[0], 50, 51, 52, 53)
        assert deltas.tokens.tolist() == said
        assert deltas.finish.tolist() == [0] * (len(said) - 1) + [how]
        for step in steps[1:]:
            assert commit(core, step, 51).tokens.tolist() == []
        assert core.step(0.0) is None
        stats = core.stats()
        assert (stats.blocks_used, stats.finished) == (0, 1)


def test_a_stop_among_them_counts_from_min_tokens_on() -> None:
    core = Scheduler(make_config())
    core.submit(1, ints(1, 2), 20, ints(51, 53), min_tokens=3, now=0.0)
    deltas = commit(core, step_of(core), 50, 51, 52, 53, 54)
    assert deltas.tokens.tolist() == [50, 51, 52, 53]


def test_what_is_wrong_changes_nothing() -> None:
    core = started()
    step = step_of(core)
    for tokens, counts, forced, why in (
        ([51, 52], [2], [1, 0], "samples 1 rows, not 2"),
        ([51, 52], [2], [2], "cannot bring 0 tokens"),
        ([51, 52], [2], [0], "cannot bring 2 tokens"),
        ([51, 52, 53], [2], [1], "samples 2 tokens, not 3"),
        ([51], [1], [-1], "must not be negative"),
    ):
        with pytest.raises(ValueError, match=why):
            core.commit(step.id, ints(*tokens), ints(*counts), ints(*forced))
    with pytest.raises(ValueError, match="part of the counts"):
        core.commit(step.id, ints(51), None, ints(0))
    assert core.commit(step.id, ints(51), ints(1), ints(0)).tokens.tolist() == [51]
    for changes in ({"max_draft_tokens": 2, "in_flight_depth": 1}, {"role": "prefill"}):
        core = Scheduler(make_config(**changes))
        peer = 1 if "role" in changes else 0
        core.submit(1, ints(1, 2), 5, NO_STOPS, peer=peer, now=0.0)
        if not peer:
            with pytest.raises(ValueError, match="no token can be forced"):
                core.commit(step_of(core).id, ints(51, 52), ints(2), ints(1))


def test_long_runs_leave_everybody_a_token() -> None:
    """Three requests with 12 tokens each to compute share what prompts may have beside a decode, in
    order; a prompt that waits has it in every other step."""
    core = Scheduler(make_config(num_blocks=99, max_running=5, max_step_tokens=16,
                                 max_mixed_tokens=9))  # fmt: skip
    for request_id in range(4):
        core.submit(request_id, ints(request_id), 40, NO_STOPS, now=0.0)
    run = [50, *range(60, 71)]
    core.commit(
        step_of(core).id, ints(*run, *run, *run, 50), ints(12, 12, 12, 1), ints(11, 11, 11, 0)
    )
    core.submit(9, np.arange(30, dtype=np.int32), 4, NO_STOPS, now=0.0)
    step = step_of(core)
    assert (step.request_ids.tolist(), step.query_lens.tolist()) == ([3, 0, 1, 2], [1, 10, 1, 1])
    assert step.samples.tolist() == [1, 0, 0, 0]
    core.commit(step.id, ints(51))
    step = step_of(core)
    assert step.request_ids.tolist() == [3, 0, 1, 2, 9]
    assert (step.query_lens.tolist(), step.samples.tolist()) == ([1, 1, 1, 1, 9], [1, 0, 0, 0, 0])
    core.commit(step.id, ints(52))
    step = step_of(core)
    assert (step.request_ids.tolist(), step.query_lens.tolist()) == ([0, 3, 1, 2], [1, 1, 10, 1])
    assert step.samples.tolist() == [1, 1, 1, 0]


def test_a_run_as_long_as_an_answer_does_not_keep_prompts_out() -> None:
    core = Scheduler(make_config(num_blocks=99, max_model_len=300, max_mixed_tokens=4))
    core.submit(1, ints(1), 250, NO_STOPS, now=0.0)
    commit(core, step_of(core), *range(201))
    core.submit(2, np.arange(12, dtype=np.int32), 1, NO_STOPS, now=0.0)
    steps = [step_of(core)]
    while not steps[-1].num_samples:
        core.commit(steps[-1].id, NO_STOPS)
        steps.append(step_of(core))
    assert [step.query_lens.tolist() for step in steps] == [[5], [1, 4]] * 3
    assert (steps[-1].request_ids.tolist(), steps[-1].samples.tolist()) == ([1, 2], [0, 1])


def test_a_run_takes_blocks_from_who_is_behind_and_yields_to_who_is_before() -> None:
    core = Scheduler(make_config(num_blocks=7, max_running=2, max_step_tokens=16))
    for request_id in (1, 2):
        core.submit(request_id, np.full(8, request_id, np.int32), 12, NO_STOPS, now=0.0)
    step = step_of(core)
    run = [50, *range(60, 69)]
    core.commit(step.id, ints(*run, *run), ints(10, 10), ints(9, 9))
    step = step_of(core)
    assert (step.request_ids.tolist(), step.query_lens.tolist()) == ([1], [10])
    assert core.stats().preemptions == 1
    core.abort(1)
    core.commit(step.id, ints(70))
    step = step_of(core)
    assert step.request_ids.tolist() == [2]
    assert step.tokens.tolist()[-10:] == run, "it goes on behind all that is known of it"


@pytest.mark.parametrize("depth", [0, 1])
def test_they_save_steps(depth: int) -> None:
    steps = []
    for forced in (0, 5):
        loop = Loop(make_config(in_flight_depth=depth), lambda count=forced: count)
        run_alone(loop, 1, prompt_of(random.Random(4), 6), 42)
        steps.append(len(loop.digests))
    assert steps[0] >= 42
    assert steps[1] == (7 if depth == 0 else 14), "six tokens a step; at depth 1 every other one"


@pytest.mark.parametrize("model", ["full", "full and window", "full and state", "all"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_blocks", [20, 33, 200])
def test_every_request_gets_its_own_tokens(model: str, depth: int, num_blocks: int) -> None:
    """Random loops in which runs are cut, preempted, aborted and cached: the device checks each
    read, the client each token."""
    groups = MODELS[model]
    rng = random.Random(f"{model} {depth} {num_blocks}")
    loop = GroupLoop(
        groups,
        lambda: rng.choice([0, 0, 1, 3, 14]),
        num_blocks=1 + len(groups) * num_blocks,
        block_size=rng.choice([1, 3, 4]) if model == "full" else 4,
        max_running=rng.choice([4, 7]),
        max_draft_tokens=0 if depth else rng.choice([0, 1]),
        max_step_tokens=16,
        max_mixed_tokens=rng.choice([1, 4, 16]),
        in_flight_depth=depth,
        min_tail_tokens=rng.choice([0, 1]),
    )
    play(loop, rng, 150, abort_rate=0.05)


def test_the_next_turn_finds_them() -> None:
    loop = Loop(make_config(num_blocks=99, min_tail_tokens=1), lambda: 4)
    life = run_alone(loop, 1, prompt_of(random.Random(1), 6), 21)
    following = run_alone(loop, 2, [*life.known, 3, 4], 1)
    assert following.cached == len(life.known) - 1, "nobody computed the last one"
