"""`tokenspeed up`: a recipe becomes a server that answers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenspeed import env
from tokenspeed import log as logs
from tokenspeed.appliance import detach
from tokenspeed.appliance.progress import display, say
from tokenspeed.appliance.up import Order, refuse_unmet, up
from tokenspeed.cli.locking import require_locked
from tokenspeed.cli.planning import plan_recipe, recipe_arguments
from tokenspeed.errors import ExitCode
from tokenspeed.plan import Plan

HELP = (
    "run a recipe: resolve it for this machine, fetch the weights, start the worker, ask one "
    "question, serve. Ctrl-C drains and stops; a second Ctrl-C stops at once."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe_arguments(parser)
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
        help="start only what RECIPE's lock holds; name what moved, and end with 78",
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
    overrides = tuple(args.overrides)
    planned = plan_recipe(args.recipe, overrides)
    if args.locked:
        require_locked(planned)
    plan = planned.resolution.plan
    refuse_unmet(plan)
    if args.detach:
        return _detached(args, plan)
    handler = logs.setup(structured=args.log_format == "json")
    try:
        order = Order(
            plan=plan,
            recipe=args.recipe,
            offline=args.offline,
            log_draft=args.log_draft,
            overrides=overrides,
        )
        return int(up(order, handler))
    finally:
        handler.close()


def _detached(args: argparse.Namespace, plan: Plan) -> int:
    options = [str(args.recipe), "--log-format", args.log_format]
    for override in args.overrides:
        options += ["--set", override]
    options += [f"--{name}" for name in ("offline", "locked") if getattr(args, name)]
    with display() as shown:
        code, text, log = detach.start(plan.name, options, shown)
    if code != 0:
        rest = f"; all of its log is in {log}" if log else ""
        sys.stderr.write(f"{text}\n\n{plan.name} did not start{rest}\n")
        return code
    say(text)
    say(f"It runs in the background. `tokenspeed down {plan.name}` stops it.")
    return int(ExitCode.OK)
