"""Drift of a running instance: what is declared, what was locked, and what machine is there now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.appliance.instance import Record
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.errors import TokenspeedError
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import Plan
from tokenspeed.recipe.kinds import format_size
from tokenspeed.resolve.diff import PREDICTION, differences, view_of_plan
from tokenspeed.resolve.lock import lock_path, read_lock


@dataclass(frozen=True, slots=True)
class Drift:
    """Differences in words, none where all is as it runs; None where there is nothing to compare
    with. `declared` is what the recipe comes to now, `locked` what its lock holds, `detected` the
    machine."""

    declared: tuple[str, ...]
    locked: tuple[str, ...] | None
    detected: tuple[str, ...]


def drift(record: Record, running: Plan, machine: Hardware) -> Drift:
    """Never raises for what the user did: a recipe that is gone or wrong by now is a difference."""
    recipe = Path(record.recipe)
    path = lock_path(recipe)
    return Drift(
        declared=_against(
            running, lambda: plan_recipe(recipe, record.overrides, machine).resolution.plan
        ),
        locked=_against(running, lambda: read_lock(path).plan) if path.exists() else None,
        detected=tuple(_detected(running, machine)),
    )


def _against(running: Plan, other: Callable[[], Plan]) -> tuple[str, ...]:
    try:
        plan = other()
    except TokenspeedError as error:
        return tuple(
            f"{problem.path}: {problem.message}".lstrip(": ") for problem in error.problems
        )
    found = differences(view_of_plan(running), view_of_plan(plan))
    return tuple(
        str(one).removeprefix("plan.") for one in found if not one.field.startswith(PREDICTION)
    )


def _detected(running: Plan, machine: Hardware) -> list[str]:
    planned, bytes_planned = running.device, running.memory.device_bytes
    if planned.kind == "cpu":
        name, count, bytes_here = machine.cpu.model, 1, machine.memory_bytes
    elif machine.gpus:
        gpu = machine.gpus[0]
        name, count, bytes_here = gpu.name, gpu.count, gpu.memory_bytes
    else:
        return [f"{planned.name}: no GPU is seen" + "".join(f" ({n})" for n in machine.notes)]
    found = []
    if name != planned.name:
        found.append(f"device: {planned.name} -> {name}")
    if count < planned.count:
        found.append(f"devices: {planned.count} -> {count}")
    if bytes_here != bytes_planned:
        found.append(f"memory: {format_size(bytes_planned)} -> {format_size(bytes_here)}")
    return found
