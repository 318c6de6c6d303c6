"""Context and steps: bounded by the model, and consistent with each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.types import Hardware
from tokenspeed.resolve.facts import ModelFacts, model_facts


def tiny(loaded: object, max_position: int = 128) -> ModelFacts:
    assert callable(loaded)
    facts = model_facts(loaded(SMALL))
    return replace(facts, config=replace(facts.config, max_position=max_position))


def test_a_longer_context_than_the_model_has_is_refused(
    resolved: Resolver, loaded: object, cpu: Hardware
) -> None:
    """C09 a."""
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, "model.max_context=256", model=tiny(loaded))
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("TS-R020", "model.max_context")
    assert problem.hint == "write at most 128, or advanced.beyond_model_context: true"


def test_a_silent_recipe_gets_the_model_s_context(
    resolved: Resolver, loaded: object, cpu: Hardware
) -> None:
    """C09 b."""
    assert resolved(SMALL, cpu, model=tiny(loaded)).plan.scheduler.max_model_len == 128


def test_a_shorter_context_is_taken(resolved: Resolver, loaded: object, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu, "model.max_context=64", model=tiny(loaded)).plan
    assert plan.scheduler.max_model_len == 64


def test_a_small_cache_lowers_a_context_that_nobody_fixed(
    resolved: Resolver, cpu: Hardware
) -> None:
    resolution = resolved(SMALL, cpu, "kv.blocks=65")
    assert resolution.plan.scheduler.max_model_len == 64 * 16
    (decision,) = (d for d in resolution.decisions if d.field == "scheduler.max_model_len")
    assert (decision.source, decision.reason) == (
        "hardware",
        "what the cache holds; the model reaches 8192",
    )


def test_and_refuses_one_that_was(resolved: Resolver, cpu: Hardware) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, "kv.blocks=65", "model.max_context=1025")
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("TS-M004", "model.max_context")
    assert "at most 1024" in problem.hint


def test_whole_prompts_need_room_in_a_step(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu, "limits.chunked_prefill=false").plan
    assert plan.scheduler.max_step_tokens == 8192
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, "limits.chunked_prefill=false", "limits.max_step_tokens=4096")
    assert "model.max_context: 4096" in caught.value.problems[0].hint


def test_answers_wait_for_a_part_of_a_step(resolved: Resolver, cpu: Hardware) -> None:
    def mixed(*overrides: str) -> int:
        return resolved(SMALL, cpu, *overrides).plan.scheduler.max_mixed_tokens

    assert mixed("limits.max_step_tokens=400") == 100
    assert mixed("limits.max_step_tokens=2", "limits.max_running=2") == 1
    assert mixed("limits.chunked_prefill=false") == 8192, "a prompt that is not cut goes whole"
    assert mixed("limits.max_mixed_tokens=33") == 33


def test_prompts_that_pile_up_may_take_more(
    resolved: Resolver, cpu: Hardware, h200: Hardware
) -> None:
    def backlog(hardware: Hardware, *overrides: str) -> tuple[int, int]:
        plan = resolved(SMALL, hardware, *overrides).plan.scheduler
        return plan.max_mixed_tokens, plan.max_backlog_tokens

    assert backlog(cpu) == (128, 128), "a CPU computes prompts no faster in larger chunks"
    on_gpu = ("device=cuda", "limits.max_mixed_tokens=64")
    assert backlog(h200, *on_gpu) == (64, 256)
    assert backlog(h200, *on_gpu, "limits.max_step_tokens=200", "limits.max_running=8") == (64, 200)
    assert backlog(cpu, "limits.max_mixed_tokens=9999") == (9999, 9999)
    assert backlog(cpu, "advanced.max_backlog_tokens=300") == (128, 300)
    with pytest.raises(ResolveError, match=r"write at least 128"):
        resolved(SMALL, cpu, "advanced.max_backlog_tokens=100")
    assert resolved(SMALL, cpu, "advanced.cache_lead=0s").plan.scheduler.cache_lead_seconds == 0


def test_every_running_request_has_a_token_in_a_step(resolved: Resolver, cpu: Hardware) -> None:
    assert resolved(SMALL, cpu, "limits.max_running=1000").plan.scheduler.max_step_tokens == 1000
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, "limits.max_running=64", "limits.max_step_tokens=32")
    assert [p.code for p in caught.value.problems] == ["TS-R021"]


@pytest.mark.parametrize("depth", [0, 1])
def test_the_depth_is_the_recipe_s(resolved: Resolver, cpu: Hardware, depth: int) -> None:
    plan = resolved(SMALL, cpu, f"advanced.in_flight_depth={depth}").plan
    assert plan.scheduler.in_flight_depth == depth


def test_what_is_forced_is_jumped_from_a_length_on(
    resolved: Resolver, cpu: Hardware, h200: Hardware
) -> None:
    assert resolved(SMALL, cpu).plan.scheduler.jump_ahead == 1
    assert resolved(DENSE, h200).plan.scheduler.jump_ahead == 4
    assert resolved(DENSE, h200, "advanced.jump_ahead=0").plan.scheduler.jump_ahead == 0


def test_a_gpu_is_scheduled_ahead_of(resolved: Resolver, h200: Hardware) -> None:
    assert resolved(DENSE, h200).plan.scheduler.in_flight_depth == 1
