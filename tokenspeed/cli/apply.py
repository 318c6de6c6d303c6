"""`tokenspeed apply`: the next generation of an installed recipe."""

from __future__ import annotations

import argparse

from pydantic_core import PydanticCustomError

from tokenspeed import env
from tokenspeed.appliance.order import refuse_unmet
from tokenspeed.appliance.progress import say
from tokenspeed.cli.instances import running
from tokenspeed.cli.planning import plan_recipe, recipe_arguments
from tokenspeed.cli.rolling import generations_of, put, switch
from tokenspeed.errors import ExitCode, Problem, UsageError
from tokenspeed.recipe.kinds import Duration

HELP = (
    "make a generation of RECIPE and switch to it: requests wait meanwhile, none is refused. If "
    "it does not become ready, the previous one comes back"
)
TRY_FOR = "5m"


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe_arguments(parser)
    parser.add_argument(
        "--mode",
        choices=("now", "try"),
        default="now",
        help="now (default): confirmed once it is ready; try: the previous one comes back unless "
        "`tokenspeed confirm` comes in time",
    )
    parser.add_argument(
        "--for",
        dest="patience",
        metavar="TIME",
        help=f"how long a trial waits for `confirm`: a number with s, m or h (default {TRY_FOR})",
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    if args.patience and args.mode != "try":
        raise UsageError(
            Problem(code="TS-C001", message="--for needs --mode try", hint="add it, or leave both")
        )
    seconds = _seconds(args.patience or TRY_FOR) if args.mode == "try" else None
    planned = plan_recipe(args.recipe, tuple(args.overrides))
    plan = planned.resolution.plan
    refuse_unmet(plan)
    generations = generations_of(plan.name)
    number = put(generations, planned, seconds)
    if number is None:
        say(f"{plan.name}: generation {generations.current} is just that")
        return int(ExitCode.OK)
    record = running(plan.name)
    if record is None:
        say(f"{plan.name}: generation {number} is selected; the next start runs it")
        return int(ExitCode.OK)
    switch(generations, record)
    say(f"{plan.name}: generation {number} is ready")
    if seconds is not None:
        say(f"`tokenspeed confirm {plan.name}` within {seconds:g} s keeps it")
    return int(ExitCode.OK)


def _seconds(text: str) -> float:
    try:
        return Duration().parse(text)
    except PydanticCustomError as error:
        message, hint = error.message(), "--for 5m"
        raise UsageError(Problem(code="TS-C001", message=message, hint=hint)) from error
