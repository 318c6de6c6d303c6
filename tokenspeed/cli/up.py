"""`tokenspeed up`: a recipe becomes a server that answers."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from tokenspeed import env
from tokenspeed.appliance.early import early_worker
from tokenspeed.cli.planning import set_argument

HELP = (
    "run a recipe: resolve it for this machine, fetch the weights, start the worker, ask one "
    "question, serve. Ctrl-C drains and stops; a second Ctrl-C stops at once."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE", help="a YAML file")
    set_argument(parser)
    parser.add_argument(
        "--installed",
        metavar="NAME",
        help="instead of a recipe: the generation of an installed one that is selected (see: "
        "tokenspeed apply), held to its lock",
    )
    parser.add_argument(
        "-d",
        "--detach",
        action="store_true",
        help="return when it is ready and leave it running (see: tokenspeed ps, logs, down)",
    )
    parser.add_argument(
        "--offline", action="store_true", help="use the weights that are here, fetch nothing"
    )
    parser.add_argument(
        "--locked",
        action="store_true",
        help="start only what RECIPE's lock holds; otherwise list what changed, exit code 78",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="lines for people (default), or one JSON object a line",
    )
    # How a detached instance is told where its output goes until the name is its own.
    parser.add_argument("--log-draft", type=Path, help=argparse.SUPPRESS)
    parser.epilog = (
        "Exit codes: 0 stopped as asked, 64 to 66 the command line or the recipe is wrong, "
        "75 try again (port or name in use, download failed), 78 this machine cannot run it."
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    early = None if args.detach or args.installed or args.recipe is None else early_worker()
    try:
        # All else takes a second to import, in which a worker has come some way.
        return int(importlib.import_module("tokenspeed.cli.starting").start(args, early))
    finally:
        if early is not None:
            early.drop()
