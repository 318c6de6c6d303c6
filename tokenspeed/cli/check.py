"""`tokenspeed check`: is the recipe valid? Reads nothing but the recipe."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenspeed.cli.messages import render
from tokenspeed.errors import ExitCode, TokenspeedError
from tokenspeed.recipe.load import load_recipe

HELP = "validate recipes: every problem at once, with its line and how to fix it"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipes", type=Path, nargs="+", metavar="RECIPE", help="recipes, YAML files"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a recipe value before checking",
    )
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text (default) or json"
    )


def run(args: argparse.Namespace) -> int:
    worst = ExitCode.OK
    results: list[dict[str, Any]] = []
    for path in args.recipes:
        try:
            loaded = load_recipe(path, tuple(args.overrides))
        except TokenspeedError as error:
            worst = max(worst, error.exit_code)
            problems = [asdict(problem) for problem in error.problems]
            results.append({"file": str(path), "valid": False, "problems": problems})
            if args.output == "text":
                sys.stderr.write(render(error))
            continue
        results.append({"file": str(path), "valid": True, "problems": []})
        if args.output == "text":
            print(f"{path}: {loaded.recipe.name} is a valid recipe")
    if args.output == "json":
        print(json.dumps(results, indent=2))
    return int(worst)
