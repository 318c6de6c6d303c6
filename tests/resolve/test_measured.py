"""What plans predict for one H200 beside what the engine was measured to do there."""

from __future__ import annotations

import json
from pathlib import Path

from tokenspeed.cli.planning import plan_recipe
from tokenspeed.hardware.profiles import load_hardware

NEAR = 0.12


def test_predicted_steps_are_near_the_measured_ones(repo: Path) -> None:
    hardware = load_hardware("nvidia-h200")
    errors: dict[tuple[str, int, int], float] = {}
    for path in sorted((repo / "tokenspeed/bench/results").glob("decode-*-nvidia-h200.json")):
        measured = json.loads(path.read_text())
        name = measured["recipe"]
        plan = plan_recipe(repo / "recipes" / f"{name}.yaml", hardware=hardware).resolution.plan
        assert plan.prediction is not None
        predicted = {(step.batch, step.context): step.step_s for step in plan.prediction.steps}
        for point in measured["points"]:
            at = point["batch"], point["context"]
            if at in predicted:
                # Of tokens per second, which go as one over the time of a step.
                errors[name, *at] = point["step_ms"] / 1e3 / predicted[at] - 1
    dense = {at: error for at, error in errors.items() if "8b" in at[0]}
    assert len(dense) >= 8
    assert max(map(abs, dense.values())) < NEAR, dense
