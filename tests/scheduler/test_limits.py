"""What bounds a wait: queue limits, deadlines, the mix of a step, the order of a warm cache.
And the figures behind a refusal.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.scheduler.device import VOCAB
from tests.scheduler.driver import make_config
from tests.scheduler.test_groups import GroupLoop
from tokenspeed.resolve.cache import Geometry
from tokenspeed.scheduler import Scheduler, Step, SubmitResult

NO_STOPS = np.array([], np.int32)
DEADLINE = 3


def submit(
    core: Scheduler, request_id: int, length: int, max_tokens: int = 4, **more: object
) -> SubmitResult:
    prompt = np.random.default_rng(request_id).integers(0, VOCAB, length, dtype=np.int32)
    now = more.pop("now", 0.0)
    return core.submit(request_id, prompt, max_tokens, NO_STOPS, now=now, **more)  # type: ignore[arg-type]


def commit(core: Scheduler, step: Step) -> None:
    core.commit(step.id, np.full(step.num_samples, 7, np.int32))
    core.check()


def turn(core: Scheduler, now: float = 0.0) -> Step | None:
    step = core.step(now)
    core.check()
    if step is not None:
        commit(core, step)
    return step


def ids(step: Step | None) -> list[int]:
    return [] if step is None else step.request_ids.tolist()


def ended(core: Scheduler) -> list[tuple[int, int, int]]:
    deltas = core.take_ended()
    return list(
        zip(
            deltas.request_ids.tolist(),
            deltas.tokens.tolist(),
            deltas.finish.tolist(),
            strict=True,
        )
    )


def test_a_full_queue_says_how_full() -> None:
    core = Scheduler(make_config(max_running=2, max_waiting=1))
    for request_id in (1, 2, 3):
        assert core.judge(5, 4).result is SubmitResult.ACCEPTED
        assert submit(core, request_id, 5) is SubmitResult.ACCEPTED
    assert submit(core, 4, 5) is SubmitResult.QUEUE_FULL
    judgement = core.judge(5, 4)
    assert (judgement.result, judgement.needed, judgement.limit) == (SubmitResult.QUEUE_FULL, 4, 3)
    assert submit(core, 4, 0) is SubmitResult.EMPTY, "what can never be is said first"
    core.abort(2)
    assert submit(core, 4, 5) is SubmitResult.ACCEPTED


def test_a_refusal_has_its_figures() -> None:
    core = Scheduler(
        make_config(num_blocks=9, max_model_len=40, max_step_tokens=12, chunked_prefill=False)
    )
    figures = {
        (30, 11): (SubmitResult.TOO_LONG, 41, 40),
        (30, 10): (SubmitResult.NEVER_FITS, 10, 8),
        (13, 2): (SubmitResult.EXCEEDS_STEP, 13, 12),
        (12, 2): (SubmitResult.ACCEPTED, 14, 40),
        (0, 2): (SubmitResult.EMPTY, 1, 40),
    }
    for (prompt_len, max_tokens), expected in figures.items():
        judgement = core.judge(prompt_len, max_tokens)
        assert (judgement.result, judgement.needed, judgement.limit) == expected
        assert submit(core, prompt_len, prompt_len, max_tokens) is expected[0]
    with pytest.raises(ValueError, match="must not be negative"):
        core.judge(-1, 2)
    with pytest.raises(TypeError):
        core.judge(10, 2**31)


GROUPS: tuple[tuple[tuple[str, int], ...], ...] = (
    (("full", 0),),
    (("state", 0),),
    (("full", 0), ("window", 5), ("state", 0)),
)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("num_blocks", [2, 3, 4, 9, 30])
def test_the_longest_request_is_the_longest_that_is_accepted(
    groups: tuple[tuple[str, int], ...], num_blocks: int
) -> None:
    config = make_config(groups=groups, num_blocks=num_blocks, block_size=3, max_model_len=50)
    core = Scheduler(config)
    for prompt in range(1, 51):
        for output in range(51 - prompt):
            accepted = core.judge(prompt, output).result is SubmitResult.ACCEPTED
            computed = prompt + max(0, output - 1)
            assert accepted == (config.blocks_of(computed) <= num_blocks - 1)
            assert accepted or prompt + output > config.max_request_tokens
        assert core.judge(prompt, 0).result.name == (
            "ACCEPTED" if prompt <= config.max_request_tokens else "NEVER_FITS"
        )


@pytest.mark.parametrize("block_size", [1, 3, 16, 64, 128])
def test_planning_counts_blocks_as_the_scheduler_does(block_size: int) -> None:
    geometry = Geometry("bfloat16", "split", block_size, (), prefix_cache=True)
    for num_blocks in (2, 3, 17, 1000):
        config = make_config(num_blocks=num_blocks, block_size=block_size, max_model_len=2**30)
        assert geometry.tokens_in(num_blocks) == config.max_request_tokens
    for tokens in (1, 2, 3, 15, 16, 17, 127, 128, 129, 50_000, 131_072):
        assert geometry.blocks_for(tokens) == config.blocks_of(tokens)


def test_a_request_that_waited_too_long_ends_and_says_so() -> None:
    core = Scheduler(make_config(max_running=1))
    submit(core, 1, 5, 30)
    submit(core, 2, 5, 4, max_wait_s=10.0)
    submit(core, 3, 5, 4, max_wait_s=5.0, now=1.0)
    submit(core, 4, 5, 4)
    turn(core, 5.9)
    assert ended(core) == []
    turn(core, 6.0)
    assert ended(core) == [(3, -1, DEADLINE)]
    turn(core, 100.0)
    assert ended(core) == [(2, -1, DEADLINE)]
    assert ended(core) == [], "told once"
    assert core.stats().expired == 2
    assert core.stats().waiting == 1
    with pytest.raises(ValueError, match="max_wait_s"):
        submit(core, 5, 5, max_wait_s=-1.0)


def test_a_timer_stands_still_while_the_request_runs() -> None:
    """It runs for an age, is preempted, and then may wait for what it had left: 9 seconds."""
    core = Scheduler(make_config(num_blocks=10, max_running=2, max_step_tokens=32))
    submit(core, 1, 8, 24)
    submit(core, 2, 8, 24, max_wait_s=10.0)
    turn(core, 1.0)
    while core.stats().preemptions == 0:
        turn(core, 1000.0)
    turn(core, 1008.9)
    assert ended(core) == []
    assert core.stats().waiting == 1
    turn(core, 1009.0)
    assert ended(core) == [(2, -1, DEADLINE)]
    while turn(core, 2000.0) is not None:
        continue
    assert core.stats().finished == 1
    assert core.stats().blocks_used == 0


def test_prompts_beside_decodes_are_bounded_and_go_on() -> None:
    core = Scheduler(
        make_config(num_blocks=200, max_step_tokens=40, max_mixed_tokens=3, max_running=4)
    )
    submit(core, 1, 20, 40)
    assert ids(turn(core)) == [1], "alone it has the whole step"
    submit(core, 2, 20, 4)
    prefills = []
    for _ in range(7):
        step = turn(core)
        assert step is not None and step.num_decode_rows == 1
        prefills.append(step.num_tokens - 1)
    assert prefills == [3, 3, 3, 3, 3, 3, 2]


def test_a_prompt_that_must_not_be_cut_gets_a_step_of_its_own() -> None:
    core = Scheduler(
        make_config(
            num_blocks=200,
            max_step_tokens=16,
            patience_steps=3,
            chunked_prefill=False,
            max_model_len=200,
        )
    )
    submit(core, 1, 5, 100)
    turn(core)
    submit(core, 2, 16, 4)
    submit(core, 3, 2, 4)
    seen = [ids(turn(core)) for _ in range(6)]
    assert seen[:4] == [[1], [1], [1], [2]], "and nobody behind it overtakes"
    assert seen[4][:2] == [1, 2]


def test_a_step_that_prompts_cannot_use_goes_to_decodes() -> None:
    """Alone by right, but short of blocks: the decodes go on."""
    core = Scheduler(
        make_config(
            num_blocks=9, max_step_tokens=16, patience_steps=1, chunked_prefill=False, max_running=2
        )
    )
    submit(core, 1, 14, 18)
    turn(core)
    submit(core, 2, 16, 4)
    for _ in range(16):
        assert ids(turn(core)) == [1]
    assert ids(turn(core)) == [1] and ids(turn(core)) == [2]


def test_a_warm_prompt_goes_first_within_its_bound() -> None:
    core = Scheduler(
        make_config(num_blocks=200, max_running=1, max_step_tokens=64, cache_lead_s=8.0)
    )
    warm = np.random.default_rng(1).integers(0, VOCAB, 41, dtype=np.int32)
    core.submit(1, warm, 1, NO_STOPS, now=0.0)
    turn(core)
    submit(core, 2, 30, 1, now=5.0)
    submit(core, 3, 30, 1, now=15.0)
    for request_id, now in ((4, 17.0), (5, 30.0)):
        core.submit(request_id, warm, 1, NO_STOPS, now=now)
    # 40 of 41 tokens are cached: a lead of 7.8 seconds, past the third and not past the second.
    assert [ids(turn(core, 40.0)) for _ in range(4)] == [[2], [4], [3], [5]]


def test_a_warm_prompt_passes_one_that_is_being_computed() -> None:
    """Rank is the one order of prompts, whether they run already or still wait."""
    core = Scheduler(
        make_config(num_blocks=200, max_step_tokens=64, max_mixed_tokens=8, cache_lead_s=8.0)
    )
    warm = np.random.default_rng(1).integers(0, VOCAB, 41, dtype=np.int32)
    core.submit(1, warm, 1, NO_STOPS, now=0.0)
    turn(core)
    submit(core, 2, 5, 40, now=0.0)
    turn(core)
    submit(core, 3, 60, 1, now=1.0)
    assert ids(turn(core, 1.0)) == [2, 3]
    core.submit(4, warm, 1, NO_STOPS, now=2.0)
    core.submit(5, warm, 1, NO_STOPS, now=9.0)
    step = turn(core, 9.0)
    assert ids(step) == [2, 4, 3], "and what it leaves of the step goes to who was passed"
    assert step is not None and step.query_lens.tolist() == [1, 1, 7]
    assert ids(turn(core, 9.0)) == [2, 3], "the fifth came too late to pass it"


def test_prompts_that_do_not_keep_up_get_larger_chunks_for_a_while() -> None:
    core = Scheduler(
        make_config(
            num_blocks=200, max_step_tokens=64, max_model_len=200,
            max_mixed_tokens=4, max_backlog_tokens=16, backlog_steps=3,
        )
    )  # fmt: skip
    submit(core, 1, 5, 60)
    turn(core)

    def chunks() -> list[int]:
        seen = []
        while (step := turn(core)) is not None and step.num_rows > 1:
            seen.append(int(step.query_lens[1:].sum()))
        return seen

    submit(core, 2, 12, 1)
    assert chunks() == [4, 4, 4]
    submit(core, 3, 100, 1)
    assert chunks() == [4, 4, 4, 8, 8, 8, 16, 16, 16, 16]
    submit(core, 4, 9, 1)
    assert chunks() == [4, 4, 1], "once they keep up, answers wait no longer than before"


@pytest.mark.parametrize("seed", range(12))
def test_without_overcommit_nobody_is_preempted(seed: int) -> None:
    """Lesson 25: everybody who is admitted can finish, whatever the others take; in the same
    workload with overcommit somebody is preempted."""
    preemptions = []
    for overcommit in (True, False):
        rng = random.Random(seed)
        groups = rng.choice([(("full", 0),), (("full", 0), ("state", 0)), (("full", 0),) * 2])
        loop = GroupLoop(
            groups,
            num_blocks=1 + 12 * len(groups),
            max_running=4,
            max_step_tokens=32,
            max_draft_tokens=rng.choice([0, 2]),
            in_flight_depth=seed % 2,
            overcommit=overcommit,
        )
        for request_id in range(12):
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
            loop.submit(request_id, prompt, rng.randint(1, 30))
        loop.drain()
        preemptions.append(loop.scheduler.stats().preemptions)
    assert preemptions[0] > 0
    assert preemptions[1] == 0


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"max_mixed_tokens": 0},
        {"patience_steps": 0},
        {"max_backlog_tokens": -1},
        {"backlog_steps": 0},
        {"cache_lead_s": -1.0},
        {"max_waiting": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make_config(**wrong)


def test_no_limit_loses_a_request() -> None:
    """Every accepted request ends once: by its tokens, by abort, or because it waited too long."""
    for seed in range(30):
        rng = random.Random(seed)
        core = Scheduler(
            make_config(
                num_blocks=rng.choice([17, 40]),
                max_running=rng.choice([1, 3]),
                max_waiting=rng.choice([2, 9]),
                max_mixed_tokens=rng.choice([1, 4, 99]),
                max_backlog_tokens=rng.choice([0, 8]),
                patience_steps=rng.choice([1, 4]),
                chunked_prefill=rng.random() < 0.5,
                cache_lead_s=rng.choice([0.0, 3.0]),
            )
        )
        accepted, over, now = 0, [], 0.0
        for request_id in range(120):
            now += rng.random()
            wait = rng.choice([0.0, 2.0, 9.0, 1e9])
            result = submit(core, request_id, rng.randint(1, 16), 6, max_wait_s=wait, now=now)
            accepted += result is SubmitResult.ACCEPTED
            turn(core, now)
            over += ended(core)
        while core.stats().running + core.stats().waiting:
            now += 1.0
            turn(core, now)
            over += ended(core)
        stats = core.stats()
        assert stats.finished + stats.expired == accepted
        assert stats.expired == len(over) == len({request_id for request_id, *_ in over})
