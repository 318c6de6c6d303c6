"""What went wrong elsewhere and must not here: full hits, retries, preemption, misfits."""

from __future__ import annotations

import random

import pytest

from tests.scheduler.device import VOCAB
from tests.scheduler.driver import LENGTH, STOP, Life, Loop, make_config
from tokenspeed.scheduler import SubmitResult

P = 4  # block size of these tests


def prompt_of(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(length)]


def run_alone(loop: Loop, request_id: int, prompt: list[int], max_tokens: int) -> Life:
    assert loop.submit(request_id, prompt, max_tokens) is SubmitResult.ACCEPTED
    life = loop.live[request_id]
    while request_id in loop.live:
        loop.turn()
    return life


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("chunk", [P - 1, P, P + 1, 64])
@pytest.mark.parametrize("length", [1, P - 1, P, P + 1, 2 * P - 1, 2 * P, 2 * P + 1, 8 * P])
def test_a_fully_cached_prompt_still_computes_its_last_token(
    depth: int, chunk: int, length: int
) -> None:
    loop = Loop(
        make_config(max_running=3, max_step_tokens=chunk, in_flight_depth=depth, num_blocks=64)
    )
    prompt = prompt_of(random.Random(length), length)
    for attempt in range(3):
        for max_tokens in (1, P - 1, P, P + 1):
            life = run_alone(loop, attempt, prompt, max_tokens)
            whole_blocks = (length - 1) // P * P
            warm = attempt > 0 or max_tokens > 1
            assert life.cached == (whole_blocks if warm else 0)
    for request_id in range(4):
        loop.submit(request_id, prompt, P)
    loop.drain()


@pytest.mark.parametrize("change", [1, -1])
def test_a_prompt_one_token_longer_or_shorter_than_a_cached_one(change: int) -> None:
    loop = Loop(make_config())
    prompt = prompt_of(random.Random(0), 2 * P + 1)
    run_alone(loop, 1, prompt[: 2 * P], 1)
    life = run_alone(loop, 2, prompt[: 2 * P + change], 1)
    assert life.cached == (2 * P if change == 1 else P)
    loop.drain()


def test_cold_equal_prompts_of_one_step_compute_their_prefix_once() -> None:
    loop = Loop(make_config(num_blocks=200, max_running=20, max_step_tokens=64))
    prompt = prompt_of(random.Random(1), 6 * P + 2)
    for request_id in range(16):
        loop.submit(request_id, prompt, 2)
    step = loop.step()
    assert step is not None
    assert step.query_lens.tolist() == [6 * P + 2] + [2] * 15
    assert step.cached_lens.tolist() == [0] + [6 * P] * 15
    loop.commit()
    loop.drain()


def test_a_prompt_behind_a_generated_answer_hits_it() -> None:
    """The next turn of an agent: its prompt is the last prompt, the answer and something new."""
    for depth in (0, 1):
        loop = Loop(make_config(in_flight_depth=depth))
        life = run_alone(loop, 1, prompt_of(random.Random(2), 10), 15)
        following = run_alone(loop, 2, [*life.known, 3, 4, 5], 1)
        # All but the last token of the first turn were computed.
        assert following.cached == (len(life.known) - 1) // P * P
        loop.drain()


def test_salts_do_not_share() -> None:
    loop = Loop(make_config())
    prompt = prompt_of(random.Random(3), 20)
    loop.submit(1, prompt, 1, salt=b"tenant a")
    loop.turn()
    loop.submit(2, prompt, 1, salt=b"tenant b")
    loop.submit(3, prompt, 1, salt=b"tenant a")
    lives = dict(loop.live)
    loop.drain()
    assert (lives[2].cached, lives[3].cached) == (0, 16)


@pytest.mark.parametrize("depth", [0, 1])
def test_c26_cancel_and_retry_on_a_shared_prefix(depth: int) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        loop = Loop(
            make_config(
                num_blocks=rng.choice([24, 40, 60]),
                max_running=8,
                max_step_tokens=rng.choice([9, 16, 40]),
                in_flight_depth=depth,
            )
        )
        shared = prompt_of(rng, 8 * P)
        prompts = [shared + prompt_of(rng, rng.randint(1, 6)) for _ in range(8)]
        prompts += [prompt_of(rng, rng.randint(3, 20)) for _ in range(4)]
        for request_id, prompt in enumerate(prompts):
            loop.submit(request_id, prompt, 12)
        for _ in range(2):
            for _ in range(rng.randint(0, 8)):
                loop.turn()
            cancelled = rng.choice([i for i in range(8) if i in loop.live] or [8])
            if cancelled in loop.live:
                loop.abort(cancelled)
                loop.submit(cancelled, prompts[cancelled], 12)
        loop.drain()


def test_what_an_aborted_prefill_has_computed_can_be_hit() -> None:
    loop = Loop(make_config(max_step_tokens=8, in_flight_depth=1))
    prompt = prompt_of(random.Random(4), 30)
    loop.submit(1, prompt, 4)
    loop.step()
    loop.step()
    loop.abort(1)
    assert loop.scheduler.stats().blocks_used > 0, "the steps in flight still write"
    loop.commit()
    life = run_alone(loop, 2, prompt, 4)
    assert life.cached == 16
    loop.drain()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_c27_preemption_cannot_be_seen(depth: int, cached: bool, chunked: bool) -> None:
    loop = Loop(
        make_config(
            num_blocks=13,
            max_running=6,
            max_step_tokens=12,
            prefix_cache=cached,
            chunked_prefill=chunked,
            in_flight_depth=depth,
        )
    )
    rng = random.Random(5)
    lives = []
    for request_id in range(6):
        loop.submit(request_id, prompt_of(rng, 5), 15)
        lives.append(loop.live[request_id])
    loop.drain()
    assert loop.scheduler.stats().preemptions > 0
    assert all(life.finish == LENGTH and len(life.output) == 15 for life in lives)
    assert max(life.admissions for life in lives) > 1


def test_the_victim_is_the_lowest_class_then_the_latest() -> None:
    loop = Loop(make_config(num_blocks=12, max_running=3, max_step_tokens=32))
    for request_id, priority in ((1, 0), (2, -1), (3, 0)):
        loop.submit(request_id, prompt_of(random.Random(request_id), 7), 30, priority=priority)
    served = []
    for preemptions in (1, 2):
        while loop.scheduler.stats().preemptions < preemptions:
            if loop.flights:
                loop.commit()
            loop.step()
        served.append({row.request_id for row in loop.flights[-1].rows})
    assert served == [{1, 3}, {1}]
    loop.commit()
    loop.drain()


def test_c28_a_request_that_never_fits_is_refused_and_holds_up_nobody() -> None:
    usable = 8
    loop = Loop(make_config(num_blocks=usable + 1, max_model_len=200, max_step_tokens=64))
    for length in ((usable - 1) * P, usable * P - 1, usable * P, usable * P + 1):
        for max_tokens in (1, 2 * P):
            computed = length + max_tokens - 1
            fits = computed <= usable * P
            result = loop.submit(1, prompt_of(random.Random(length), length), max_tokens)
            assert (result is SubmitResult.ACCEPTED) == fits
            assert fits or result is SubmitResult.NEVER_FITS
            life = run_alone(loop, 2, prompt_of(random.Random(9), 10), 3)
            assert life.finish == LENGTH
    loop.drain()


def test_refusals_name_their_reason() -> None:
    loop = Loop(make_config(chunked_prefill=False, max_step_tokens=16))
    assert loop.submit(1, [5] * 16, 4) is SubmitResult.ACCEPTED
    assert loop.submit(1, [5], 4) is SubmitResult.DUPLICATE
    assert loop.submit(2, [], 4) is SubmitResult.EMPTY
    assert loop.submit(2, [5] * 10, 55) is SubmitResult.TOO_LONG
    assert loop.submit(2, [5] * 17, 4) is SubmitResult.EXCEEDS_STEP
    loop.drain()
    assert loop.submit(1, [5], 4) is SubmitResult.ACCEPTED, "an id is free after the end"
    loop.drain()


def test_no_output_is_asked_for() -> None:
    for depth in (0, 1):
        loop = Loop(make_config(max_step_tokens=8, in_flight_depth=depth))
        life = run_alone(loop, 1, list(range(21)), 0)
        assert (life.finish, life.output) == (LENGTH, [])
        loop.drain()


def test_stop_tokens_count_from_min_tokens_on() -> None:
    loop = Loop(make_config())
    free = run_alone(loop, 1, [1, 2, 3], 12).output
    stop = free[2]
    first = free.index(stop) + 1
    loop.submit(2, [1, 2, 3], 12, stops=frozenset([stop]))
    life = loop.live[2]
    loop.drain()
    assert (life.finish, life.output) == (STOP, free[:first])
    loop.submit(3, [1, 2, 3], 12, stops=frozenset([stop]), min_tokens=first + 1)
    life = loop.live[3]
    loop.drain()
    assert len(life.output) > first


def test_decodes_never_wait_for_prompts() -> None:
    loop = Loop(make_config(num_blocks=200, max_running=4, max_step_tokens=8))
    for request_id in (1, 2):
        loop.submit(request_id, prompt_of(random.Random(request_id), 6), 30)
    while len(loop.live[2].output) == 0:
        loop.turn()
    for request_id in (3, 4, 5):
        loop.submit(request_id, prompt_of(random.Random(request_id), 50), 3)
    for _ in range(20):
        before = [len(loop.live[i].output) for i in (1, 2)]
        loop.turn()
        assert [len(loop.live[i].output) for i in (1, 2)] == [n + 1 for n in before]
    loop.drain()


def test_an_old_request_of_a_low_class_overtakes() -> None:
    """One class is worth 30 seconds: who came in these goes first, who came later does not."""
    loop = Loop(make_config(max_running=1, max_step_tokens=64))
    loop.submit(0, [1, 2], 3)
    loop.turn()
    loop.now = 100.0
    loop.submit(1, [1, 2], 1, priority=-1)
    for request_id, now in ((2, 110.0), (3, 129.0), (4, 131.0), (5, 140.0)):
        loop.now = now
        loop.submit(request_id, [1, 2], 1)
    order = []
    while loop.live:
        before = set(loop.live)
        loop.turn()
        order += sorted(before - set(loop.live))
    assert order == [0, 2, 3, 1, 4, 5]
    loop.drain()


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 7, 16, 99, 100, 101])
def test_c29_a_prompt_that_is_scored_passes_once_and_in_order(
    chunk: int, block_size: int, others: int
) -> None:
    """Whoever wants the logprobs of a prompt gets every position once, whatever is cached, and
    nothing is sampled before the last."""
    loop = Loop(
        make_config(
            num_blocks=800,
            block_size=block_size,
            max_running=4,
            max_step_tokens=chunk + 4,
            max_model_len=160,
        )
    )
    prompt = prompt_of(random.Random(1), 100)
    run_alone(loop, 9, prompt, 2)
    for request_id in range(others):
        loop.submit(request_id, prompt_of(random.Random(request_id), 3), 40)
    for _ in range(others):
        loop.turn()
    loop.submit(5, prompt, 3, reads_cache=False)
    passed: list[int] = []
    while 5 in loop.live and not loop.live[5].output:
        step = loop.step()
        assert step is not None
        row = step.request_ids.tolist().index(5)
        begin, length = int(step.context_lens[row]), int(step.query_lens[row])
        passed += range(begin, begin + length)
        assert bool(step.samples[row]) == (begin + length == 100)
        loop.commit()
    assert passed == list(range(100))
    loop.drain()
