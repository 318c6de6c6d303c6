"""Predictions: bands that hold what was measured, and parts that move as they must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tests.resolve.points import MEASURED, predictor
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import PredictedStep
from tokenspeed.resolve.predict import GPU
from tokenspeed.resolve.roofline import Decode

POINTS = [
    (case, context, batch, rate)
    for case, contexts in MEASURED.items()
    for context, measured in contexts.items()
    for batch, rate in measured.items()
]


@pytest.mark.parametrize(("case", "context", "batch", "rate"), POINTS)
def test_bands_hold_what_a_public_engine_reaches(
    case: tuple[str, str, str], context: int, batch: int, rate: float
) -> None:
    """With the profile's own ceilings no measured figure is above the fast edge, and none of
    them is below the slow one."""
    ours = predictor(*case)
    step = Decode(batch, context)
    assert ours.seconds(step, "fast") < 1 / rate < ours.seconds(step, "slow")


def test_cases_are_in_order() -> None:
    for case, context, batch, _ in POINTS:
        ours = predictor(*case)
        fast, expected, slow = (
            ours.seconds(Decode(batch, context), which) for which in ("fast", "expected", "slow")
        )
        assert fast < expected < slow


def point(steps: tuple[PredictedStep, ...], batch: int, context: int) -> PredictedStep:
    return next(step for step in steps if (step.batch, step.context) == (batch, context))


def test_what_bounds_each_point(resolved: Resolver, h200: Hardware) -> None:
    steps = resolved(DENSE, h200).plan.prediction.steps
    assert point(steps, 1, 1_000).bound == "weights"
    assert point(steps, 128, 16_000).bound == "kv"
    small = resolved(SMALL, h200).plan.prediction.steps
    assert point(small, 1, 1_000).bound == "launches"


def test_four_numbers_of_a_point_agree(resolved: Resolver, h200: Hardware) -> None:
    for step in resolved(DENSE, h200).plan.prediction.steps:
        assert step.fast_s < step.step_s < step.slow_s
        assert step.tokens_per_s_user == pytest.approx(1 / step.step_s, rel=1e-3)
        assert step.tokens_per_min_device == pytest.approx(60 * step.batch / step.step_s, rel=1e-3)


def test_what_does_not_fit_is_marked(resolved: Resolver, h200: Hardware) -> None:
    plan = resolved(DENSE, h200).plan
    tokens = (plan.cache.num_blocks - 1) * plan.cache.block_size
    for step in plan.prediction.steps:
        assert step.fits == (step.batch * step.context <= tokens)


def test_points_stay_within_the_limits(resolved: Resolver, h200: Hardware) -> None:
    plan = resolved(DENSE, h200, "limits.max_running=4", "model.max_context=2000").plan
    places = {(step.batch, step.context) for step in plan.prediction.steps}
    assert places == {(1, 1_000), (4, 1_000), (1, 2_000), (4, 2_000)}


def test_more_ranks_are_faster_and_dearer(resolved: Resolver) -> None:
    machine = load_hardware("nvidia-h200x8")
    one = resolved(DENSE, machine).plan.prediction.steps
    four = resolved(DENSE, machine, "parallel.attention.tp=4").plan.prediction.steps
    alone, shared = point(one, 8, 16_000), point(four, 8, 16_000)
    assert shared.tokens_per_s_user > alone.tokens_per_s_user
    assert shared.tokens_per_min_device < alone.tokens_per_min_device


def test_thin_links_bound_many_ranks(resolved: Resolver) -> None:
    card = load_hardware("nvidia-l40s")
    eight = replace(card, gpus=(replace(card.gpus[0], count=8),))
    steps = resolved(DENSE, eight, "parallel.attention.tp=8").plan.prediction.steps
    assert point(steps, 128, 1_000).bound == "links"


def test_a_machine_without_figures(resolved: Resolver, h200: Hardware) -> None:
    unknown = replace(h200, gpus=(replace(h200.gpus[0], ceilings=()),))
    prediction = resolved(DENSE, unknown).plan.prediction
    assert prediction.steps == ()
    assert "no speeds are known" in prediction.note


def test_a_machine_without_links(resolved: Resolver) -> None:
    machine = load_hardware("nvidia-h200x2")
    (gpu,) = machine.gpus
    kept = tuple(entry for entry in gpu.ceilings if entry.what not in ("link", "host"))
    mute = replace(machine, gpus=(replace(gpu, ceilings=kept),))
    assert resolved(DENSE, mute).plan.prediction.steps
    prediction = resolved(DENSE, mute, "parallel.attention.tp=2").plan.prediction
    assert "links" in prediction.note


def test_threads_decide_on_a_cpu(resolved: Resolver, cpu: Hardware) -> None:
    one = resolved(SMALL, cpu).plan.prediction.steps
    four = resolved(SMALL, cpu, "limits.threads=4").plan.prediction.steps
    assert point(four, 32, 1_000).step_s < point(one, 32, 1_000).step_s / 2


def test_every_assumption_has_a_source() -> None:
    assert all(entry.source for entry in GPU)
    assert len({entry.name for entry in GPU}) == len(GPU)
