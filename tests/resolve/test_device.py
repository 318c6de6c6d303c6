"""Where a recipe runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tokenspeed.errors import ResolveError
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware


def test_a_gpu_is_taken_if_there_is_one(resolved: Resolver, h200: Hardware) -> None:
    assert resolved(SMALL, h200).plan.device.kind == "cuda"
    assert resolved(SMALL, h200, "device=cpu").plan.device.kind == "cpu"


def test_a_gpu_that_is_not_there(resolved: Resolver, cpu: Hardware) -> None:
    noted = replace(cpu, notes=("no driver answers",))
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, noted, "device=cuda", "model.max_context=9999")
    assert [p.code for p in caught.value.problems] == ["TS-R020", "TS-H010"]
    assert "no driver answers" in caught.value.problems[1].message


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_the_machine_to_plan_for_instead_is_of_the_kind_that_was_asked_for(
    resolved: Resolver, cpu: Hardware, kind: str
) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, f"device={kind}")
    hint = caught.value.problems[0].hint
    assert resolved(SMALL, load_hardware(hint.split()[-1])).plan.device.kind == kind


def test_threads(resolved: Resolver, cpu: Hardware) -> None:
    assert resolved(SMALL, cpu, "limits.threads=8").plan.device.threads == 8
    with pytest.raises(ResolveError) as caught:
        resolved(SMALL, cpu, "limits.threads=9")
    assert caught.value.problems[0].hint == "write at most 8"


def test_threads_mean_nothing_to_a_gpu_and_that_is_said(resolved: Resolver, h200: Hardware) -> None:
    resolution = resolved(SMALL, h200, "limits.threads=4")
    (decision,) = (d for d in resolution.decisions if d.field == "device.threads")
    assert (decision.value, decision.origin) == (0, "--set limits.threads=4")
    assert "this plan runs on a GPU" in decision.reason


@pytest.mark.parametrize("tp", [3, 5, 64])
def test_heads_that_do_not_split(resolved: Resolver, h200: Hardware, tp: int) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(DENSE, h200, f"parallel.attention.tp={tp}")
    (problem,) = caught.value.problems
    assert problem.code == "TS-R022"
    assert problem.hint == "write one of 1, 2, 4, 8, 16, 32"


def test_replicas_multiply_the_ranks(resolved: Resolver, h200: Hardware) -> None:
    plan = resolved(DENSE, h200, "parallel.attention={tp: 2, dp: 4}").plan
    assert plan.parallel.world_size == 8
    assert plan.device.count == 8
