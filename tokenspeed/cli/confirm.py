"""`tokenspeed confirm`: the generation on trial stays."""

from __future__ import annotations

import argparse

from tokenspeed import env
from tokenspeed.appliance.generations import acting_for
from tokenspeed.appliance.progress import say
from tokenspeed.cli.rolling import generations_of
from tokenspeed.errors import ExitCode

HELP = "keep the generation that `apply --mode try` put on trial"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the installed recipe's name")


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    generations = generations_of(args.name)
    _ = generations.current  # says that there is none
    with acting_for(generations.root):
        number = generations.confirm()
    say(f"{args.name}: generation {number} is confirmed")
    return int(ExitCode.OK)
