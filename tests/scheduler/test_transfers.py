"""What a Step says of transfers, and what their reports do: tiers, images, hand-overs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.scheduler.engine import Chaos, Engine, Life, Transfer, new_life
from tests.scheduler.pair import Pair, config_for
from tokenspeed.scheduler import (
    Guard,
    PeerDelivered,
    PeerGone,
    PeerProgress,
    PeerReady,
    Scheduler,
    SchedulerConfig,
    SubmitResult,
    Tier,
    TransferDone,
    TransferLost,
    Word,
)

FULL = (("full", 0),)
P = 4  # block size


def engine_of(role: str = "fused", **changes: object) -> Engine:
    return Engine(config_for(role, **changes), FULL, random.Random(1), role=role)


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=length)


def done(transfer: Transfer, *results: int) -> TransferDone:
    said = results or (1,) * len(transfer.moves)
    return TransferDone(transfer.ticket, np.array(said, np.uint8))


def run(engine: Engine) -> None:
    """Steps, without reports, until there is nothing to run."""
    while engine.step() is not None:
        engine.commit()


def only(engine: Engine, source: Tier, destination: Tier) -> Transfer:
    found = [t for t in engine.pending if (t.source, t.destination) == (source, destination)]
    assert len(found) == 1, engine.pending
    return found[0]


def acknowledge(engine: Engine, transfer: Transfer, *results: int) -> None:
    """Carries a transfer out at once and reports it."""
    engine._move(transfer)
    engine.pending.remove(transfer)
    engine.apply([done(transfer, *(results or transfer.results))])


def stored(engine: Engine, seed: int, length: int) -> list[int]:
    """A prompt that is cached on the host and no longer on the device."""
    prompt = prompt_of(seed, length)
    engine.submit(900, new_life(prompt, 1))
    run(engine)
    acknowledge(engine, only(engine, Tier.DEVICE, Tier.HOST))
    engine.submit(901, new_life(prompt_of(seed + 1, engine.config.max_model_len - 1), 1))
    run(engine)
    for transfer in list(engine.pending):
        acknowledge(engine, transfer)
    return prompt


def tight(**changes: object) -> Engine:
    """Room for one long prompt on the device and for several on the host."""
    fields = {"num_blocks": 17, "num_host_blocks": 80, "max_step_tokens": 64, "max_running": 2}
    return engine_of(**{**fields, **changes})


def test_a_hit_says_which_tier_it_is_from() -> None:
    engine = tight()
    prompt = stored(engine, 1, 22)
    engine.submit(1, new_life(prompt, 3))
    step = engine.step()
    assert step is not None and step.num_rows == 0, "its blocks are not there yet"
    load = only(engine, Tier.HOST, Tier.DEVICE)
    assert load.moves[:, 1].tolist() == [0, 1, 2, 3, 4]
    row = engine.tables[0, load.moves[:, 1]]
    assert row.tolist() == load.moves[:, 3].tolist(), "they come into the blocks of its own row"
    engine.commit()
    assert engine.step() is None
    acknowledge(engine, load)
    step = engine.step()
    assert step is not None
    assert (step.context_lens.tolist(), step.cached_lens.tolist()) == ([20], [20])
    assert engine.scheduler.stats().host_blocks_loaded == 5
    engine.settle()


def test_a_load_that_fails_is_computed_instead() -> None:
    for results in ((1, 1, 0, 1, 1), None):
        engine = tight()
        prompt = stored(engine, 1, 22)
        engine.submit(1, new_life(prompt, 3))
        engine.step()
        engine.commit()
        load = only(engine, Tier.HOST, Tier.DEVICE)
        if results is None:
            engine.pending.remove(load)
            engine.apply([TransferLost(load.ticket)])
            assert engine.scheduler.stats().blocks_quarantined == 5
        else:
            acknowledge(engine, load, *results)
            assert engine.scheduler.stats().blocks_quarantined == 0
        step = engine.step()
        assert step is not None
        assert (step.context_lens.tolist(), step.query_lens.tolist()) == ([0], [22])
        engine.commit()
        if results is None:
            engine.apply([done(load)])  # it is found
        engine.settle()


def test_a_copy_waits_for_nothing_but_what_it_reads() -> None:
    engine = tight()
    engine.submit(1, new_life(prompt_of(3, 21), 2))
    assert engine.step() is not None
    assert not engine.pending, "what this step computes is not copied before it is committed"
    engine.commit()
    engine.step()
    copy = only(engine, Tier.DEVICE, Tier.HOST)
    assert copy.after == 0 and len(copy.moves) == 5, "and then it may begin at once"
    engine.commit()
    acknowledge(engine, copy)
    engine.settle()


def test_each_transfer_names_its_source_guard() -> None:
    """A write-back pins what it reads until it is acknowledged; an image only until its step is."""
    engine = engine_of(num_blocks=12, num_host_blocks=40, max_running=2, max_step_tokens=64)
    for request_id in (1, 2):
        engine.submit(request_id, new_life(prompt_of(request_id, 19), 20))
    while engine.scheduler.stats().preemptions == 0:
        assert engine.step() is not None or engine.pending
        for transfer in list(engine.pending):
            if transfer.guard == Guard.PINNED:
                acknowledge(engine, transfer)
        if engine.flights and engine.scheduler.stats().preemptions == 0:
            engine.commit()
    image = next(t for t in engine.log if t.guard == Guard.ORDERED)
    assert (image.source, image.destination) == (Tier.DEVICE, Tier.HOST)
    used = engine.scheduler.stats().blocks_used
    engine.commit()
    assert engine.scheduler.stats().blocks_used < used, "its source is free, acknowledged or not"
    engine.settle()
    stats = engine.scheduler.stats()
    assert stats.images_stored == stats.images_restored == 1
    assert all(t.guard == Guard.PINNED for t in engine.log if t is not image)


def test_a_pinned_source_is_not_evicted() -> None:
    engine = tight()
    engine.submit(1, new_life(prompt_of(5, 20), 1))
    run(engine)
    copy = only(engine, Tier.DEVICE, Tier.HOST)
    assert engine.scheduler.stats().blocks_used == len(copy.moves) == 5
    engine.submit(2, new_life(prompt_of(6, 48), 1))
    assert engine.step() is None, "12 blocks are needed, 11 may be had"
    acknowledge(engine, copy)
    assert engine.step() is not None
    engine.commit()
    engine.settle()


def test_results_are_per_block() -> None:
    engine = tight()
    engine.submit(1, new_life(prompt_of(5, 20), 1))
    run(engine)
    acknowledge(engine, only(engine, Tier.DEVICE, Tier.HOST), 1, 0, 1, 0, 1)
    stats = engine.scheduler.stats()
    assert (stats.host_blocks_cached, stats.host_blocks_used, stats.transfers_failed) == (3, 0, 1)
    engine.settle()


@pytest.mark.parametrize("bad", ["unknown", "short", "odd", "twice", "peer"])
def test_a_bad_report_rejects_its_whole_batch(bad: str) -> None:
    engine = tight()
    engine.submit(1, new_life(prompt_of(5, 20), 1))
    run(engine)
    copy = only(engine, Tier.DEVICE, Tier.HOST)
    good = done(copy)
    reports = {
        "unknown": [good, TransferDone(77, np.array([1], np.uint8))],
        "short": [TransferDone(copy.ticket, np.array([1], np.uint8))],
        "odd": [done(copy, 1, 1, 1, 1, 2)],
        "twice": [good, TransferLost(copy.ticket)],
        "peer": [good, PeerProgress(3), PeerGone(3)],
    }[bad]
    before = engine.scheduler.stats()
    with pytest.raises(ValueError, match=r"report \d: (ticket|peer) \d+ "):
        engine.scheduler.apply(reports, 1.0)
    engine.scheduler.check()
    after = engine.scheduler.stats()
    assert after.transfers_in_flight == before.transfers_in_flight == 1
    assert after.blocks_used == before.blocks_used
    acknowledge(engine, copy)
    engine.settle()


def test_late_words_of_peers_that_nobody_knows_are_dropped() -> None:
    engine = engine_of("decode")
    engine.apply([PeerGone(5, quiet=True), PeerProgress(6), PeerDelivered(7, 3)])
    engine.audit_end()


# ---- Disk and remote -----------------------------------------------------------------------------


def test_what_a_store_has_comes_back() -> None:
    for store in ("disk", "remote"):
        engine = tight(**{store: True})
        prompt = prompt_of(8, 22)
        engine.submit(1, new_life(prompt, 1))
        engine.quiesce()
        assert len(engine.memory.stores[Tier[store.upper()]]) == 5
        engine.scheduler.reset_prefix_cache()
        engine.submit(2, new_life(prompt, 1))
        engine.quiesce()
        assert engine.scheduler.stats().host_blocks_loaded == 5
        engine.settle()


def test_a_store_is_not_asked_again_at_once_for_what_it_lacks() -> None:
    engine = tight(disk=True, absent_s=5.0)
    prompt = prompt_of(8, 22)
    for request_id, wait, asks in ((1, 0.0, True), (2, 1.0, False), (3, 10.0, True)):
        engine.now += wait
        engine.submit(request_id, new_life(prompt, 1))
        engine.step()
        questions = [t for t in engine.pending if t.destination == Tier.NONE]
        assert len(questions) == asks
        for question in questions:
            acknowledge(engine, question)
        engine.commit()
        engine.step()  # and hears that there is nothing to get
        engine.abort(request_id)
        while engine.flights:
            engine.commit()
        engine.scheduler.reset_prefix_cache()
    engine.settle()


# ---- Hand-overs ----------------------------------------------------------------------------------


def decoder(**changes: object) -> Scheduler:
    return Scheduler(config_for("decode", transfer_timeout_s=1e9, **changes))


def submit(scheduler: Scheduler, peer: int, prompt: list[int], max_tokens: int = 5) -> None:
    result = scheduler.submit(
        peer, np.array(prompt, np.int32), max_tokens, np.array([], np.int32), peer=peer, now=0.0
    )
    assert result is SubmitResult.ACCEPTED


def test_the_decode_role_owns_its_prompt_and_its_first_token() -> None:
    for length in (7, 8, 9):
        scheduler = decoder()
        prompt = prompt_of(length, length)
        submit(scheduler, 3, prompt)
        step = scheduler.step(0.0)
        assert step is not None and step.num_rows == 0
        t = step.transfers
        assert (t.sources.tolist(), t.destinations.tolist()) == ([Tier.PEER], [Tier.DEVICE])
        assert (t.prefix_lens.tolist(), t.prompt_lens.tolist()) == ([0], [length])
        assert t.moves[:, 1].tolist() == list(range((length + P - 1) // P))
        manifest = t.moves[:, 3].tolist()
        scheduler.commit(step.id, np.array([], np.int32))
        deltas = scheduler.apply([PeerDelivered(3, 42)], 0.0)
        assert (deltas.tokens.tolist(), deltas.finish.tolist()) == ([42], [0])
        step = scheduler.step(0.0)
        assert step is not None
        assert (step.tokens.tolist(), step.context_lens.tolist()) == ([42], [length])
        row = scheduler.block_tables[int(step.slots[0])]
        assert row[: len(manifest)].tolist() == manifest
        assert row[length // P] > 0, "the first decode has its place"
        scheduler.check()


def prefiller(**changes: object) -> Engine:
    return engine_of("prefill", **changes)


def ready(life: Life, peer: int, prefix_len: int = 0) -> PeerReady:
    length = len(life.prompt)
    columns = range(prefix_len // P, (length + P - 1) // P)
    blocks = np.array([[0, column, 20 + column] for column in columns], np.int32)
    return PeerReady(peer, prefix_len=prefix_len, prompt_len=length, blocks=blocks)


def test_the_completion_message_carries_all_that_its_reader_needs() -> None:
    """The first token goes last: when every block has arrived for certain."""
    engine = prefiller(max_step_tokens=8, layers_per_transfer=4)
    life = new_life(prompt_of(1, 14), 5)
    engine.submit(1, life, peer=9)
    assert engine.step() is None, "it waits for its peer"
    engine.apply([ready(life, 9, prefix_len=4)])
    sends = []
    for columns in ([1], [2, 3]):
        engine.step()
        sends.append(engine.pending[-1])
        assert sends[-1].moves[:, 1].tolist() == columns, "as chunks complete them"
        assert sends[-1].moves[:, 3].tolist() == [20 + column for column in columns]
        assert sends[-1].after == engine.flights[-1].step.id and sends[-1].layers == 4
        engine.commit()
    engine.pending.clear()
    assert engine.step() is None
    engine.apply([done(sends[1])])
    assert engine.step() is None, "one part is still on the way"
    engine.apply([done(sends[0])])
    engine.step()
    word = engine.pending.pop()
    assert (word.word, word.token) == (Word.HAND_OVER, life.expected[0])
    engine.commit()
    engine.apply([done(word)])
    assert life.finish == 4 and not engine.live
    engine.settle()


def test_hand_overs_outrank_prefills() -> None:
    engine = prefiller(num_blocks=12, max_step_tokens=8, max_running=5)
    lives = {peer: new_life(prompt_of(peer, 16), 5) for peer in (1, 2, 3)}
    for peer, life in lives.items():
        engine.submit(peer, life, peer=peer)
        engine.apply([ready(life, peer)])
    for _ in range(2):
        engine.step()
        engine.commit()
    first, second = engine.pending
    engine.step()
    engine.commit()
    assert engine.scheduler.stats().running >= 2, "the next prompt is under way"
    engine.apply([done(first), done(second)])
    engine.pending = [t for t in engine.pending if t not in (first, second)]
    step = engine.step()
    assert step is not None and step.num_rows == 1
    assert step.transfers.words[0] == Word.HAND_OVER, "and goes before what that sends"
    engine.commit()
    for transfer in list(engine.pending):
        engine.pending.remove(transfer)
        engine.apply([done(transfer)])
    assert lives[1].finish == 4


def test_no_block_is_reused_while_a_peer_may_touch_it() -> None:
    scheduler = decoder(num_blocks=7)
    submit(scheduler, 3, prompt_of(1, 20), 4)
    step = scheduler.step(0.0)
    assert step is not None
    ticket = int(step.transfers.tickets[0])
    scheduler.commit(step.id, np.array([], np.int32))
    scheduler.apply([TransferDone(ticket, np.array([1] * 5, np.uint8))], 0.0)
    assert scheduler.abort(3)
    submit(scheduler, 4, prompt_of(2, 20), 4)
    step = scheduler.step(1.0)
    assert step is not None and step.num_rows == 0
    assert step.transfers.words.tolist() == [Word.ABANDON], "the peer is told, and nobody let in"
    assert scheduler.stats().blocks_used == 5
    scheduler.commit(step.id, np.array([], np.int32))
    scheduler.apply([PeerGone(3)], 1.0)
    assert scheduler.stats().blocks_quarantined == 5, "the peer cannot be asked"
    scheduler.apply([PeerGone(3, quiet=True)], 2.0)
    assert scheduler.stats().blocks_used == 0
    step = scheduler.step(2.0)
    assert step is not None and step.transfers.sources.tolist() == [Tier.PEER]
    scheduler.check()


def test_the_prefill_role_says_good_bye_when_nothing_is_on_the_way() -> None:
    engine = prefiller()
    life = new_life(prompt_of(1, 14), 5)
    engine.submit(1, life, peer=9)
    engine.apply([ready(life, 9)])
    engine.step()
    engine.commit()
    send = engine.pending.pop()
    engine.abort(1)
    assert engine.step() is None and engine.scheduler.stats().blocks_used == 4
    engine.apply([done(send)])
    engine.step()
    assert engine.pending[-1].word == Word.ABANDON
    engine.commit()
    engine.settle()


def test_a_timer_starts_when_the_obligated_party_can_act() -> None:
    scheduler = decoder(peer_timeout_s=10.0)
    submit(scheduler, 3, prompt_of(1, 9))
    step = scheduler.step(0.0)
    assert step is not None
    scheduler.commit(step.id, np.array([], np.int32))
    assert scheduler.step(1000.0) is None and len(scheduler.take_ended().finish) == 0
    told = TransferDone(int(step.transfers.tickets[0]), np.array([1, 1, 1], np.uint8))
    scheduler.apply([told], 1000.0)
    scheduler.step(1009.0)
    scheduler.apply([PeerProgress(3)], 1009.0)
    scheduler.step(1018.0)
    assert len(scheduler.take_ended().finish) == 0
    scheduler.step(1020.0)
    assert scheduler.take_ended().finish.tolist() == [5]
    scheduler.check()

    waits = Scheduler(config_for("prefill", transfer_timeout_s=10.0))
    life = new_life(prompt_of(1, 9), 5)
    submit(waits, 9, life.prompt.tolist())
    assert waits.step(1e6) is None, "its peer may have a queue"
    assert len(waits.take_ended().finish) == 0
    waits.apply([ready(life, 9)], 1e6)
    step = waits.step(1e6)
    assert step is not None
    waits.commit(step.id, np.array([life.expected[0]], np.int32))
    waits.step(2e6)  # the send may begin from here on
    waits.step(2e6 + 9)
    assert waits.stats().transfers_lost == 0
    waits.step(2e6 + 11)
    assert waits.stats().transfers_lost == 1


def test_a_manifest_that_does_not_fit_is_refused() -> None:
    engine = prefiller()
    life = new_life(prompt_of(1, 14), 5)
    engine.submit(1, life, peer=9)
    whole = np.array([[0, column, 5] for column in range(4)], np.int32)
    for prefix_len, prompt_len, blocks, why in (
        (0, 13, whole, "a prompt of 13 tokens"),
        (3, 14, whole, "a prefix of 3 tokens"),
        (16, 14, whole, "a prefix of 16 tokens"),
        (4, 14, whole, "wants column 0"),
        (0, 14, whole[:3], "wants 3 blocks where 4"),
        (0, 14, whole[[0, 1, 2, 2]], "wants column 2"),
        (0, 14, whole * 0, "in block 0"),
    ):
        report = PeerReady(9, prefix_len=prefix_len, prompt_len=prompt_len, blocks=blocks)
        with pytest.raises(ValueError, match=why):
            engine.scheduler.apply([report], 0.0)
    engine.scheduler.check()
    engine.apply([ready(life, 9)])
    with pytest.raises(ValueError, match="nobody waits for that"):
        engine.scheduler.apply([ready(life, 9)], 0.0)
    engine.abort(1)
    engine.settle()


def test_a_hand_over_has_one_name_at_a_time() -> None:
    scheduler = decoder()
    submit(scheduler, 3, prompt_of(1, 9))
    result = scheduler.submit(
        8, np.array([1], np.int32), 1, np.array([], np.int32), peer=3, now=0.0
    )
    assert result is SubmitResult.PEER_IN_USE
    with pytest.raises(ValueError, match="a peer goes with"):
        scheduler.submit(8, np.array([1], np.int32), 1, np.array([], np.int32), now=0.0)


def test_quarantine_that_takes_all_room_ends_who_needs_it() -> None:
    engine = tight()
    prompt = stored(engine, 1, 40)
    engine.submit(1, new_life(prompt, 3))
    engine.step()
    engine.commit()
    load = only(engine, Tier.HOST, Tier.DEVICE)
    engine.pending.remove(load)
    engine.apply([TransferLost(load.ticket)])
    assert engine.scheduler.stats().blocks_quarantined == 9
    life = engine.live[1]
    assert engine.step() is None, "11 blocks are needed, 7 are left"
    assert engine.step() is None
    assert life.finish == 6 and not engine.live
    engine.apply([done(load)])
    engine.settle()


def test_a_pair_answers_as_one_engine_would() -> None:
    pair = Pair(config_for, FULL, random.Random(3), Chaos())
    lives = []
    for request_id in range(6):
        prompt = prompt_of(request_id % 3, 20 + request_id)
        both = (new_life(prompt, 8), new_life(prompt, 8))
        pair.submit(request_id, both)
        lives.append(both)
    pair.settle()
    assert all(p.finish == 4 and len(p.output) == 1 for p, _ in lives)
    assert all(d.finish == d.expected_finish and d.output == d.expected for _, d in lives)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("role", "both"),
        ("num_host_blocks", 1),
        ("disk", True),
        ("transfer_credits", 1),
        ("transfer_timeout_s", 0.0),
        ("peer_timeout_s", -1.0),
        ("absent_s", float("inf")),
        ("layers_per_transfer", -1),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field if field != "disk" else "num_host_blocks"):
        config: SchedulerConfig = config_for("fused")
        config = SchedulerConfig(
            num_blocks=config.num_blocks,
            block_size=4,
            max_running=2,
            max_step_tokens=8,
            max_model_len=32,
            prefix_cache=True,
            chunked_prefill=True,
            in_flight_depth=0,
            digest_key=(1, 2),
            **{field: value},  # type: ignore[arg-type]
        )
