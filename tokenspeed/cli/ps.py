"""`tokenspeed ps`: the instances that run on this machine for this user."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tokenspeed import env
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.probe import Health, look_at_all
from tokenspeed.cli.instances import (
    all_running,
    duration,
    output_argument,
    show,
    terminal_columns,
)
from tokenspeed.errors import ExitCode

HELP = (
    "list running instances: name, state, address, fronts (processes that serve HTTP) where there "
    "are several, uptime, requests running and waiting, pid"
)

# What the least is lost with comes first.
DISPENSABLE = ("UPTIME", "WAITING", "FRONTS", "RUNNING")
GAP = 2  # between columns
STYLES = {"ready": "green", "starting": "yellow", "draining": "yellow"}


def arguments(parser: argparse.ArgumentParser) -> None:
    output_argument(parser)


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    found = all_running()
    rows = list(zip(found, look_at_all(found), strict=True))
    if args.output == "json":
        print(json.dumps([as_json(record, health) for record, health in rows], indent=2))
    elif rows:
        show(page(rows, terminal_columns()))
    else:
        print("nothing is running; `tokenspeed up RECIPE` starts a recipe")
    return int(ExitCode.OK)


def as_json(record: Record, health: Health) -> dict[str, Any]:
    """One instance for programs; counts are null where they are not known."""
    return {
        "name": record.name,
        "state": health.state,
        "detail": health.detail,
        "url": record.url,
        "pid": record.pid,
        "recipe": record.recipe,
        "started": record.started,
        "log": record.log,
        "running": health.running,
        "waiting": health.waiting,
        "fronts": health.fronts,
    }


def state_text(health: Health) -> Text:
    """`ready`, or `starting: worker 40 %` while there is something to say."""
    percent = f" {health.percent} %" if health.state == "starting" else ""
    detail = f": {health.detail}{percent}" if health.detail else ""
    return Text(f"{health.state}{detail}", style=STYLES.get(health.state, "red"))


def page(rows: list[tuple[Record, Health]], columns: int | None) -> Table | Group:
    """The instances within so many columns, None for no limit.

    What a narrow terminal has no room for is left out; name, state, address and pid never are.
    """
    cells = {
        "NAME": [Text(record.name) for record, _ in rows],
        "STATE": [state_text(health) for _, health in rows],
        "URL": [Text(record.url) for record, _ in rows],
        "FRONTS": [Text(_count(health.fronts)) for _, health in rows],
        "UPTIME": [Text(duration(time.time() - record.started)) for record, _ in rows],
        "RUNNING": [Text(_count(health.running)) for _, health in rows],
        "WAITING": [Text(_count(health.waiting)) for _, health in rows],
        "PID": [Text(str(record.pid)) for record, _ in rows],
    }
    if all((health.fronts or 1) == 1 for _, health in rows):
        del cells["FRONTS"]
    for left_out in ("", *DISPENSABLE):
        cells.pop(left_out, None)
        if columns is None or _width(cells) <= columns:
            return _table(cells)
    lines: list[Text | Padding] = []
    for name, state, url, pid in zip(*cells.values(), strict=True):
        lines += [name, Padding(state, (0, 0, 0, 2)), Text.assemble("  ", url, "  pid ", pid)]
    return Group(*lines)


def _width(cells: Mapping[str, list[Text]]) -> int:
    widths = [max(len(title), *map(len, column)) for title, column in cells.items()]
    return sum(widths) + GAP * (len(widths) - 1)


def _table(cells: Mapping[str, list[Text]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in cells:
        right = title in ("FRONTS", "RUNNING", "WAITING", "PID")
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
