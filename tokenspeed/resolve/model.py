"""Which model is served, and under which names."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.plan import ModelFile
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.facts import ModelFacts
from tokenspeed.resolve.ledger import DEFAULT, MODEL, RECIPE, Ledger


@dataclass(frozen=True, slots=True)
class Served:
    """The part of the plan's model that no format decides."""

    names: tuple[str, ...]
    load: str
    container: str
    files: tuple[ModelFile, ...]


def settle_model(recipe: Recipe, model: ModelFacts, ledger: Ledger) -> Served:
    """Random weights need no files, whatever the source holds."""
    ledger.note("model.source", model.source, RECIPE, "as the recipe says", "model.source")
    names = ledger.settle(
        "model.served_names",
        recipe.model.served_names,
        (recipe.name,),
        DEFAULT,
        "the recipe's name",
        "model.served_names",
    )
    if model.chat_template is None:
        ledger.note("model.chat_template", None, MODEL, "the model's own, if it has one")
    else:
        key = "serve.chat_template"
        ledger.note("model.chat_template", recipe.serve.chat_template, RECIPE, "read in", key)
    load = ledger.settle(
        "model.load", recipe.model.load, "weights", DEFAULT, "the real model", "model.load"
    )
    if load == "dummy":
        ledger.note("model.container", "none", RECIPE, "random weights, no files", "model.load")
        return Served(names, load, "none", ())
    ledger.note("model.container", model.container, MODEL, "as found in the source")
    return Served(names, load, model.container, model.files)
