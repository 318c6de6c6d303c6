"""`tokenspeed ps`: the instances that run on this machine for this user."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.table import Table
from rich.text import Text

from tokenspeed import env
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.probe import Health, look_at_all
from tokenspeed.cli.instances import all_running, duration, output_argument, show
from tokenspeed.errors import ExitCode

HELP = "list running instances: name, state, address, uptime, requests running and waiting, pid"

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
        show(_table(rows))
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
    }


def state_text(health: Health) -> Text:
    """`ready`, or `starting: worker 40 %` while there is something to say."""
    percent = f" {health.percent} %" if health.state == "starting" else ""
    detail = f": {health.detail}{percent}" if health.detail else ""
    return Text(f"{health.state}{detail}", style=STYLES.get(health.state, "red"))


def _table(rows: list[tuple[Record, Health]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("NAME", "STATE", "URL", "UPTIME", "RUNNING", "WAITING", "PID"):
        right = column in ("RUNNING", "WAITING", "PID")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for record, health in rows:
        table.add_row(
            record.name,
            state_text(health),
            record.url,
            duration(time.time() - record.started),
            _count(health.running),
            _count(health.waiting),
            str(record.pid),
        )
    return table


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
