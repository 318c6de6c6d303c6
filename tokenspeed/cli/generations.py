"""`tokenspeed generations`: what an installed recipe was and is."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.table import Table

from tokenspeed import env
from tokenspeed.appliance.generations import Generations
from tokenspeed.cli.instances import duration, output_argument, show
from tokenspeed.cli.rolling import generations_of
from tokenspeed.errors import ExitCode

HELP = "list the generations of an installed recipe: which runs, which were good, what failed"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the installed recipe's name")
    output_argument(parser)


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    generations = generations_of(args.name)
    current = generations.current
    rows = [_row(generations, number, current) for number in generations.numbers()]
    if args.output == "json":
        print(json.dumps(rows, indent=2))
        return int(ExitCode.OK)
    table = Table(box=None, pad_edge=False)
    for name in ("GENERATION", "AGE", "STATE"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(str(row["generation"]), duration(row["age_seconds"]), row["state"])
    show(table)
    return int(ExitCode.OK)


def _row(generations: Generations, number: int, current: int) -> dict[str, Any]:
    made = generations.recipe(number).stat().st_mtime
    return {
        "generation": number,
        "current": number == current,
        "age_seconds": max(0.0, time.time() - made),
        "state": _state(generations, number, current),
    }


def _state(generations: Generations, number: int, current: int) -> str:
    state = generations.state()
    words = ["current"] if number == current else []
    if number in state.confirmed:
        words.append("confirmed")
    if state.trial and state.trial.generation == number:
        words.append("on trial")
    if state.last and state.last.generation == number and state.last.reason:
        words.append(f"gave way: {state.last.reason}")
    return ", ".join(words)
