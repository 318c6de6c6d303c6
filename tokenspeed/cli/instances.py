"""What the verbs about running instances share."""

from __future__ import annotations

import argparse
import re

from rich.console import Console, Group
from rich.table import Table

from tokenspeed import env
from tokenspeed.appliance.instance import Record, find, records
from tokenspeed.errors import Problem, UnavailableError, UsageError
from tokenspeed.recipe.types import DNS_LABEL

# Where there is no terminal, nothing is wrapped or cut.
PIPE_COLUMNS = 4096
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def name_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """`optional`: without a name it is the only instance, see `only_one`."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?" if optional else None,
        help="the instance's name, or its recipe file"
        + (" (default: the only one that runs)" if optional else ""),
    )


def output_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text (default) or json"
    )


def is_name(text: str) -> bool:
    """Whether a recipe can have it."""
    return re.fullmatch(DNS_LABEL, text) is not None


def running(name: str) -> Record | None:
    found = (find(root, name) for root in env.run_roots())
    return next((record for record in found if record is not None), None)


def all_running() -> list[Record]:
    return [record for root in env.run_roots() for record in records(root)]


def not_running(name: str | None) -> Problem:
    named = "no instance" if name is None else f"no instance named {name}"
    return Problem(code="TS-C010", message=f"{named} is running", hint=known_names())


def only_one() -> str | None:
    """The name of the instance that runs; None where none does. Raises UsageError for several."""
    names = [record.name for record in all_running()]
    if len(names) > 1:
        raise UsageError(
            Problem(
                code="TS-C001",
                message=f"{len(names)} instances are running: which one?",
                hint=f"name one of {', '.join(names)}",
            )
        )
    return names[0] if names else None


def required(name: str | None) -> Record:
    """The running instance of that name, without one the only one there is. Raises
    UnavailableError where it does not run, UsageError for several."""
    wanted = only_one() if name is None else name
    record = None if wanted is None else running(wanted)
    if record is None:
        raise UnavailableError(not_running(wanted))
    return record


def known_names() -> str:
    """For hints: what could have been meant."""
    names = ", ".join(record.name for record in all_running())
    return (
        f"running: {names}"
        if names
        else "nothing is running; `tokenspeed up RECIPE` starts a recipe"
    )


def terminal_columns() -> int | None:
    """None where standard output is no terminal, and lines may be as long as they are."""
    console = Console()
    return console.width if console.is_terminal else None


def show(page: Table | Group) -> None:
    """Prints to standard output; into a pipe or file without colour and blanks at line ends."""
    console = Console(soft_wrap=True)
    if console.is_terminal:
        console.print(page)
        return
    plain = Console(width=PIPE_COLUMNS, no_color=True)
    with plain.capture() as captured:
        plain.print(page)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def duration(seconds: float) -> str:
    """`42s`, `3m 7s`, `5h 2m`, `9d 4h`."""
    whole = int(seconds)
    for size, unit, below, small in _UNITS:
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // below}{small}"
    return f"{whole}s"
