"""`tokenspeed admin`: what may be done to an instance while it runs."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from typing import Any

from tokenspeed import env
from tokenspeed import log as logs
from tokenspeed.appliance.front import ask_now
from tokenspeed.appliance.instance import Record
from tokenspeed.cli.instances import name_argument, output_argument, required
from tokenspeed.counts import whole
from tokenspeed.errors import ExitCode, Problem, UnavailableError
from tokenspeed.server.admin import DEFAULT_STEPS, MAX_STEPS, PROFILE_SECONDS

HELP = (
    "drain, flush or profile a running instance, see the load of its experts, or change its log "
    "level. This goes through the socket in its run folder: only for the user who runs it, on "
    "this machine"
)

_DRAIN = (
    "refuse new requests (503, and /readyz says so) and wait until the open ones are answered. The "
    "instance keeps running: `resume` accepts requests again, `tokenspeed down` stops it"
)
_RESUME = "accept requests again after `drain`"
_FLUSH = (
    "drop the prefix cache: the next request of each conversation computes its whole prompt. "
    "Running requests continue"
)
_EXPERTS = (
    "show how evenly tokens were routed since the worker started: for each layer, the busiest "
    "expert and its tokens over the mean. The counts of all experts are in "
    "`--output json`. Needs `advanced.expert_load: true` in the recipe"
)
_PROFILE = (
    "profile the next steps of the worker and print the path of the trace: open it in "
    "https://ui.perfetto.dev or chrome://tracing. It is in the run folder, which is deleted with "
    f"the instance, so copy it. Steps need requests; recording ends after {PROFILE_SECONDS:g} s "
    "in any case. The instance is slower meanwhile"
)
_LEVEL = "set the log level until the instance ends; it starts with info"

ANSWER_SECONDS = 15.0
TRACE_SECONDS = 100.0
LOOK_SECONDS = 0.2  # between looks at a drain


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(
        dest="what", metavar="drain|resume|flush|experts|profile|log-level", required=True
    )
    for name, words in (
        ("drain", _DRAIN),
        ("resume", _RESUME),
        ("flush", _FLUSH),
        ("experts", _EXPERTS),
    ):
        _verb(verbs, name, words)
    profiling = _verb(verbs, "profile", _PROFILE)
    profiling.add_argument(
        "--steps",
        type=whole(1, MAX_STEPS),
        metavar="N",
        default=DEFAULT_STEPS,
        help=f"how many steps, {MAX_STEPS} at most (default: {DEFAULT_STEPS})",
    )
    level = verbs.add_parser("log-level", help=_LEVEL, description=_LEVEL, allow_abbrev=False)
    level.add_argument("level", choices=logs.LEVELS, help=" | ".join(logs.LEVELS), metavar="LEVEL")
    name_argument(level, optional=True)
    output_argument(level)


def _verb(verbs: Any, name: str, words: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = verbs.add_parser(
        name, help=words.split(":")[0], description=words, allow_abbrev=False
    )
    name_argument(made, optional=True)
    output_argument(made)
    return made


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    record = required(args.name)
    answer = _do(args, record)
    if args.output == "json":
        print(json.dumps(answer, indent=2))
    else:
        print(_told(args.what, answer))
    return int(ExitCode.OK)


def _do(args: argparse.Namespace, record: Record) -> dict[str, Any]:
    match args.what:
        case "drain":
            return _drain(record)
        case "profile":
            return _post(record, "profile", {"steps": args.steps}, TRACE_SECONDS)
        case "log-level":
            return _post(record, "log-level", {"level": args.level})
        case what:
            return _post(record, what, {})


def _drain(record: Record) -> dict[str, Any]:
    """Waits for the open requests; who interrupts it leaves the instance draining."""
    answer = _post(record, "drain", {})
    if answer["open_requests"]:
        note = f"open requests: {answer['open_requests']}; Ctrl-C ends the wait, not the drain"
        print(note, file=sys.stderr)
    while answer["open_requests"]:
        time.sleep(LOOK_SECONDS)
        answer = _post(record, "drain", {})
    return answer


def _told(what: str, answer: dict[str, Any]) -> str:
    match what:
        case "drain":
            return "drained: no request is open or let in; `tokenspeed admin resume` ends that"
        case "resume" if answer["draining"]:
            return "it stops: its drain cannot be taken back"
        case "resume":
            return "requests are let in again"
        case "flush":
            return f"{answer['blocks']} blocks of cached prefixes are forgotten"
        case "experts":
            return "\n".join(map(_layer, answer["layers"]))
        case "profile" if not answer["steps"]:
            return (
                f"{answer['file']} holds no step: none was computed within {PROFILE_SECONDS:g} s; "
                "send requests meanwhile"
            )
        case "profile":
            return f"{answer['file']}  (steps: {answer['steps']})"
        case _:
            return f"it logs {answer['level']} and what is worse"


def _layer(load: dict[str, Any]) -> str:
    tokens = load["tokens"]
    busiest = tokens.index(max(tokens))
    unused = tokens.count(0)
    return (
        f"layer {load['layer']:3}  {sum(tokens)} tokens over {len(tokens)} experts, {unused} of "
        f"them unused; the busiest, {busiest}, has {load['imbalance']:.2f} times the mean"
    )


def _post(
    record: Record, what: str, body: dict[str, Any], seconds: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """Raises UnavailableError when the instance does not do it."""
    try:
        path = f"/admin/{what}"
        status, answer = ask_now(record.local, "POST", path, body, seconds, key=record.key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _refused(record, f"no answer from {record.local}: {error}") from error
    if status == 200 and isinstance(answer, dict):
        return answer
    said = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
    raise _refused(record, said or f"it answers {status}")


def _refused(record: Record, why: str) -> UnavailableError:
    return UnavailableError(
        Problem(
            code="TS-C013",
            message=f"{record.name} does not do it: {why}",
            hint=f"`tokenspeed status {record.name}` shows its state",
        )
    )
