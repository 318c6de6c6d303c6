"""`tokenspeed doctor`: whether this machine is fit to serve, with a fix for what is not."""

from __future__ import annotations

import argparse
import dataclasses
import json

from rich.table import Table
from rich.text import Text

from tokenspeed import env
from tokenspeed.appliance.doctor import FAILED, OK, WARNING, Finding, examine, look
from tokenspeed.cli.instances import output_argument, show
from tokenspeed.counts import whole
from tokenspeed.errors import ExitCode
from tokenspeed.hardware.probe import probe

HELP = "check driver, torch, compiler, limits, disk and port, each with a fix; changes nothing"

_MARKS = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), FAILED: ("failed", "bold red")}
_USUAL_PORT = 8000


def arguments(parser: argparse.ArgumentParser) -> None:
    output_argument(parser)
    parser.add_argument(
        "--port",
        type=whole(1, 65535),
        default=_USUAL_PORT,
        help=f"the port to check (default {_USUAL_PORT})",
    )


def run(args: argparse.Namespace) -> int:
    """69 when something failed, so that a script may stop there."""
    env.check_variables()
    hardware = probe()
    findings = examine(hardware, look(env.data_root(), args.port))
    if args.output == "json":
        body = {
            "findings": [dataclasses.asdict(finding) for finding in findings],
            "hardware": json.loads(hardware.to_json()),
        }
        print(json.dumps(body, indent=2))
    else:
        show(_table(findings))
    failed = any(finding.status == FAILED for finding in findings)
    return int(ExitCode.UNAVAILABLE if failed else ExitCode.OK)


def _table(findings: tuple[Finding, ...]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for overflow in (False, False, True):
        table.add_column(no_wrap=not overflow)
    for finding in findings:
        word, style = _MARKS[finding.status]
        detail = Text(finding.detail)
        if finding.fix:
            detail.append(f"\nfix: {finding.fix}", style="cyan")
        table.add_row(Text(word, style=style), Text(finding.check, style="bold"), detail)
    return table
