"""Tiers and hand-overs in random closed loops, down to the bytes: whatever is copied late, badly or
never, every token that is read is the token that should be there, every request ends once, and
nothing is left behind.

`python -m tests.scheduler.test_tiers 20 2000` plays 20 seeds of 2,000 turns for each role.
"""

from __future__ import annotations

import random
import sys
import time

import pytest

from tests.scheduler.device import VOCAB
from tests.scheduler.engine import Chaos, Engine, Groups, Life, new_life
from tests.scheduler.pair import Pair, config_for
from tokenspeed.scheduler import Guard, SchedulerConfig, SubmitResult, Tier

FULL, WINDOW, STATE = ("full", 0), ("window", 6), ("state", 0)
MODELS: list[Groups] = [(FULL,), (FULL,), (FULL, WINDOW), (FULL, STATE), (WINDOW, FULL, STATE)]


def random_request(
    rng: random.Random, families: list[list[int]], longest: int
) -> tuple[list[int], int, frozenset[int], bytes]:
    family = rng.choice(families)
    shared = rng.randint(0, min(len(family), longest - 9))
    prompt = family[:shared] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 8))]
    stops = frozenset(rng.sample(range(VOCAB), rng.choice([0, 0, 0, 2])))
    if rng.random() < 0.5:  # little to admit, much to grow: these are preempted
        prompt = prompt[-6:]
        return prompt, rng.choice([30, 50]), stops, b""
    return prompt, rng.choice([1, 2, 9, 20]), stops, rng.choice([b"", b"", b"tenant"])


def chaos_of(rng: random.Random) -> Chaos:
    return Chaos(fail=rng.choice([0.0, 0.01, 0.1]), lose=rng.choice([0.0, 0.01, 0.05]))


def play_fused(seed: int, turns: int) -> Engine:
    rng = random.Random(f"fused {seed}")
    groups = rng.choice(MODELS)
    depth = rng.choice([0, 1])
    stores = rng.random() < 0.6
    remote = stores and rng.random() < 0.5
    config = config_for(
        "fused",
        groups=groups,
        num_blocks=1 + len(groups) * rng.choice([16, 17, 22, 40]),
        num_host_blocks=1 + len(groups) * rng.choice([8, 16, 60]),
        max_running=rng.choice([3, 6, 8]),
        max_step_tokens=rng.choice([8, 16, 40]),
        in_flight_depth=depth,
        disk=stores,
        remote=remote,
        transfer_credits=rng.choice([4, 16, 256]),
        prefix_events=True,
        min_tail_tokens=seed % 3,
    )
    engine = Engine(config, groups, rng, chaos_of(rng), depth)
    families = [[rng.randrange(VOCAB) for _ in range(44)] for _ in range(3)]
    for _ in range(turns):
        if rng.random() < 0.4 and len(engine.live) < 10:
            prompt, max_tokens, stops, salt = random_request(rng, families, 44)
            request_id = rng.choice([i for i in range(14) if i not in engine.live])
            life = new_life(prompt, max_tokens, stops, salt)
            result = engine.submit(request_id, life, stops=stops, salt=salt)
            assert result in (SubmitResult.ACCEPTED, SubmitResult.NEVER_FITS)
        if engine.live and rng.random() < 0.03:
            engine.abort(rng.choice(sorted(engine.live)))
        if rng.random() < 0.02:
            engine.scheduler.reset_prefix_cache()
            engine.scheduler.check()
        if rng.random() < (0.05 if remote else 0.01):
            engine.memory.stores[Tier.DISK].clear()  # it is bound in size
        if rng.random() < 0.01:
            engine.now += rng.choice([1.0, 40.0])
        engine.turn()
    engine.settle()
    return engine


def play_pair(seed: int, turns: int) -> Pair:
    rng = random.Random(f"pair {seed}")
    groups = rng.choice(MODELS)
    depth = rng.choice([0, 1])
    sizes = {"prefill": rng.choice([20, 40]), "decode": rng.choice([20, 40])}
    host = rng.choice([0, 30])

    def make(role: str) -> SchedulerConfig:
        return config_for(
            role,
            groups=groups,
            num_blocks=1 + len(groups) * sizes[role],
            num_host_blocks=1 + len(groups) * host if host else 0,
            in_flight_depth=depth,
            layers_per_transfer=rng.choice([0, 4]),
            min_tail_tokens=seed % 2,
        )

    pair = Pair(make, groups, rng, chaos_of(rng), depth)
    families = [[rng.randrange(VOCAB) for _ in range(40)] for _ in range(3)]
    for _ in range(turns):
        live = {*pair.prefill.live, *pair.decode.live}
        if rng.random() < 0.3 and len(live) < 8:
            prompt, max_tokens, stops, salt = random_request(rng, families, 40)
            request_id = rng.choice([i for i in range(14) if i not in live])
            lives: tuple[Life, Life] = (
                new_life(prompt, max_tokens, stops, salt),
                new_life(prompt, max_tokens, stops, salt),
            )
            pair.submit(request_id, lives, stops=stops, salt=salt)
        if live and rng.random() < 0.03:
            request_id = rng.choice(sorted(live))
            for side in rng.sample([pair.prefill, pair.decode], rng.choice([1, 2])):
                if request_id in side.live:
                    side.abort(request_id)
        if pair.next_room > 1 and rng.random() < 0.02:
            pair.disturb()
        if rng.random() < 0.01:
            rng.choice([pair.prefill, pair.decode]).now += rng.choice([1.0, 40.0, 200.0])
        pair.turn()
    pair.settle()
    return pair


def test_the_loops_do_what_they_are_for() -> None:
    """They are only worth something where every kind of transfer and of trouble is real."""
    engines = [play_fused(seed, 120) for seed in range(10)]
    kinds = {(t.source, t.destination, t.guard) for engine in engines for t in engine.log}
    assert kinds == {
        (Tier.DEVICE, Tier.HOST, Guard.PINNED),
        (Tier.DEVICE, Tier.HOST, Guard.ORDERED),
        (Tier.HOST, Tier.DEVICE, Guard.PINNED),
        *((Tier.HOST, store, Guard.PINNED) for store in (Tier.DISK, Tier.REMOTE)),
        *((store, Tier.HOST, Guard.PINNED) for store in (Tier.DISK, Tier.REMOTE)),
        *((store, Tier.NONE, Guard.PINNED) for store in (Tier.DISK, Tier.REMOTE)),
    }
    stats = [engine.scheduler.stats() for engine in engines]
    assert sum(s.images_restored for s in stats) > 2
    assert sum(s.host_blocks_loaded for s in stats) > 20
    assert sum(s.transfers_failed for s in stats) > 5
    pairs = [play_pair(seed, 120) for seed in range(6)]
    ends = [side.scheduler.stats() for pair in pairs for side in (pair.prefill, pair.decode)]
    assert sum(s.finished for s in ends) > 100 and sum(s.failed for s in ends) > 10


def test_a_mover_that_mixes_up_blocks_is_noticed() -> None:
    """The referee itself: one block that comes from the wrong place must be seen."""
    engine = Engine(config_for("fused", num_host_blocks=40), (FULL,), random.Random(1))
    prompt = list(range(20))
    engine.submit(1, new_life(prompt, 1))
    engine.quiesce()
    engine.memory.host[:] = engine.memory.host[::-1]
    engine.memory.device[:] = 0
    engine.submit(2, new_life(prompt, 1))
    with pytest.raises(AssertionError, match="not its own"):
        engine.quiesce()


@pytest.mark.parametrize("seed", range(12))
def test_no_tier_can_be_seen_in_the_tokens(seed: int) -> None:
    play_fused(seed, 250)


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)])
def test_tails_are_copied_beside_transfers(groups: Groups) -> None:
    """Four agents, each of whose turns goes on from all that was said."""
    rng = random.Random(str(groups))
    config = config_for(
        "fused",
        groups=groups,
        num_blocks=1 + len(groups) * 40,
        num_host_blocks=1 + len(groups) * 60,
        min_tail_tokens=1,
    )
    engine = Engine(config, groups, rng, Chaos(fail=0.05, lose=0.02))
    agents: list[Life | None] = [None] * 4
    for _ in range(200):
        for agent, life in enumerate(agents):
            if life is not None and life.finish is None:
                continue
            said = life.history(len(life.prompt) + len(life.expected)) if life else []
            said = said if len(said) < 50 else []
            agents[agent] = new_life([*said, agent, rng.randrange(VOCAB)], rng.randint(1, 9))
            engine.submit(agent, agents[agent])
        engine.turn()
    engine.settle()
    assert engine.copied > 20


@pytest.mark.parametrize("seed", range(12))
def test_no_hand_over_can_be_seen_in_the_tokens(seed: int) -> None:
    play_pair(seed, 200)


def main(seeds: int, turns: int) -> None:
    for name, play in (("fused", play_fused), ("prefill and decode", play_pair)):
        begin = time.process_time()
        for seed in range(seeds):
            play(seed, turns)
        print(f"{name}: {seeds} seeds of {turns} turns, {time.process_time() - begin:.0f} s of CPU")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
