"""From the arguments that name a recipe and a machine to a resolution; shared by verbs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from tokenspeed.errors import ResolveError, TokenspeedError
from tokenspeed.hardware.probe import probe
from tokenspeed.hardware.profiles import load_hardware, names
from tokenspeed.hardware.types import Gpu, Hardware
from tokenspeed.plan import Plan
from tokenspeed.recipe.conditions import Facts
from tokenspeed.recipe.load import LoadedRecipe, load_recipe
from tokenspeed.resolve.change import lacking, lacks_memory
from tokenspeed.resolve.facts import THIS_BUILD, BuildFacts, model_facts
from tokenspeed.resolve.parallel import DEVICES
from tokenspeed.resolve.resolve import Resolution, plan_as_it_is, resolve


@dataclass(frozen=True, slots=True)
class Planned:
    """A recipe, the machine it was resolved for, and the outcome."""

    loaded: LoadedRecipe
    hardware: Hardware
    resolution: Resolution


def recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    set_argument(parser)


def set_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a recipe value: --set limits.max_running=8; null removes a key",
    )


def hardware_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hardware",
        metavar="NAME|FILE",
        help="plan for this profile or JSON file instead of this machine",
    )


def plan_recipe(
    recipe: Path,
    overrides: tuple[str, ...] = (),
    hardware: Hardware | None = None,
    build: BuildFacts = THIS_BUILD,
) -> Planned:
    """Load, read the model's facts and resolve, for this machine unless `hardware` is given.

    Raises TokenspeedError of the first stage that fails, with all problems of that stage.
    """
    machine = probe() if hardware is None else hardware
    loaded = load_recipe(recipe, overrides, machine_facts(machine))
    facts = model_facts(loaded)
    try:
        resolution = resolve(loaded.recipe, loaded.origins, facts, machine, build)
    except ResolveError as error:
        if not lacks_memory(error.problems):
            raise
        raise _pointing_elsewhere(error, recipe, overrides, machine, build) from None
    return Planned(loaded, machine, resolution)


def _pointing_elsewhere(
    error: ResolveError,
    recipe: Path,
    overrides: tuple[str, ...],
    machine: Hardware,
    build: BuildFacts,
) -> ResolveError:
    """With a shipped profile that the recipe fits as it is, unless a change was found that needs
    no more of the machine and this build than the recipe does there."""
    other = _machine_that_holds(recipe, overrides, build)
    if other is None:
        return error
    name, plan = other
    changes = tuple(f"{key}={value}" for key, value in error.suggestion)
    changed = _plan_on(machine, recipe, (*overrides, *changes), build) if changes else None
    if changed is not None and not lacking(changed, frozenset(u.need for u in plan.unmet)):
        return error
    first, *rest = error.problems
    hint = f"{first.hint}; to plan it for another machine: --hardware {name}"
    return ResolveError(replace(first, hint=hint), *rest, suggestion=error.suggestion)


def _machine_that_holds(
    recipe: Path, overrides: tuple[str, ...], build: BuildFacts
) -> tuple[str, Plan] | None:
    """The shipped profile of the least memory that the recipe fits as it is, with its plan; by
    name where two have the same."""
    known = [(name, load_hardware(name)) for name in names()]
    for name, machine in sorted(known, key=lambda entry: (_memory_bytes(entry[1]), entry[0])):
        plan = _plan_on(machine, recipe, overrides, build)
        if plan is not None and all(unmet.need != DEVICES for unmet in plan.unmet):
            return name, plan
    return None


def _memory_bytes(machine: Hardware) -> int:
    """Of all its GPUs, of the host where it has none."""
    if not machine.gpus:
        return machine.memory_bytes
    return sum(gpu.count * gpu.memory_bytes for gpu in machine.gpus)


def _plan_on(
    machine: Hardware, recipe: Path, overrides: tuple[str, ...], build: BuildFacts
) -> Plan | None:
    """Read anew, since the recipe may say other things for another machine."""
    try:
        loaded = load_recipe(recipe, overrides, machine_facts(machine))
        facts = model_facts(loaded)
    except TokenspeedError:
        return None
    return plan_as_it_is(loaded.recipe, loaded.origins, facts, machine, build)


def machine_facts(hardware: Hardware) -> Facts:
    """What the conditions of `when` may ask of the machine: of its GPUs where it has any."""
    if not hardware.gpus:
        cpu = hardware.cpu
        return Facts(
            device="cpu", arch=cpu.arch, memory_bytes=hardware.memory_bytes, count=1, link="none"
        )
    gpu = hardware.gpus[0]
    return Facts(
        device="rocm" if gpu.arch.startswith("gfx") else "cuda",
        arch=gpu.arch,
        memory_bytes=gpu.memory_bytes,
        count=gpu.count,
        link=_link(gpu),
    )


def _link(gpu: Gpu) -> str:
    """What `when` calls a link that its vendor calls "NVLink 4" or "Infinity Fabric"."""
    names = {"nvlink": "nvlink", "infinity": "xgmi", "pcie": "pcie"}
    return names.get(gpu.link.partition(" ")[0].lower(), "none")


def named_hardware(name: str | None) -> Hardware | None:
    """A profile or a file by name; None for this machine. Raises NoInputError."""
    return None if name is None else load_hardware(name)
