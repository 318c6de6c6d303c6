"""Agents against the engine in this process and against a server, on a tiny model."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.rigs import build_rand
from tests.rigs.plans import dummy_plan, tiny_plan
from tests.server.live import serving
from tokenspeed.bench.agentic import inside, outside
from tokenspeed.bench.agentic.records import Record, summarise
from tokenspeed.bench.agentic.workload import (
    WORKLOADS,
    Corpus,
    Span,
    Workload,
    python_sources,
    scripts,
)
from tokenspeed.bench.engine import engine
from tokenspeed.cli import main
from tokenspeed.errors import UnavailableError

TINY = Workload("tiny", 48, Span(90, 120), Span(3, 4), Span(8, 24), Span(5, 9))
WORDS = Corpus(" ".join(f"w{number % 300}" for number in range(3000)))
BLOCK = 16


def silent(_: str) -> None:
    pass


def test_the_same_seed_gives_the_same_sessions_and_no_two_are_alike() -> None:
    for workload in WORKLOADS.values():
        first = list(itertools.islice(scripts(workload, 3), 20))
        assert first == list(itertools.islice(scripts(workload, 3), 20))
        numbers = {script.number for script in first}
        for others in (scripts(workload, 4), scripts(workload, 3, 1_000_000)):
            assert numbers.isdisjoint(script.number for script in itertools.islice(others, 20))
        for script in first:
            assert workload.turns.low <= len(script.turns) <= workload.turns.high
            tokens = script.system + sum(turn.added + turn.generated for turn in script.turns)
            assert tokens <= workload.most_tokens
    half = WORKLOADS["fixed"].scaled(0.5)
    assert (half.system, half.first) == (4000, Span(21000, 21000))
    assert half.added == WORKLOADS["fixed"].added


def test_text_goes_round() -> None:
    assert WORDS.words(5, 2998) == ["w298", "w299", "w0", "w1", "w2"]
    assert len(WORDS.words(7000, 10)) == 7000
    assert python_sources(100_000).size > 1000


def test_figures_of_turns_by_hand() -> None:
    records = [
        Record(0, 0, 100, 40, 40, 11, asked_s=0.0, first_s=1.0, last_s=2.0),
        Record(0, 1, 150, 110, 110, 21, asked_s=2.0, first_s=2.5, last_s=4.0),
        Record(1, 1, 200, 180, 190, 31, asked_s=1.0, first_s=1.25, last_s=5.0),
    ]
    level = summarise(records, users=2, devices=2)
    # User 0 has 32 tokens in 4 s, user 1 has 31 in 4 s; two devices.
    assert level.output_s == pytest.approx((32 / 4 + 31 / 4) / 2)
    assert level.prefill_s == pytest.approx((100 / 4 + 20 / 4) / 2)
    assert level.tpm == pytest.approx(60 * (282 / 4 + 231 / 4) / 2)
    assert level.tpm_computed == pytest.approx(60 * (132 / 4 + 51 / 4) / 2)
    assert level.tps_user == pytest.approx((10 + 20 + 30) / (1.0 + 1.5 + 3.75))
    assert level.ttft_first == (1.0, 1.0)
    assert level.ttft_later == (0.375, 0.5)
    assert level.hit_rate == pytest.approx(330 / 450)
    assert level.ideal_hit_rate == pytest.approx(340 / 450)
    assert (level.turns, level.seconds) == (3, 5.0)
    assert summarise(records[1:], 2, 1).ttft_first is None
    with pytest.raises(ValueError, match="no turn"):
        summarise([], 1, 1)


def test_what_is_seen_of_turns_that_began_before_or_end_after_by_hand() -> None:
    """Ten seconds of two users, seen from second 100 on."""
    records = [
        Record(0, 3, 900, 880, 890, 20, asked_s=97.0, first_s=100.0, last_s=102.0, begun=False),
        Record(0, 4, 1000, 950, 950, 31, asked_s=102.0, first_s=103.0, last_s=106.0),
        Record(0, 0, 500, 100, 100, 11, asked_s=106.0, first_s=108.5, last_s=109.5),
        Record(1, 7, 800, 790, 790, 100, asked_s=90.0, first_s=100.0, last_s=110.0, begun=False),
    ]
    level = summarise(records, users=2, devices=1, seconds=10.0)
    assert (level.turns, level.seconds) == (2, 10.0)
    assert level.output_s == pytest.approx((20 + 31 + 11 + 100) / 10)
    assert level.tps_user == pytest.approx((20 + 30 + 10 + 100) / (2 + 3 + 1 + 10))
    # Prompts that were paid for before count nowhere.
    assert level.prefill_s == pytest.approx((50 + 400) / 10)
    assert level.tpm == pytest.approx(60 * (1500 + 162) / 10)
    assert (level.ttft_first, level.ttft_later) == ((2.5, 2.5), (1.0, 1.0))
    assert level.hit_rate == level.ideal_hit_rate == pytest.approx(1050 / 1500)
    with pytest.raises(ValueError, match="no turn"):
        summarise(records[3:], 1, 1, 10.0)


def test_sessions_inside_find_what_they_said_before(tmp_path: Path) -> None:
    plan = dummy_plan(
        tiny_plan(build_rand(tmp_path / "m"), in_flight_depth=1, max_step_tokens=64, num_blocks=600)
    )
    ids = inside.Ids(WORDS, plan.model.config.vocab_size)
    with engine(plan, silent) as run:
        seen = inside.run_level(run, TINY, ids, 3, 0.1, 0.8, scripts(TINY, 1))
        assert run.stats().running == run.stats().blocks_cached == 0
    records = seen.records
    assert seen.seconds >= 0.8
    assert {record.user for record in records} == {0, 1, 2}
    assert max(record.turn for record in records) >= 2
    whole = 0
    for record in records:
        assert 1 <= record.output <= TINY.generated.high
        assert record.first_s <= record.last_s
        whole += record.begun and record.output >= TINY.generated.low
        if record.begun:
            assert record.asked_s < record.first_s
            # All of it, but what does not fill a block where it is short or no answer ended there.
            assert record.cached in (record.ideal, record.ideal // BLOCK * BLOCK)
    # Of a user's turns only the first seen may have begun before, and only the last seen be cut.
    assert sum(not record.begun for record in records) <= 3
    assert whole >= len(records) - 6
    level = summarise(records, 3, 1, seen.seconds)
    assert level.ideal_hit_rate - 0.1 < level.hit_rate <= level.ideal_hit_rate


def test_sessions_outside_talk_to_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build_rand(tmp_path / "m", max_position_embeddings=4096)
    plan = tiny_plan(folder, max_step_tokens=256, num_blocks=1200)
    workload = Workload("tiny", 40, Span(60, 90), Span(2, 3), Span(8, 24), Span(5, 9))
    (tmp_path / "run").mkdir()
    each = scripts(workload, 1)
    with serving(plan, folder, tmp_path / "run") as server:
        endpoint = outside.Endpoint(f"http://127.0.0.1:{server.port}", "tiny")
        records = asyncio.run(outside.run_level(endpoint, workload, WORDS, 2, 1.5, each))
        other = outside.Endpoint(endpoint.url, "another")
        assert outside.most_tokens(endpoint) == plan.scheduler.max_model_len == 4096
        assert outside.most_tokens(other) is None
        # Told before the prompts are sent, with the way out.
        asked = ["agentic", "--url", endpoint.url, "--model", "tiny", "--workload", "fixed"]
        assert main(["bench", *asked]) == 64
        with pytest.raises(UnavailableError, match="another"):
            asyncio.run(outside.run_level(other, workload, WORDS, 1, 0.1, each))
    told = capsys.readouterr().err
    assert "and requests have 4096 at most" in told
    assert "a server with a longer context" in told
    assert outside.most_tokens(endpoint) is None  # nobody there
    assert {record.user for record in records} == {0, 1}
    later = [record for record in records if record.turn > 0]
    assert later
    for record in records:
        assert record.output <= workload.generated.high
        assert record.prompt > workload.first.low
    # The template and what the tokenizer makes of a decoded answer are not the bench's to know.
    assert all(record.cached > 0 for record in later)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """Of what was just measured, and of what was kept beside a peer that told less."""
    pytest.importorskip("matplotlib")
    from tokenspeed.bench.agentic import pareto

    level = summarise([Record(0, 1, 100, 90, 95, 20, 0.0, 0.5, 1.5)], 1, 1)
    pareto.draw({"fixed": [level], "varied": [level]}, "tiny", tmp_path / "one.png")
    pair = [level, replace(level, users=2, tps_user=5.0)]
    for name, order in (("up", pair), ("down", pair[::-1])):
        pareto.draw({"fixed": order}, "tiny", tmp_path / f"{name}.png")
    assert (tmp_path / "up.png").read_bytes() == (tmp_path / "down.png").read_bytes()
    body = {"device": "a card", "recipe": "ours", "levels": {"fixed": [asdict(level)]}}
    (tmp_path / "ours.json").write_text(json.dumps(body))
    told = {"users": 1, "tps_user": 10.0, "output_s": 9.0}
    body = {"device": "a card", "recipe": "", "label": "peer", "levels": {"fixed": [told]}}
    (tmp_path / "peer.json").write_text(json.dumps(body))
    pareto.main(tmp_path / "two.png", [tmp_path / "ours.json", tmp_path / "peer.json"])
    for name in ("one", "two"):
        assert (tmp_path / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
