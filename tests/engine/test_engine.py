"""The engine against a peer that speaks the wire protocol."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.conftest import CAPACITY, Peer, request, token, until
from tokenspeed.engine import Answer, Down, Engine, EngineUnavailable, Loading, Ready, link
from tokenspeed.request import Delta, FinishReason, Request, SamplingParams
from tokenspeed.wire import (
    PROTOCOL_VERSION,
    Abort,
    AskStats,
    EngineStats,
    Flush,
    Flushed,
    Heartbeat,
    Hello,
    Outputs,
    Profile,
    Profiled,
    SetLogLevel,
    Shutdown,
    Starting,
    StatsAnswer,
    Submit,
    encode_to_front,
    framed,
)

pytestmark = pytest.mark.anyio


async def test_loading_then_ready(engine: Engine, peer: Peer) -> None:
    waiting = asyncio.create_task(engine.wait_ready())
    with pytest.raises(EngineUnavailable, match="loading"):
        engine.generate(request())
    await peer.receive(Hello)
    await peer.send(Starting("weights", 0.5))
    await until(lambda: engine.state == Loading("weights", 0.5))
    await peer.make_ready()
    assert await waiting == Ready(CAPACITY)
    assert engine.state == await engine.wait_ready() == Ready(CAPACITY)


async def test_an_answer_in_order(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    answer = engine.generate(request(7))
    assert engine.open_requests == 1
    assert await peer.receive(Submit) == Submit(request(7))
    await peer.deltas(Delta(request_id=7, tokens=(1,), cached_tokens=3))
    first = await anext(answer)
    assert (first.tokens, first.cached_tokens) == ((1,), 3)
    await peer.deltas(token(7, 2, finish=FinishReason.STOP))
    rest = [delta async for delta in answer]
    assert [delta.finish_reason for delta in rest] == [FinishReason.STOP]
    assert engine.open_requests == 0
    assert [delta async for delta in answer] == []


async def test_a_slow_consumer_gets_merged_deltas(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    answer = engine.generate(request(1))
    for number in range(100):
        await peer.deltas(Delta(request_id=1, tokens=(number,), cached_tokens=number or 16))
    await peer.deltas(token(1, 100, finish=FinishReason.LENGTH))
    await until(lambda: engine.open_requests == 0)
    (merged,) = [delta async for delta in answer]
    assert merged.tokens == tuple(range(101))
    assert merged.cached_tokens == 16
    assert merged.finish_reason is FinishReason.LENGTH


async def test_c23_leaving_early_aborts(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    with contextlib.closing(engine.generate(request(1))) as answer:
        await peer.deltas(token(1, 5))
        await anext(answer)
    assert await peer.receive(Submit)
    assert await peer.receive(Abort) == Abort(1)
    assert engine.open_requests == 0
    await peer.deltas(token(1, 6, finish=FinishReason.ABORT))  # already under way: no one's
    answer.close()
    other = engine.generate(request(2))
    await peer.deltas(token(2, 9, finish=FinishReason.STOP))
    assert (await anext(other)).tokens == (9,)


async def test_closing_wakes_a_waiting_consumer(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    answer = engine.generate(request(1))
    consumer = asyncio.create_task(anext(answer, None))
    await asyncio.sleep(0)
    answer.close()
    assert await consumer is None


async def test_a_finished_answer_is_not_aborted(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    with contextlib.closing(engine.generate(request(1))) as answer:
        await peer.deltas(token(1, 5, finish=FinishReason.STOP))
        await anext(answer)
    engine.shutdown_worker()
    assert await peer.receive(Submit)
    assert await peer.receive(Shutdown) == Shutdown()


async def test_c17_worker_death_ends_every_request_once(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    answers = [engine.generate(request(number)) for number in range(5)]
    await peer.deltas(token(0, 1), token(1, 2, finish=FinishReason.STOP))
    await until(lambda: engine.open_requests == 4)
    engine.disconnect("killed by signal 9")
    assert engine.open_requests == 0
    assert engine.state == Down("killed by signal 9")
    ends = [[delta async for delta in answer][-1] for answer in answers]
    assert [end.finish_reason for end in ends] == [
        FinishReason.ERROR,
        FinishReason.STOP,
        *[FinishReason.ERROR] * 3,
    ]
    assert ends[0].tokens == (1,)
    assert ends[0].error == "killed by signal 9"
    with pytest.raises(EngineUnavailable, match="killed by signal 9"):
        engine.generate(request(9))
    with pytest.raises(EngineUnavailable, match="killed by signal 9"):
        await engine.wait_ready()


async def test_a_new_incarnation_serves_again(engine: Engine, peer: Peer, tmp_path: Path) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    engine.asking.set_log_level("debug")
    assert await peer.receive(SetLogLevel) == SetLogLevel("debug")
    engine.disconnect("gone")
    second = Peer(f"{tmp_path}/worker-2.sock")
    engine.connect(second.endpoint)  # before the worker listens
    assert isinstance(engine.state, Loading)
    await second.listen()
    await second.make_ready()
    await engine.wait_ready()
    assert await second.receive(SetLogLevel) == SetLogLevel("debug")  # as the last one
    answer = engine.generate(request(3))
    assert await second.receive(Submit) == Submit(request(3))
    await second.deltas(token(3, 4, finish=FinishReason.STOP))
    assert (await anext(answer)).tokens == (4,)
    with contextlib.suppress(ConnectionError):
        await peer.deltas(token(3, 66))  # the dead worker's socket is no longer read
    await second.close()


async def test_stats_and_their_time_out(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    asked = asyncio.create_task(engine.stats(5))
    query = await peer.receive(AskStats)
    assert isinstance(query, AskStats)
    await peer.send(StatsAnswer(query.query_id, EngineStats(running=3)))
    assert (await asked).running == 3
    with pytest.raises(EngineUnavailable, match="no answer within"):
        await engine.stats(0.02)
    await peer.send(StatsAnswer(query.query_id + 1, EngineStats()))  # too late: ignored
    asked = asyncio.create_task(engine.stats(5))
    await asyncio.sleep(0)
    engine.disconnect("gone")
    with pytest.raises(EngineUnavailable, match="gone"):
        await asked
    with pytest.raises(EngineUnavailable, match="gone"):
        await engine.stats(5)


async def test_heartbeats_keep_the_age_small(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    before = engine.last_heartbeat
    await peer.send(Heartbeat(turns=1))
    await until(lambda: engine.last_heartbeat > before)
    assert engine.heartbeat_age >= 0


async def test_draining_refuses_new_and_waits_for_open_requests(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    await engine.drained()
    answer = engine.generate(request(1))
    engine.start_draining()
    with pytest.raises(EngineUnavailable, match="draining"):
        engine.generate(request(2))
    drained = asyncio.create_task(engine.drained())
    await asyncio.sleep(0.01)
    assert not drained.done()
    await peer.deltas(token(1, 1, finish=FinishReason.STOP))
    await asyncio.wait_for(drained, 5)
    assert [delta.tokens async for delta in answer] == [(1,)]


async def test_abort_all_ends_every_request_through_the_worker(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    answer = engine.generate(request(1))
    engine.abort_all()
    await peer.receive(Submit)
    assert await peer.receive(Abort) == Abort(1)
    await peer.deltas(token(1, finish=FinishReason.ABORT))
    assert [delta.finish_reason async for delta in answer] == [FinishReason.ABORT]


async def test_c36_malformed_frames_are_dropped_and_counted(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    ours = b"\x93" + bytes([PROTOCOL_VERSION])
    old = encode_to_front(Outputs(()), "front-1").replace(ours, b"\x93\x63", 1)
    await peer.send_raw(b"", b"\x00" * 64, b"\x80\x04cos\nsystem\n", b"a", b"b", old)
    await until(lambda: engine.bad_frames == 6)
    answer = engine.generate(request(1))
    await peer.deltas(token(1, 5, finish=FinishReason.STOP))
    assert (await anext(answer)).tokens == (5,)


async def test_several_fronts_on_one_worker(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    other = Engine("front-2")
    other.connect(peer.endpoint)
    try:
        await peer.make_ready()
        await other.wait_ready()
        mine, theirs = engine.generate(request(1)), other.generate(request(1))
        for number in range(2):
            await peer.receive(Submit)
            await peer.deltas(token(1, *peer.front[-1:].encode(), finish=FinishReason.STOP))
            assert number < 2
        assert (await anext(mine)).tokens == (ord("1"),)
        assert (await anext(theirs)).tokens == (ord("2"),)
    finally:
        await other.close()


async def test_what_is_asked_of_the_worker_beside_requests(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    flushing = asyncio.ensure_future(engine.asking.flush())
    profiling = asyncio.ensure_future(engine.asking.profile(3, 1.0))
    flush, profile = await peer.receive(Flush), await peer.receive(Profile)
    assert (profile.steps, profile.seconds) == (3, 1.0)
    await peer.send(Profiled(query_id=profile.query_id, file="/f", steps=3))
    await peer.send(Flushed(query_id=flush.query_id, blocks=7))
    assert (await flushing, (await profiling).file) == (7, "/f")
    waiting = asyncio.ensure_future(engine.asking.flush())
    await peer.receive(Flush)
    engine.disconnect("it died")
    with pytest.raises(EngineUnavailable, match="it died"):
        await waiting
    with pytest.raises(EngineUnavailable, match="it died"):
        await engine.asking.profile(1, 1.0)


async def test_a_pause_ends_and_a_drain_does_not(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    engine.paused = True
    with pytest.raises(EngineUnavailable, match="draining"):
        engine.require_available()
    engine.paused = False
    engine.require_available()
    engine.start_draining()
    engine.paused = False
    assert engine.draining


@pytest.mark.parametrize("refusals", [0, 3], ids=["at-once", "once-files-may-be-opened"])
async def test_a_worker_that_hung_up_is_connected_again(
    engine: Engine, peer: Peer, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    await peer.make_ready()
    await engine.wait_ready()
    answer = engine.generate(request(1))
    await peer.receive(Submit)
    full = [OSError(errno.EMFILE, "too many open files")] * refusals

    def scarce(*args: Any) -> socket.socket:
        if full:
            raise full.pop()
        return socket.socket(*args)

    monkeypatch.setattr(link, "socket", SimpleNamespace(**{**vars(socket), "socket": scarce}))
    peer.hang_up()
    assert [delta.finish_reason async for delta in answer] == [FinishReason.ERROR]
    assert not full and not failures
    again = engine.generate(request(2))
    assert await peer.receive(Submit) == Submit(request(2))
    await peer.deltas(token(2, 5, finish=FinishReason.STOP))
    assert [delta.tokens async for delta in again] == [(5,)]


async def test_a_worker_that_hung_up_behind_its_last_frame(
    engine: Engine, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes it sends at once, and so meets the end that was read with it once more."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    await peer.make_ready()
    await engine.wait_ready()
    again: list[Answer] = []

    def take(_: Delta) -> None:
        again.append(engine.generate(request(2)))

    delivery = asyncio.create_task(engine.generate(request(1)).deliver(take))
    await peer.receive(Submit)
    last = Outputs((token(1, 5, finish=FinishReason.STOP),))
    frame = framed(encode_to_front(last, peer.front))
    monkeypatch.setattr(link, "READ_BYTES", len(frame))
    await peer.send_bytes(frame)
    peer.hang_up()
    await delivery
    assert [delta.finish_reason async for delta in again[0]] == [FinishReason.ERROR]
    assert engine.generate(request(3)).request_id == 3
    assert await peer.receive(Submit) == Submit(request(3))
    assert not failures


async def test_what_is_no_stream_of_frames_ends_the_connection(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    answer = engine.generate(request(1))
    await peer.receive(Submit)
    await peer.send_bytes(b"\xff" * 64)
    assert [delta.finish_reason async for delta in answer] == [FinishReason.ERROR]


async def test_frames_of_any_size_arrive_whole(engine: Engine, peer: Peer) -> None:
    """Larger than what the kernel takes at once, in both directions."""
    await peer.make_ready()
    await engine.wait_ready()
    long = Request(request_id=1, tokens=bytes(4_000_000), max_tokens=8, sampling=SamplingParams())
    answers = [engine.generate(long), engine.generate(request(2))]
    sent = await peer.receive(Submit)
    assert isinstance(sent, Submit) and sent.request == long
    assert await peer.receive(Submit) == Submit(request(2))
    many = tuple(range(400_000))
    await peer.deltas(token(1, *many), token(1, 7, finish=FinishReason.STOP))
    await peer.deltas(token(2, 3, finish=FinishReason.STOP))
    said = [token async for delta in answers[0] for token in delta.tokens]
    assert said == [*many, 7]
    assert [delta.tokens async for delta in answers[1]] == [(3,)]


async def test_what_came_together_is_handed_over_as_one(engine: Engine, peer: Peer) -> None:
    await peer.make_ready()
    await engine.wait_ready()
    answers = {number: engine.generate(request(number)) for number in (1, 2)}
    taken: list[tuple[int, tuple[int, ...]]] = []

    async def take_all(number: int) -> None:
        await answers[number].deliver(lambda delta: taken.append((number, delta.tokens)))

    tasks = [asyncio.create_task(take_all(number)) for number in answers]
    await peer.receive(Submit)
    await peer.receive(Submit)
    steps = [
        Outputs((token(1, 10), token(2, 20))),
        Outputs((token(1, 11), token(2, 21, finish=FinishReason.STOP))),
        Heartbeat(turns=2),
        Outputs((token(1, 12, finish=FinishReason.LENGTH),)),
    ]
    frames = [framed(encode_to_front(step, "front-1")) for step in steps]
    await peer.send_bytes(b"".join(frames))
    await asyncio.gather(*tasks)
    assert taken == [(1, (10, 11)), (2, (20, 21)), (1, (12,))]
    assert engine.open_requests == 0
