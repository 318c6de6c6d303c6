"""`tokenspeed logs`: what a detached instance wrote, also after it ended."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tokenspeed import env
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.logfile import log_file, tail
from tokenspeed.cli.instances import is_name, known_names, name_argument, required, running
from tokenspeed.counts import whole
from tokenspeed.errors import ExitCode, Problem, UnavailableError

HELP = "show the log of a detached instance, running or not"
POLL_SECONDS = 0.1


def arguments(parser: argparse.ArgumentParser) -> None:
    name_argument(parser, optional=True)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with new lines until it ends"
    )
    parser.add_argument(
        "-n",
        "--lines",
        type=whole(0),
        default=100,
        metavar="N",
        help="how many lines (default 100)",
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    record = required(None) if args.name is None else running(args.name)
    path = _log_of(args.name or "", record)
    text, end = tail(path, args.lines)
    if args.lines and end:
        print(text, flush=True)
    if args.follow and record is not None:
        _follow(path, end, record)
    return int(ExitCode.OK)


def _log_of(name: str, record: Record | None) -> Path:
    if record is not None and record.log is None:
        raise UnavailableError(
            Problem(
                code="TS-C011",
                message=f"{record.name} (pid {record.pid}) logs to the terminal that started it",
                hint="look there; instances started with `up --detach` keep a log file",
            )
        )
    path = Path(record.log) if record is not None and record.log else log_file(name)
    # What is no name may be a path that leads elsewhere.
    if not (record is not None or is_name(name)) or not path.is_file():
        raise UnavailableError(
            Problem(
                code="TS-C012",
                message=f"there is no log of {name}",
                hint=f"instances started with `up --detach` keep one; {known_names()}",
            )
        )
    return path


def _follow(path: Path, begin: int, record: Record) -> None:
    """From `begin` on, in bytes: nothing is lost that was written after the tail was read."""
    with path.open(errors="replace") as file:
        file.seek(begin)
        while True:
            alive = record.alive  # asked first: what was written before the end is shown
            if text := file.read():
                sys.stdout.write(text)
                sys.stdout.flush()
            elif not alive:
                return
            else:
                time.sleep(POLL_SECONDS)
