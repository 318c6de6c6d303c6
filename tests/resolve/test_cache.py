"""The budget is kept whatever the recipe asks for, and what does not fit names what would."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.types import Hardware


def test_items_sum_to_the_budget(resolved: Resolver, cpu: Hardware, h200: Hardware) -> None:
    for text, hardware in ((SMALL, cpu), (DENSE, h200)):
        memory = resolved(text, hardware).plan.memory
        assert sum(item.bytes for item in memory.items) == memory.budget_bytes
        assert memory.budget_bytes < memory.device_bytes
        assert all(item.note for item in memory.items)


def test_a_cpu_gives_the_cache_an_eighth(resolved: Resolver, cpu: Hardware) -> None:
    cache = resolved(SMALL, cpu).plan.cache
    share = cpu.memory_bytes // 8
    assert share - cache.bytes_per_block < cache.num_blocks * cache.bytes_per_block <= share


def test_no_more_than_the_requests_can_use(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu, "limits.max_running=2", "model.max_context=100").plan
    assert plan.cache.num_blocks == 2 * 7 + 1


def test_a_gpu_gives_the_cache_what_is_left(resolved: Resolver, h200: Hardware) -> None:
    memory = resolved(DENSE, h200).plan.memory
    headroom = next(item for item in memory.items if item.name == "headroom")
    assert 0 < headroom.bytes < 0.03 * memory.budget_bytes


def test_a_size_becomes_blocks(resolved: Resolver, cpu: Hardware) -> None:
    cache = resolved(SMALL, cpu, "kv.size=100MiB").plan.cache
    assert cache.num_blocks == 100 * 2**20 // cache.bytes_per_block


def test_a_number_of_blocks(resolved: Resolver, cpu: Hardware) -> None:
    assert resolved(SMALL, cpu, "kv.blocks=77").plan.cache.num_blocks == 77


@pytest.mark.parametrize(
    ("overrides", "code", "path"),
    [
        (["limits.memory=17GiB"], "TS-M002", "limits.memory"),
        (["limits.memory=300MiB"], "TS-M001", "limits.memory"),
        (["kv.size=14GiB"], "TS-M003", "kv.size"),
        (["kv.blocks=100000"], "TS-M003", "kv.blocks"),
        (["kv.size=1MiB"], "TS-M003", "kv.size"),
    ],
)
def test_what_does_not_fit(
    resolved: Resolver, cpu: Hardware, overrides: list[str], code: str, path: str
) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, *overrides)
    assert (code, path) in [(p.code, p.path) for p in caught.value.problems]


@pytest.mark.parametrize("override", ["kv.size=14GiB", "kv.blocks=100000", "kv.size=1MiB"])
def test_what_the_message_says_would_fit_does(
    resolved: Resolver, cpu: Hardware, override: str
) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, override)
    (problem,) = caught.value.problems
    suggestion = re.search(r"write at (?:most|least) (\w+)", problem.hint)
    assert suggestion
    plan = resolved(SMALL, cpu, f"{problem.path}={suggestion[1]}").plan
    assert sum(item.bytes for item in plan.memory.items) == plan.memory.budget_bytes


def test_a_model_that_is_too_large(resolved: Resolver, cpu: Hardware) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(DENSE, cpu, "quantization.weights=float32")
    problem = caught.value.problems[0]
    assert problem.code == "TS-M001"
    assert problem.message.startswith("weights 30.5")
    assert "take a device with" in problem.hint


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    memory=st.integers(min_value=64, max_value=20_000),
    running=st.integers(min_value=1, max_value=512),
    context=st.integers(min_value=1, max_value=9_000),
    block=st.sampled_from([1, 16, 64, 1024]),
)
def test_a_plan_keeps_its_budget_or_is_refused(
    resolved: Resolver, cpu: Hardware, memory: int, running: int, context: int, block: int
) -> None:
    overrides = (
        f"limits.memory={memory}MiB",
        f"limits.max_running={running}",
        f"model.max_context={context}",
        f"kv.block_size={block}",
    )
    try:
        plan = resolved(SMALL, cpu, *overrides).plan
    except ResolveError as error:
        assert all(problem.hint for problem in error.problems)
        return
    assert sum(item.bytes for item in plan.memory.items) == plan.memory.budget_bytes
    assert (plan.cache.num_blocks - 1) * plan.cache.block_size >= plan.scheduler.max_model_len
    assert plan.scheduler.max_step_tokens >= plan.scheduler.max_running
