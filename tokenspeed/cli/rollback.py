"""`tokenspeed rollback`: back to a generation that was good."""

from __future__ import annotations

import argparse

from tokenspeed import env
from tokenspeed.appliance.generations import Generations, acting_for
from tokenspeed.appliance.progress import say
from tokenspeed.cli.instances import running
from tokenspeed.cli.rolling import generations_of, switch
from tokenspeed.counts import whole
from tokenspeed.errors import ExitCode

HELP = "go back to the generation that was confirmed before, or to another one"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the installed recipe's name")
    parser.add_argument(
        "--to",
        type=whole(1),
        metavar="N",
        help="this one instead (see: tokenspeed generations NAME)",
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    generations = generations_of(args.name)
    with acting_for(generations.root if generations.exist else env.data_root().parent):
        number = _select(generations, args.to)
    record = running(args.name)
    if record is None:
        say(f"{args.name}: generation {number} is selected; the next start runs it")
        return int(ExitCode.OK)
    switch(generations, record)
    say(f"{args.name}: generation {number} is ready")
    return int(ExitCode.OK)


def _select(generations: Generations, wanted: int | None) -> int:
    if wanted is None and generations.state().trial and generations.fall_back("rolled back"):
        return generations.current
    number = wanted if wanted is not None else generations.previous()
    generations.select(number, None)
    return number
