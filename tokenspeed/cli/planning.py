"""From the arguments that name a recipe and a machine to a resolution; shared by verbs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.hardware.probe import probe
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Gpu, Hardware
from tokenspeed.recipe.conditions import Facts
from tokenspeed.recipe.load import LoadedRecipe, load_recipe
from tokenspeed.resolve.facts import THIS_BUILD, BuildFacts, model_facts
from tokenspeed.resolve.resolve import Resolution, resolve


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
        help="put a value over the recipe's, as in --set limits.max_running=8; null removes a key",
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
    resolution = resolve(loaded.recipe, loaded.origins, facts, machine, build)
    return Planned(loaded, machine, resolution)


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
