"""The plan of what is measured, without torch: a recipe that does not fit is refused at once."""

from __future__ import annotations

from pathlib import Path

from tokenspeed.hardware.probe import probe
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import Plan
from tokenspeed.recipe.load import load_recipe
from tokenspeed.resolve.facts import THIS_BUILD, model_facts
from tokenspeed.resolve.resolve import resolve


def plan_of(recipe: Path, overrides: tuple[str, ...], hardware: Hardware | None = None) -> Plan:
    """The recipe's plan on that hardware, on this machine where it is None, with dummy weights.
    Raises TokenspeedError."""
    loaded = load_recipe(recipe, (*overrides, "model.load=dummy"))
    machine = probe() if hardware is None else hardware
    return resolve(loaded.recipe, loaded.origins, model_facts(loaded), machine, THIS_BUILD).plan
