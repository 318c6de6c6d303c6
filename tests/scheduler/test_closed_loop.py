"""Random closed loops: whatever is submitted, aborted, evicted and preempted, every request gets
exactly the tokens it would get alone, ends once, and leaves nothing behind.
"""

from __future__ import annotations

import random

import pytest

from tests.scheduler.device import VOCAB
from tests.scheduler.driver import Loop, make_config
from tokenspeed.scheduler import SubmitResult

SEEDS = range(4)


def random_prompt(rng: random.Random, families: list[list[int]], longest: int) -> list[int]:
    """A prefix of one of a few families, and a tail of its own."""
    family = rng.choice(families)
    shared = rng.randint(0, min(len(family), longest - 1))
    tail = rng.randint(1, max(1, min(8, longest - shared)))
    return family[:shared] + [rng.randrange(VOCAB) for _ in range(tail)]


def play(loop: Loop, rng: random.Random, turns: int, *, abort_rate: float) -> None:
    """Random submissions and aborts for a while, then silence until everything has ended."""
    config = loop.config
    longest = config.max_model_len - 2
    if not config.chunked_prefill:
        longest = min(longest, config.max_step_tokens)
    families = [[rng.randrange(VOCAB) for _ in range(48)] for _ in range(3)]
    for _ in range(turns):
        while rng.random() < 0.45 and len(loop.live) < 12:
            prompt = random_prompt(rng, families, longest)
            room = config.max_model_len - len(prompt)
            # Few ids, so that ids of ended and aborted requests are used again at once.
            request_id = rng.choice([i for i in range(16) if i not in loop.live])
            result = loop.submit(
                request_id,
                prompt,
                rng.choice([0, 1, rng.randint(0, min(room, 24)), min(room, 32)]),
                min_tokens=rng.choice([0, 0, 3]),
                stops=frozenset(rng.sample(range(VOCAB), rng.choice([0, 2]))),
                priority=rng.choice([0, 0, 0, 1, -1]),
                salt=rng.choice([b"", b"", b"tenant"]),
                reads_cache=rng.random() < 0.9,
            )
            assert result in (SubmitResult.ACCEPTED, SubmitResult.NEVER_FITS)
        if loop.live and rng.random() < abort_rate:
            loop.abort(rng.choice(sorted(loop.live)))
        if loop.flights and rng.random() < 0.2:
            loop.commit()
        if rng.random() < 0.01:
            loop.scheduler.reset_prefix_cache()
        loop.turn()
    loop.drain()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("num_blocks", [18, 33, 200])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_gets_its_own_tokens_and_ends_once(
    depth: int, chunked: bool, cached: bool, num_blocks: int, seed: int
) -> None:
    rng = random.Random(f"{depth} {chunked} {cached} {num_blocks} {seed}")
    drafts, running = rng.choice([0, 0, 1, 4]), rng.choice([1, 4, 7])
    loop = Loop(
        make_config(
            num_blocks=num_blocks,
            block_size=rng.choice([1, 3, 4, 16]),
            max_running=running,
            max_draft_tokens=drafts,
            max_step_tokens=max(rng.choice([7, 16, 64]), running * (1 + drafts)),
            prefix_cache=cached,
            chunked_prefill=chunked,
            in_flight_depth=depth,
        )
    )
    play(loop, rng, 150, abort_rate=rng.choice([0.0, 0.1]))


@pytest.mark.parametrize("depth", [0, 1])
def test_small_pools_do_evict_and_preempt(depth: int) -> None:
    """The loops above are only worth something where the pressure is real."""
    preemptions = cached = 0
    for seed in range(8):
        loop = Loop(make_config(num_blocks=18, max_running=7, in_flight_depth=depth))
        play(loop, random.Random(seed), 150, abort_rate=0.05)
        stats = loop.scheduler.stats()
        preemptions += stats.preemptions
        cached += stats.cached_prompt_tokens
        # Each prompt counts with its first admission, however often it is preempted.
        lives = [life for life in (*loop.ended, *loop.live.values()) if life.admissions]
        assert stats.prompt_tokens == sum(len(life.prompt) for life in lives)
        assert stats.cached_prompt_tokens == sum(life.cached or 0 for life in lives)
    assert preemptions > 10
    assert cached > 200


def test_the_same_calls_give_the_same_steps() -> None:
    digests = []
    for _ in range(2):
        loop = Loop(make_config(num_blocks=18, in_flight_depth=1))
        play(loop, random.Random(7), 200, abort_rate=0.1)
        digests.append(loop.digests)
    assert len(digests[0]) > 100
    assert digests[0] == digests[1]


def test_the_device_notices_a_wrong_block() -> None:
    """The referee itself: one wrong entry of one block table must be seen."""
    loop = Loop(make_config())
    loop.submit(1, list(range(20)), 4)
    loop.submit(2, list(range(30, 50)), 4)
    for _ in range(3):
        loop.turn()
    loop.step()
    for row in loop.flights[-1].rows:
        row.blocks[0] = loop.flights[-1].rows[0].blocks[0]
    with pytest.raises(AssertionError, match=r"foreign tokens|chain"):
        loop.commit()
