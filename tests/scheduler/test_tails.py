"""Tails: what an ended request computed behind its last full block is found, and copied."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.scheduler.device import VOCAB, Ints
from tests.scheduler.driver import Loop, make_config
from tests.scheduler.test_groups import FULL, GroupLoop, Groups

WINDOW = ("window", 6)


def found(loop: Loop, request_id: int, prompt: list[int], max_tokens: int = 2) -> int:
    """Tokens that a request finds when it is admitted; it runs to its end."""
    loop.submit(request_id, prompt, max_tokens)
    life = loop.live[request_id]
    loop.drain_live()
    assert life.cached is not None
    return life.cached


def test_the_next_turn_finds_all_that_the_last_one_computed() -> None:
    loop = Loop(make_config(min_tail_tokens=1))
    prompt = [1, 2, 3, 4, 5, 6]
    loop.submit(1, prompt, 2)
    life = loop.live[1]
    loop.drain_live()
    history = life.known  # 8 tokens, of which the last was not computed
    assert found(loop, 2, [*history, 9, 9, 9]) == 7
    assert found(loop, 3, [*history[:7], 8, 8, 8]) == 7, "a tail can be copied more than once"
    assert found(loop, 4, [*history[:6], 8, 8, 8]) == 4, "it is known as a whole"
    loop.drain()


def test_a_step_says_what_is_copied_where() -> None:
    loop = Loop(make_config(min_tail_tokens=2))
    assert found(loop, 1, [1, 2, 3, 4, 5, 6], 1) == 0  # blocks 1 and 2
    loop.submit(2, [1, 2, 3, 4, 5, 6, 7], 1)
    step = loop.step()
    assert step is not None
    assert step.context_lens.tolist() == step.cached_lens.tolist() == [6]
    assert step.copies.tolist() == [[2, loop.scheduler.block_tables[0, 1], 2]]
    assert step.copies.dtype == np.int32 and not step.copies.flags.writeable
    loop.commit()
    loop.drain()


def test_a_short_tail_is_not_worth_a_copy() -> None:
    loop = Loop(make_config(min_tail_tokens=3))
    assert found(loop, 1, [1, 2, 3, 4, 5, 6], 1) == 0
    assert found(loop, 2, [1, 2, 3, 4, 5, 6, 7, 8, 9], 1) == 4


def test_salts_and_resets_keep_tails_apart() -> None:
    loop = Loop(make_config(min_tail_tokens=1))
    assert found(loop, 1, [1, 2, 3], 1) == 0
    loop.submit(2, [1, 2, 3, 4], 1, salt=b"tenant")
    life = loop.live[2]
    loop.drain_live()
    assert life.cached == 0
    assert found(loop, 3, [1, 2, 3, 5], 1) == 3
    loop.scheduler.reset_prefix_cache()
    assert found(loop, 4, [1, 2, 3, 5], 1) == 0


def test_a_tail_makes_way_where_the_request_needs_every_block() -> None:
    """While it is copied it takes a block of its own; who fits the pool alone is still admitted."""
    loop = Loop(make_config(num_blocks=4, min_tail_tokens=1))
    assert found(loop, 1, [1, 2, 3], 1) == 0
    assert found(loop, 2, [1, 2, 3, *range(9)], 1) == 0
    loop.drain()


def test_a_device_that_does_not_copy_is_noticed() -> None:
    loop = Loop(make_config(min_tail_tokens=1))
    assert found(loop, 1, [1, 2, 3], 1) == 0
    loop.device.copy = lambda copies: None  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="foreign tokens"):
        found(loop, 2, [1, 2, 3, 4], 1)


def test_states_have_no_tails() -> None:
    loop = GroupLoop((FULL, ("state", 0)), min_tail_tokens=1)
    assert found(loop, 1, [1, 2, 3, 4, 5, 6], 1) == 0
    assert found(loop, 2, [1, 2, 3, 4, 5, 6, 7], 1) == 4


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW), (WINDOW, ("window", 1))])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("seed", range(2))
def test_conversations_copy_and_nobody_sees_it(
    groups: Groups, depth: int, drafts: int, seed: int
) -> None:
    """Every turn goes on from all that was said; some turns are said again, or aborted."""
    rng = random.Random(f"{groups} {depth} {drafts} {seed}")
    loop = GroupLoop(
        groups,
        num_blocks=1 + len(groups) * 18,
        block_size=rng.choice([3, 4, 8]),
        max_model_len=48,
        max_draft_tokens=drafts,
        in_flight_depth=depth,
        min_tail_tokens=rng.choice([1, 2]),
    )
    histories: list[list[int]] = [[] for _ in range(4)]
    copies = 0
    copy = loop.device.copy

    def counting(blocks: Ints) -> None:
        nonlocal copies
        copies += len(blocks)
        copy(blocks)

    loop.device.copy = counting  # type: ignore[method-assign]
    for turn in range(150):
        request_id = rng.randrange(6)
        if request_id not in loop.live and len(loop.live) < 5:
            said = rng.randrange(len(histories))
            prompt = histories[said] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 5))]
            if len(prompt) > 36:
                prompt = prompt[-3:]
            stops = frozenset(rng.sample(range(VOCAB), 4))
            loop.submit(request_id, prompt, rng.choice([0, 1, 5, 12]), stops=stops)
        if loop.live and rng.random() < 0.05:
            loop.abort(rng.choice(sorted(loop.live)))
        loop.turn()
        for life in loop.ended[-3:]:
            histories[turn % len(histories)] = life.known
    loop.drain()
    assert copies > 4
