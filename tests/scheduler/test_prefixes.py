"""Pins and the stream of prefix events."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.scheduler.device import VOCAB, Ints
from tests.scheduler.driver import Loop, make_config
from tests.scheduler.test_groups import MODELS, GroupLoop

P = 4


def fresh(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(length)]


def array(tokens: list[int]) -> Ints:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize("model", ["full", "full and window", "all"])
def test_prefix_events_replay_to_the_index(model: str) -> None:
    rng = random.Random(model)
    loop = GroupLoop(MODELS[model], num_blocks=1 + 20 * len(MODELS[model]), prefix_events=True)
    gateway: set[tuple[int, int]] = set()
    removed = 0
    for request_id in range(200):
        if rng.random() < 0.5:
            loop.submit(request_id, fresh(random.Random(rng.randrange(6)), rng.randint(1, 30)), 4)
        if rng.random() < 0.02:
            loop.scheduler.reset_prefix_cache()
        loop.turn()
        digests, stored = loop.scheduler.take_prefix_events()
        for (low, high), kept in zip(digests.tolist(), stored.tolist(), strict=True):
            if kept:
                assert (low, high) not in gateway, "stored twice"
                gateway.add((low, high))
            else:
                gateway.remove((low, high))
                removed += 1
        assert gateway == {(low, high) for low, high in loop.scheduler.cached_digests().tolist()}
    assert removed > 20 and gateway
    loop.drain()


def test_events_speak_of_the_digests_of_a_prompt() -> None:
    loop = Loop(make_config(prefix_events=True))
    prompt = fresh(random.Random(1), 3 * P + 1)
    loop.submit(1, prompt, 1, salt=b"tenant")
    loop.drain_live()
    digests, stored = loop.scheduler.take_prefix_events()
    assert stored.tolist() == [1, 1, 1]
    named = loop.scheduler.digests_of(array(prompt), salt=b"tenant")
    assert digests.tolist() == named.tolist()
    assert named.tolist() != loop.scheduler.digests_of(array(prompt)).tolist()
    assert loop.scheduler.take_prefix_events()[0].shape == (0, 2)


def test_nothing_is_recorded_unless_asked() -> None:
    loop = Loop(make_config())
    loop.submit(1, fresh(random.Random(1), 9), 1)
    loop.drain_live()
    assert len(loop.scheduler.take_prefix_events()[1]) == 0
    assert len(loop.scheduler.cached_digests()) == 2


def test_a_pin_survives_pressure_until_its_time() -> None:
    loop = Loop(make_config(num_blocks=17, max_running=2))
    rng = random.Random(2)
    prompt = fresh(rng, 4 * P + 1)
    loop.submit(1, prompt, 1)
    loop.drain_live()
    assert loop.scheduler.pin_prefix(array(prompt), ttl_s=50.0, now=loop.now) == 4 * P
    assert loop.scheduler.stats().blocks_pinned == 4
    loop.scheduler.check()

    def press(first_id: int) -> None:
        for request_id in range(first_id, first_id + 8):
            loop.submit(request_id, fresh(rng, 20), 2)
            loop.drain_live()

    def cached(request_id: int) -> int | None:
        loop.submit(request_id, prompt, 1)
        life = loop.live[request_id]
        loop.drain_live()
        return life.cached

    press(10)
    assert cached(20) == 4 * P
    loop.now += 60.0
    press(30)
    assert loop.scheduler.stats().blocks_pinned == 0
    assert cached(40) == 0
    loop.drain()


@pytest.mark.parametrize("length", [20, 50])
def test_pins_yield_to_whoever_needs_the_blocks(length: int) -> None:
    """A prompt, or an answer, that takes the whole pool: the pins that end first go first."""
    loop = Loop(make_config(num_blocks=17, max_running=1, max_step_tokens=64))
    rng = random.Random(3)
    prompts = [fresh(rng, 2 * P + 1) for _ in range(2)]
    for request_id, prompt in enumerate(prompts):
        loop.submit(request_id, prompt, 1)
        loop.drain_live()
        assert loop.scheduler.pin_prefix(array(prompt), ttl_s=1e6 - request_id, now=0.0) == 2 * P
    loop.submit(5, fresh(rng, length), 64 - length)
    loop.drain_live()
    stats = loop.scheduler.stats()
    assert (stats.finished, stats.preemptions, stats.blocks_pinned) == (3, 0, 0)
    loop.drain()


def test_a_pin_made_while_somebody_waits_yields_too() -> None:
    """The blocks that the pin takes over were on their way back, and nobody else's come."""
    loop = Loop(make_config(num_blocks=9, max_running=2, in_flight_depth=1))
    rng = random.Random(4)
    prompt = fresh(rng, 4 * P)
    loop.submit(1, prompt, 8)
    loop.step()
    loop.submit(2, fresh(rng, 6 * P), 4)
    loop.abort(1)
    assert loop.step() is None
    assert loop.scheduler.pin_prefix(array(prompt), ttl_s=1e6, now=0.0) == 4 * P
    loop.commit()
    assert loop.step() is not None
    assert loop.scheduler.stats().blocks_pinned == 0
    loop.drain()


def test_a_pin_of_what_is_not_cached_holds_nothing() -> None:
    loop = Loop(make_config())
    assert loop.scheduler.pin_prefix(array([1] * 20), ttl_s=1.0, now=0.0) == 0
    for ttl in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="ttl_s"):
            loop.scheduler.pin_prefix(array([1] * 20), ttl_s=ttl, now=0.0)
    loop.drain()
