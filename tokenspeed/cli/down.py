"""`tokenspeed down`: drain an instance and wait until nothing of it is left."""

from __future__ import annotations

import argparse

from tokenspeed import env
from tokenspeed.appliance import detach
from tokenspeed.appliance.progress import display, say
from tokenspeed.cli.instances import name_argument, required
from tokenspeed.errors import ExitCode

HELP = (
    "stop a running instance: new requests are refused, open ones finish (serve.drain of its "
    "recipe says how long they may take), then worker and server end"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    name_argument(parser)
    parser.add_argument(
        "--now", action="store_true", help="do not wait for open requests: they end with an error"
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    record = required(args.name)
    with display() as shown:
        detach.stop(record, shown, now=args.now)
    say(f"{record.name} is down")
    return int(ExitCode.OK)
