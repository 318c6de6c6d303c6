"""`tokenspeed gc`: gives back the room of what nobody needs any more."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tokenspeed import env
from tokenspeed.appliance.garbage import Garbage, Item
from tokenspeed.appliance.generations import acting_for
from tokenspeed.appliance.progress import say
from tokenspeed.cli.instances import all_running, output_argument, show
from tokenspeed.errors import ExitCode
from tokenspeed.plan import Plan
from tokenspeed.recipe.kinds import format_size

HELP = (
    "list models, downloads, generations and compiled kernels that no lock, generation or running "
    "instance needs; with --delete, delete them"
)

_SHOWN = 2  # of who needs it
_UNREADABLE = (
    "{lock} cannot be read, and may need any model: none that it could need is garbage. Its owner "
    "writes it anew with `tokenspeed lock`; if nobody needs it, delete it"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--delete", action="store_true", help="delete what is listed")
    output_argument(parser)
    parser.epilog = (
        "Needed is what the lock of a recipe names (`tokenspeed lock`), what a generation of an "
        "installed recipe may go back to, and what runs now."
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    items: list[Item] = []
    for data in env.data_roots():
        if not os.access(data, os.W_OK):
            continue
        garbage = Garbage(data, env.kernel_caches(data))
        with garbage.alone():
            running = _running()
            with acting_for(data):
                found = garbage.items(running)
                for lock in garbage.unreadable():
                    print(_UNREADABLE.format(lock=lock), file=sys.stderr)
                if args.delete:
                    garbage.forget_gone()
                    for item in found:
                        if not item.needed_by:
                            garbage.delete(item)
        items += found
    freed = sum(item.bytes for item in items if not item.needed_by)
    if args.output == "json":
        print(json.dumps({"deleted": args.delete, "items": list(map(_row, items))}, indent=2))
        return int(ExitCode.OK)
    if items:
        show(_table(items))
    if not any(not item.needed_by for item in items):
        say("nothing is garbage")
    elif args.delete:
        say(f"{format_size(freed)} were given back")
    else:
        say(f"{format_size(freed)} are garbage; `tokenspeed gc --delete` gives them back")
    return int(ExitCode.OK)


def _running() -> dict[str, Plan]:
    """The plans of running instances by name. An instance tells of itself before it looks for its
    model, so that none is missed while nobody fetches."""
    plans = {}
    for record in all_running():
        with contextlib.suppress(FileNotFoundError):  # it ended just now
            plans[record.name] = Plan.from_json((record.folder / "plan.json").read_bytes())
    return plans


def _table(items: list[Item]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("KIND", "NAME", "SIZE", "NEEDED BY"):
        table.add_column(name, overflow="fold", justify="right" if name == "SIZE" else "left")
    for item in sorted(items, key=lambda item: (not item.needed_by, item.kind, item.name)):
        who = ", ".join(item.needed_by[:_SHOWN]) or "nobody: garbage"
        if (more := len(item.needed_by) - _SHOWN) > 0:
            who += f" and {more} more"
        table.add_row(item.kind, item.name, format_size(item.bytes), who)
    return table


def _row(item: Item) -> dict[str, Any]:
    row = asdict(item)
    return row | {"paths": list(map(str, item.paths)), "garbage": not item.needed_by}
