"""The bench of the front, and acceptance in small: no stream is lost, memory does not grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs import build_rand
from tests.rigs.plans import tiny_plan
from tokenspeed.bench import front as bench


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bench.Front]:
    folder = build_rand(tmp_path_factory.mktemp("rand") / "model")
    plan = tiny_plan(folder, max_running=1024, max_model_len=1 << 20)
    with bench.fronting(plan, folder, 0.002) as front:
        yield front


def test_many_streams_lose_none(front: bench.Front) -> None:
    found = bench.measure_streams(front, 256, 20)
    assert (found.streams, found.lost) == (256, 0)
    assert found.cpu_us_per_token > 0


def test_memory_does_not_grow_with_requests(front: bench.Front) -> None:
    bench.measure_memory(front, 400)
    memory = bench.measure_memory(front, 1000)
    # A leak of a request's parts is kilobytes each; the allocator's own ups and downs are not.
    assert memory.late_bytes - memory.early_bytes < 3 << 20


def test_turns_are_measured(front: bench.Front) -> None:
    turns = bench.measure_turns(front, turns=1)
    assert turns.prompt_tokens > 30_000
    for cost in (turns.first, turns.later, turns.spread, turns.short):
        assert 0 < cost.arrival_ms < cost.whole_ms


def test_a_conversation_grows_at_its_end() -> None:
    talk = bench.Conversation(1)
    talk.grow(1600)
    before = list(talk.messages)
    talk.grow(800)
    assert talk.messages[: len(before)] == before
    assert len(talk.messages) == len(before) + 3


def test_the_plan_has_room_and_the_template(smollm2_dir: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "smollm2-135m-cpu.yaml"
    plan = bench.bench_plan(recipe)
    assert plan.model.chat_template == bench.TEMPLATE
    assert plan.scheduler.max_model_len > bench.CONTEXT_TOKENS
