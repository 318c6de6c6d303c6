"""`tokenspeed top`: what running instances do, live."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tokenspeed import env
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.probe import Health, look_at_all
from tokenspeed.cli.instances import all_running, output_argument, show
from tokenspeed.cli.ps import state_text
from tokenspeed.counts import amount
from tokenspeed.errors import ExitCode

HELP = (
    "show running instances, live: tokens per second, batch, queue, cache and prefix hits. Ctrl-C "
    "ends it; into a pipe, or with --once, it prints one table"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument(
        "--every",
        type=amount,
        default=2.0,
        metavar="SECONDS",
        help="time between updates, over which rates are averaged (default 2)",
    )
    output_argument(parser)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one look found; `at` is in seconds of a clock that never goes back."""

    record: Record
    health: Health
    at: float


@dataclass(frozen=True, slots=True)
class Row:
    """Rates per second since the look before; shares are of 1. None where it is not known."""

    name: str
    health: Health
    answer_rate: float | None
    prompt_rate: float | None
    cache_share: float | None
    hit_share: float | None


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    every = args.every
    before = look()
    if args.output == "json" or args.once or not Console().is_terminal:
        time.sleep(every)
        rows = rows_of(before, look())
        if args.output == "json":
            print(json.dumps([as_json(row) for row in rows], indent=2))
        elif rows:
            show(table(rows))
        else:
            print("nothing is running; `tokenspeed up RECIPE` starts a recipe")
        return int(ExitCode.OK)
    with Live(table([]), console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            now = look()
            live.update(table(rows_of(before, now)), refresh=True)
            before = now


def look() -> list[Sample]:
    found = all_running()
    healths = look_at_all(found)
    at = time.monotonic()
    return [Sample(record, health, at) for record, health in zip(found, healths, strict=True)]


def rows_of(before: list[Sample], now: list[Sample]) -> list[Row]:
    """One for each instance of `now`. Rates need the same process in `before`."""
    old = {(sample.record.name, sample.record.pid): sample for sample in before}
    return [_row(old.get((sample.record.name, sample.record.pid)), sample) for sample in now]


def _row(before: Sample | None, now: Sample) -> Row:
    gauges = now.health.gauges
    prompts = gauges.get("tokenspeed_prompt_tokens_total")
    return Row(
        name=now.record.name,
        health=now.health,
        answer_rate=_rate(before, now, "tokenspeed_generated_tokens_total"),
        prompt_rate=_rate(before, now, "tokenspeed_prompt_tokens_total"),
        cache_share=_share(
            gauges.get("tokenspeed_cache_blocks_used"), gauges.get("tokenspeed_cache_blocks")
        ),
        hit_share=_share(gauges.get("tokenspeed_cached_prompt_tokens_total"), prompts),
    )


def _rate(before: Sample | None, now: Sample, name: str) -> float | None:
    if before is None or name not in before.health.gauges or name not in now.health.gauges:
        return None
    change = now.health.gauges[name] - before.health.gauges[name]
    return max(0.0, change) / max(now.at - before.at, 1e-3)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def table(rows: list[Row]) -> Table:
    made = Table(box=None, pad_edge=False)
    made.add_column("NAME", overflow="fold")
    made.add_column("STATE")
    several = any((row.health.fronts or 1) > 1 for row in rows)
    if several:
        made.add_column("FRONTS", justify="right")
    for name in ("TOKENS/S", "PROMPT/S", "RUNNING", "WAITING", "CACHE", "HITS"):
        made.add_column(name, justify="right")
    for row in rows:
        counts = [_number(row.health.fronts)] if several else []
        counts += [_number(row.answer_rate), _number(row.prompt_rate)]
        counts += [_number(row.health.running), _number(row.health.waiting)]
        shares = [_percent(row.cache_share), _percent(row.hit_share)]
        made.add_row(row.name, state_text(row.health), *counts, *shares)
    return made


def as_json(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "state": row.health.state,
        "tokens_per_second": row.answer_rate,
        "prompt_tokens_per_second": row.prompt_rate,
        "running": row.health.running,
        "waiting": row.health.waiting,
        "fronts": row.health.fronts,
        "cache_share": row.cache_share,
        "hit_share": row.hit_share,
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
