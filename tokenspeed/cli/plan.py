"""`tokenspeed plan`: what a recipe will run, on this machine or on one that is not here."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import msgspec
import yaml

from tokenspeed.cli.locking import moved
from tokenspeed.cli.planning import (
    Planned,
    hardware_argument,
    named_hardware,
    plan_recipe,
    recipe_arguments,
)
from tokenspeed.errors import ExitCode
from tokenspeed.resolve.lock import lock_path, read_lock

HELP = "show what a recipe will run, where the memory goes, and why; starts nothing"


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe_arguments(parser)
    hardware_argument(parser)
    parser.add_argument(
        "--output",
        choices=("text", "json", "yaml", "md"),
        default="text",
        help="a page for people (default), json, yaml or md (Markdown)",
    )
    parser.add_argument(
        "--origin", action="store_true", help="say which line of the recipe set each value"
    )
    parser.add_argument(
        "--detailed-exitcode",
        action="store_true",
        help="end with 78 when `up` would refuse the plan, for what this build or machine lacks, "
        "else with 2 when it differs from RECIPE's lock, and name the differences",
    )


def run(args: argparse.Namespace) -> int:
    hardware = named_hardware(args.hardware)
    planned = plan_recipe(args.recipe, tuple(args.overrides), hardware)
    if args.output == "text":
        # rich takes a tenth of a second to import; json and yaml do without.
        importlib.import_module("tokenspeed.cli.render").print_plan(planned, args.origin)
    elif args.output == "json":
        sys.stdout.write(to_json(planned).decode())
    elif args.output == "yaml":
        yaml.safe_dump(as_data(planned), sys.stdout, sort_keys=False, allow_unicode=True)
    elif args.output == "md":
        importlib.import_module("tokenspeed.cli.markdown").print_plan(planned, args.origin)
    return _judged(planned) if args.detailed_exitcode else int(ExitCode.OK)


def _judged(planned: Planned) -> int:
    """Talk goes to standard error: the plan is the data."""
    if unmet := planned.resolution.plan.unmet:
        for one in unmet:
            print(f"cannot run here: {one.need}: {one.detail}", file=sys.stderr)
        return int(ExitCode.UNSATISFIABLE)
    found = moved(planned, read_lock(lock_path(planned.loaded.file)))
    for difference in found:
        print(f"changed since it was locked: {difference}", file=sys.stderr)
    return int(ExitCode.DIFFERS if found else ExitCode.OK)


def as_data(planned: Planned) -> Any:
    """The plan, its digest, why it is so, and the machine, as plain values.

    The `hardware` part, saved as a file, is what `--hardware FILE` takes elsewhere.
    """
    plan = planned.resolution.plan
    body = {
        "digest": plan.digest(),
        "plan": plan,
        "decisions": planned.resolution.decisions,
        "hardware": planned.hardware,
    }
    return msgspec.to_builtins(body)


def to_json(planned: Planned) -> bytes:
    return msgspec.json.format(msgspec.json.encode(as_data(planned)), indent=2) + b"\n"
