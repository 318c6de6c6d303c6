"""`tokenspeed diff`: what differs between two recipes, plans or locks, field by field, and why."""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from tokenspeed.cli.locking import lock_of
from tokenspeed.cli.planning import hardware_argument, named_hardware, plan_recipe
from tokenspeed.errors import ExitCode, NoInputError, Problem, UsageError, Where
from tokenspeed.files import read_bounded
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import Plan
from tokenspeed.resolve.diff import View, differences, view_of_lock, view_of_plan
from tokenspeed.resolve.ledger import Decision
from tokenspeed.resolve.lock import SUFFIX, read_lock

HELP = (
    "compare recipes (.yaml), plans (.json) or locks (.lock), field by field, with the reason of "
    "each side. Recipes are resolved first."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="A", help="a recipe, a plan or a lock")
    parser.add_argument("after", type=Path, metavar="B", help="another")
    hardware_argument(parser)
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text (default) or json"
    )
    parser.add_argument(
        "--detailed-exitcode", action="store_true", help="exit with 2 when anything differs"
    )


def run(args: argparse.Namespace) -> int:
    hardware = named_hardware(args.hardware)
    found = differences(view(args.before, hardware), view(args.after, hardware))
    if args.output == "json":
        print(json.dumps([asdict(difference) for difference in found], indent=2))
    elif found:
        importlib.import_module("tokenspeed.cli.render").print_differences(
            found, str(args.before), str(args.after)
        )
    else:
        print("they come to the same")
    return int(ExitCode.DIFFERS if found and args.detailed_exitcode else ExitCode.OK)


def view(path: Path, hardware: Hardware | None) -> View:
    """What is in the file, whatever it is. A recipe is resolved, for this machine unless
    `hardware` is given, and viewed as the lock that it would get."""
    if path.suffix == SUFFIX:
        return view_of_lock(read_lock(path))
    if path.suffix in (".yaml", ".yml"):
        return view_of_lock(lock_of(plan_recipe(path, (), hardware)))
    if path.suffix == ".json":
        return _view_of_json(path)
    raise UsageError(_neither(path, "its name ends in none of .yaml, .json and .lock"))


def _view_of_json(path: Path) -> View:
    """`plan --output json`, or the plan.json of an instance."""
    try:
        data: Any = msgspec.json.decode(read_bounded(path))
        if not isinstance(data, dict):
            raise NoInputError(_neither(path, "it is not a JSON object"))
        decisions = msgspec.convert(data.get("decisions", []), tuple[Decision, ...])
        return view_of_plan(msgspec.convert(data.get("plan", data), Plan), decisions)
    except OSError as error:
        raise NoInputError(_neither(path, error.strerror or str(error))) from error
    except msgspec.DecodeError as error:
        raise NoInputError(_neither(path, str(error))) from error


def _neither(path: Path, why: str) -> Problem:
    return Problem(
        code="TS-L004",
        message=f"not a recipe, plan or lock: {why}",
        where=Where(str(path)),
        hint="give recipes (.yaml), plans (.json, from `plan --output json`) or locks (.lock)",
    )
