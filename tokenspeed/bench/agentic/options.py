"""What `tokenspeed bench agentic` takes, checked before anything heavy is imported."""

from __future__ import annotations

import argparse
import math
from itertools import product

from tokenspeed.bench import options
from tokenspeed.bench.agentic.workload import WORKLOADS, Span, Workload
from tokenspeed.bench.floors import CEILINGS
from tokenspeed.bench.plans import plan_of
from tokenspeed.counts import amount, whole
from tokenspeed.errors import Problem, UsageError
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.plan import Plan

SHAPE = "SYSTEM/FIRST/TURNS/ADDED/GENERATED"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Agents on long prompts: sessions that share a system prompt, each of many turns, each "
        "turn the whole conversation again. As many at once as there are users, the next one as "
        "soon as one ends. Without --url the engine runs in this process, on random weights. With "
        "--simulate nothing is computed: the real scheduler plans steps, and each moves a clock by "
        "what such steps were measured to take."
    )
    parser.add_argument(
        "--simulate", metavar="HARDWARE", help="a profile, as `tokenspeed plan --hardware` takes it"
    )
    parser.add_argument("--url", help="a server that speaks the OpenAI chat API, without /v1")
    parser.add_argument("--model", help="the model's name on that server")
    parser.add_argument("--api-key", metavar="REFERENCE", help="env:NAME or file:/path")
    parser.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="for a server without this field: answers may end early",
    )
    parser.add_argument(
        "--devices",
        type=whole(1),
        default=1,
        help="GPUs of the server, for tokens per minute of one (default 1)",
    )
    options.engine(parser, options.AGENTIC, several=True)
    parser.add_argument(
        "--workload", nargs="+", choices=[*WORKLOADS], default=["fixed"],
        help="turns of one size, or of sizes that vary (default fixed)",
    )  # fmt: skip
    parser.add_argument(
        "--shape", type=_own, metavar=SHAPE,
        help="a workload of your own in tokens, each but the first a number or LOW-HIGH",
    )  # fmt: skip
    parser.add_argument(
        "--scale", type=amount, default=1.0, help="multiplies the lengths of prompts (default 1)"
    )
    parser.add_argument(
        "--users", nargs="+", type=whole(1), default=[1, 2, 4, 8, 16],
        help="numbers of sessions at once, measured in turn (default 1 2 4 8 16)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", nargs="+", type=amount, default=[30.0],
        help="how long each number of users is measured, or one time for each (default 30)",
    )  # fmt: skip
    parser.add_argument(
        "--warm-up", type=amount, default=3.0, metavar="SECONDS",
        help="not counted, before each, without --url (default 3)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the sessions (default 0)")
    parser.add_argument("--label", help="name of figures and file (default: from the recipe)")


def levels(args: argparse.Namespace) -> list[tuple[int, float]]:
    """Numbers of users, and for how long each is looked at."""
    seconds = args.seconds * len(args.users) if len(args.seconds) == 1 else args.seconds
    if len(seconds) != len(args.users):
        raise UsageError(
            Problem(
                code="TS-B003",
                message=f"{len(seconds)} times --seconds for {len(args.users)} numbers of users",
                hint="give one for all of them, or as many",
            )
        )
    return list(zip(args.users, seconds, strict=True))


def workloads(args: argparse.Namespace) -> list[Workload]:
    asked = [WORKLOADS[name] for name in args.workload] if args.shape is None else [args.shape]
    return [workload.scaled(args.scale) for workload in asked]


def device_of(profile: str) -> str:
    """What the driver calls the device of that profile. Raises TokenspeedError where it is unknown,
    or step times were never measured on it."""
    hardware = load_hardware(profile)
    device = hardware.gpus[0].name if hardware.gpus else hardware.cpu.model
    if device not in CEILINGS:
        raise UsageError(
            Problem(
                code="TS-B003",
                message=f"step times were never measured on {device}",
                hint=f"steps of {', '.join(CEILINGS)} are known",
            )
        )
    return device


def plans(args: argparse.Namespace) -> list[Plan]:
    """Of what runs in this process, one after the other; none for a server. Raises TokenspeedError
    for what cannot be measured."""
    levels(args)
    if args.label and len(args.recipe) > 1:
        raise UsageError(
            Problem(code="TS-B003", message="one --label for several recipes", hint="leave it out")
        )
    if args.url and args.model is None:
        raise UsageError(
            Problem(code="TS-B003", message="--url needs --model", hint="GET /v1/models lists them")
        )
    if args.url:
        return []
    if args.simulate:
        device_of(args.simulate)
    hardware = load_hardware(args.simulate) if args.simulate else None
    found = [plan_of(recipe, tuple(args.overrides), hardware) for recipe in args.recipe]
    for plan, workload in product(found, workloads(args)):
        longer = (
            f"--set model.max_context={workload.most_tokens} (beyond the model's positions also "
            "--set advanced.beyond_model_context=true)"
        )
        require_room(workload, args.scale, plan.scheduler.max_model_len, longer)
    return found


def _own(text: str) -> Workload:
    try:
        system, *spans = text.split("/")
        ends = [tuple(map(int, span.split("-"))) for span in spans]
        first, turns, added, generated = (Span(end[0], end[-1]) for end in ends)
        if not all(1 <= span.low <= span.high for span in (first, turns, added, generated)):
            raise ValueError("a span that is empty or begins below 1")
        return Workload("own", int(system), first, turns, added, generated)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is not {SHAPE}, for example 8000/42000/10-15/800/500"
        ) from error


def require_room(workload: Workload, scaled_by: float, most_tokens: int, longer: str) -> None:
    """Raises UsageError where sessions do not fit into a context; `longer` says how to get a longer
    one."""
    if workload.most_tokens <= most_tokens:
        return
    message = f"sessions of {workload.most_tokens} tokens, and requests have {most_tokens} at most"
    begin = workload.system + workload.first.high
    if (left := most_tokens - (workload.most_tokens - begin)) > 1:
        scale = math.floor(100 * left / begin) / 100 * scaled_by
        longer += f", or shorter prompts: --scale {scale:.2g}" if scale >= 0.01 else ""
    raise UsageError(Problem(code="TS-B003", message=message, hint=longer))
