"""`tokenspeed lock`: what a recipe comes to on a machine, as a file to review and to hold to."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenspeed import env
from tokenspeed.appliance.store import Store
from tokenspeed.cli.locking import lock_of, moved, progress
from tokenspeed.cli.planning import (
    Planned,
    hardware_argument,
    named_hardware,
    plan_recipe,
    recipe_arguments,
)
from tokenspeed.errors import ExitCode, OutputError
from tokenspeed.files import write_whole
from tokenspeed.resolve.lock import Lock, lock_path, read_lock

HELP = (
    "write RECIPE's lock: the plan, the files' hashes, the kernels, the versions and the machine; "
    "`up --locked` starts nothing else"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe_arguments(parser)
    hardware_argument(parser)
    parser.add_argument(
        "-o", dest="file", type=Path, metavar="FILE", help="write here instead of RECIPE's .lock"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; say what changed since it was locked, and end with 2 if anything did",
    )


def run(args: argparse.Namespace) -> int:
    planned = plan_recipe(args.recipe, tuple(args.overrides), named_hardware(args.hardware))
    path = args.file or lock_path(args.recipe)
    if args.check:
        found = moved(planned, read_lock(path))
        for difference in found:
            print(difference)
        return int(ExitCode.DIFFERS if found else ExitCode.OK)
    lock = lock_of(planned, progress)
    try:
        write_whole(path, lock.to_yaml().encode())
    except OSError as error:
        raise OutputError(str(path), error) from error
    Store(env.data_root() / "weights").hold(path)
    plan = planned.resolution.plan.digest()[:12]
    full, identity = lock.digests.full[:12], lock.digests.identity[:12]
    print(f"{path}: plan {plan}, lock {full}, weights and cache {identity}")
    if not all(file.sha256 for file in lock.files) or _loads_unnamed(planned, lock):
        print("the lock has no hash of some of the files: it cannot tell if they change")
    return int(ExitCode.OK)


def _loads_unnamed(planned: Planned, lock: Lock) -> bool:
    return planned.resolution.plan.model.load == "weights" and not lock.files
