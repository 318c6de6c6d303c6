"""`tokenspeed status`: one instance in detail, with an exit code for scripts."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from tokenspeed import env
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.probe import Health, look
from tokenspeed.cli.drift import drift
from tokenspeed.cli.instances import (
    duration,
    name_argument,
    not_running,
    only_one,
    output_argument,
    running,
    show,
)
from tokenspeed.cli.ps import as_json, state_text
from tokenspeed.errors import ExitCode, UnavailableError
from tokenspeed.hardware.probe import probe
from tokenspeed.plan import Plan

HELP = (
    "show one instance in detail. Exit code: 0 ready, 3 not running (where `down` ends with 69), "
    "75 starting or draining, 69 running but not answering"
)


class NotRunningError(UnavailableError):
    """An answer rather than a failure, so it has an exit code of its own."""

    exit_code = ExitCode.NOT_RUNNING


def arguments(parser: argparse.ArgumentParser) -> None:
    name_argument(parser, optional=True)
    output_argument(parser)


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    name = only_one() if args.name is None else args.name
    record = None if name is None else running(name)
    if record is None:
        if args.output != "json":
            raise NotRunningError(not_running(name))
        print(json.dumps({"name": name, "state": "stopped"}, indent=2))
        return int(ExitCode.NOT_RUNNING)
    health = look(record)
    if args.output == "json":
        plan = _plan(record)
        drifted = asdict(drift(record, plan, probe())) if plan else None
        body = as_json(record, health) | {"gauges": health.gauges, "drift": drifted}
        print(json.dumps(body, indent=2))
    else:
        show(_page(record, health))
    return int(health.exit_code)


def _page(record: Record, health: Health) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("name", Text(record.name, style="bold"))
    table.add_row("state", state_text(health))
    table.add_row("url", record.url)
    table.add_row("recipe", record.recipe)
    for label, value in _planned(record):
        table.add_row(label, value)
    table.add_row("uptime", duration(time.time() - record.started))
    table.add_row("pid", str(record.pid))
    table.add_row("log", record.log or "where it was started")
    if (fronts := _fronts(record, health)) is not None:
        table.add_row("fronts", fronts)
    for label, value in _load(health):
        table.add_row(label, value)
    return table


def _plan(record: Record) -> Plan | None:
    """What runs; None where it cannot be read, as while the instance ends."""
    try:
        return Plan.from_json((record.folder / "plan.json").read_bytes())
    except (OSError, ValueError):
        return None


def _planned(record: Record) -> list[tuple[str, str]]:
    plan = _plan(record)
    if plan is None:
        return []
    count = f"{plan.device.count} x " if plan.device.count > 1 else ""
    found = drift(record, plan, probe())
    rows = [
        ("model", f"{plan.model.source} as {', '.join(plan.model.served_names)}"),
        ("device", f"{count}{plan.device.name}"),
        ("plan", plan.digest()[:12]),
        ("declared", _compared(found.declared, "the recipe comes to what runs")),
        ("detected", _compared(found.detected, "the machine is as planned")),
    ]
    if found.locked is not None:
        rows.append(("locked", _compared(found.locked, "the lock holds what runs")))
    return rows


def _fronts(record: Record, health: Health) -> str | None:
    """Of the processes that serve HTTP; None for an instance that is meant to have one."""
    plan = _plan(record)
    if plan is None or plan.serve.fronts == 1 or health.fronts is None:
        return None
    return f"{health.fronts} of {plan.serve.fronts} answer"


def _compared(found: tuple[str, ...], same: str) -> str:
    return "\n".join(("drifted from what runs:", *found)) if found else same


def _load(health: Health) -> list[tuple[str, str]]:
    gauges = health.gauges
    if health.running is None:
        return []
    blocks = (gauges.get("tokenspeed_cache_blocks_used"), gauges.get("tokenspeed_cache_blocks"))
    rows = [("requests", f"{health.running} running, {health.waiting} waiting")]
    if None not in blocks:
        rows.append(("cache", f"{blocks[0]:.0f} of {blocks[1]:.0f} blocks in use"))
    if (tokens := gauges.get("tokenspeed_generated_tokens_total")) is not None:
        rows.append(("generated", f"{tokens:,.0f} tokens"))
    return rows
