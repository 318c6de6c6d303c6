"""`tokenspeed reload`: a running instance takes over what changed in its recipe."""

from __future__ import annotations

import argparse
import http.client
import json
from typing import Any

from tokenspeed import env
from tokenspeed.appliance.admin import RELOAD
from tokenspeed.appliance.front import ask_now
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.progress import say
from tokenspeed.cli.instances import name_argument, output_argument, required
from tokenspeed.errors import ExitCode, Problem, TokenspeedError, TryAgainError

HELP = (
    "have a running instance read its recipe again: keys that can change while it runs are applied "
    "at once; for every other changed key it says what that needs (x-reload in the schema)"
)
PATIENCE_SECONDS = 60.0


class RefusedError(TokenspeedError):
    """What the instance found wrong with its recipe, with the exit code that it has there."""

    def __init__(self, exit_code: ExitCode, *problems: Problem) -> None:
        super().__init__(*problems)
        self.exit_code = exit_code


def arguments(parser: argparse.ArgumentParser) -> None:
    name_argument(parser, optional=True)
    output_argument(parser)
    parser.add_argument(
        "--detailed-exitcode",
        action="store_true",
        help="end with 2 when something changed that was not applied",
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    record = required(args.name)
    result = _ask(record)
    if args.output == "json":
        print(json.dumps(result, indent=2))
    else:
        _tell(record, result)
    differs = args.detailed_exitcode and not result["complete"]
    return int(ExitCode.DIFFERS if differs else ExitCode.OK)


def _ask(record: Record) -> dict[str, Any]:
    try:
        status, body = ask_now(record.local, "POST", RELOAD, {}, PATIENCE_SECONDS, record.key)
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(record, str(error)) from error
    if status == 409:
        problems = [Problem(**problem | {"where": None}) for problem in body["problems"]]
        raise RefusedError(ExitCode(body["exit_code"]), *problems)
    if status != 200:
        raise _no_answer(record, f"it answered {status}")
    assert isinstance(body, dict)
    return body


def _tell(record: Record, result: dict[str, Any]) -> None:
    for change in result["changes"]:
        became = f"needs {change['needs']}" if change["needs"] else "applied"
        say(f"{change['key']}: {change['before']} -> {change['after']}: {became}")
    if not result["changes"] and not result["moved"]:
        say(f"{record.name}: nothing changed in {record.recipe}")
    if result["moved"]:
        say(f"its plan would also differ for another reason: tokenspeed status {record.name}")
    if any(change["needs"] for change in result["changes"]) or result["moved"]:
        say(_restart(record))
    elif record.generation is not None and not result["changes"]:
        say("`tokenspeed apply RECIPE` brings a changed recipe to an installed instance")


def _restart(record: Record) -> str:
    again = f"tokenspeed up {record.recipe}"
    return f"to restart it: tokenspeed down {record.name}, then {again}"


def _no_answer(record: Record, why: str) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S290",
            message=f"{record.name} (pid {record.pid}) cannot reload now: {why}",
            hint=f"`tokenspeed status {record.name}` shows its state; try again once it is ready",
        )
    )
