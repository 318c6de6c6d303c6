"""`tokenspeed schema`: the JSON Schemas, generated from the types."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import Plan
from tokenspeed.recipe.schema import DIALECT, recipe_schema

HELP = "print the JSON Schema of recipes, plans or hardware (draft 2020-12)"


def plan_schema() -> dict[str, Any]:
    """Of `plan` in `tokenspeed plan --output json`, and of an instance's plan.json."""
    return {"$schema": DIALECT, "title": "tokenspeed plan", **msgspec.json.schema(Plan)}


def hardware_schema() -> dict[str, Any]:
    """Of the files that `--hardware` takes, and of `hardware` in a plan's JSON."""
    return {"$schema": DIALECT, "title": "tokenspeed hardware", **msgspec.json.schema(Hardware)}


SCHEMAS = {"recipe": recipe_schema, "plan": plan_schema, "hardware": hardware_schema}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=tuple(SCHEMAS), nargs="?", default="recipe", help="default: recipe"
    )
    parser.epilog = (
        "A first line `# yaml-language-server: $schema=../schemas/recipe.schema.json` makes "
        "editors complete and check recipes."
    )


def run(args: argparse.Namespace) -> int:
    print(schema_text(args.what), end="")
    return 0


def schema_text(what: str) -> str:
    """As it lies in schemas/, to the byte."""
    return json.dumps(SCHEMAS[what](), indent=2) + "\n"
