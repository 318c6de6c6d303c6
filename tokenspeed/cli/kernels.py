"""`tokenspeed kernels`: what computes each op, and why."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator

from tokenspeed_kernels import registry
from tokenspeed_kernels.bench import parts
from tokenspeed_kernels.spec import Device, DeviceRule, KernelSpec, Predicate

from tokenspeed.cli.planning import (
    hardware_argument,
    named_hardware,
    plan_recipe,
    recipe_arguments,
)
from tokenspeed.errors import ExitCode, Problem, UsageError
from tokenspeed.hardware.probe import probe
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import KernelChoice
from tokenspeed.recipe.words import nearest
from tokenspeed.resolve.device import device_kind, kernel_device

HELP = "list the kernels of this build, explain which of them a recipe gets, or time them"

_LIST = "every op with its kernels, best first; those that this machine cannot run say why"
_EXPLAIN = "the kernel of each op of a recipe, why it was taken, and what each other one missed"

_BENCH = (
    "time, floor and share of the floor of the kernels, on this machine's GPU, or else on one core"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", metavar="list|explain|bench", required=True)
    listing = verbs.add_parser("list", help=_LIST, description=_LIST, allow_abbrev=False)
    listing.add_argument("op", nargs="?", metavar="OP", help="one op, with all that it requires")
    hardware_argument(listing)
    explaining = verbs.add_parser(
        "explain", help=_EXPLAIN, description=_EXPLAIN, allow_abbrev=False
    )
    recipe_arguments(explaining)
    explaining.add_argument("op", nargs="?", metavar="OP", help="one op only")
    hardware_argument(explaining)
    timing = verbs.add_parser("bench", help=_BENCH, description=_BENCH, allow_abbrev=False)
    timing.add_argument("--op", metavar="OP", help="only what times this op")
    timing.add_argument("--only", choices=parts.NAMES, metavar="PART", help=_names())
    timing.add_argument(
        "--tune", action="store_true", help="on a GPU: every variant, not only the chosen one"
    )
    timing.add_argument("--out", metavar="FOLDER", help="also write FOLDER/DEVICE.json")
    timing.add_argument("--commit", metavar="ID", help="what to write there as the commit")
    for one in (listing, explaining):
        one.add_argument(
            "--output", choices=("text", "json"), default="text", help="text (default) or json"
        )


def _names() -> str:
    on = {kind: [p.name for p in parts.PARTS if p.kind == kind] for kind in ("cpu", "cuda")}
    return f"one of {', '.join(on['cpu'])} (CPU) or {', '.join(on['cuda'])} (GPU)"


def run(args: argparse.Namespace) -> int:
    if args.what == "bench":
        return _bench(args)
    hardware = named_hardware(args.hardware)
    if args.what == "explain":
        return _explain(args, hardware)
    ops = registry.ops() if args.op is None else (_op(args.op, registry.ops()),)
    machine = probe() if hardware is None else hardware
    device = kernel_device(machine, device_kind(machine))
    if args.output == "json":
        print(json.dumps([_as_data(op, spec, device) for op in ops for spec in registry.specs(op)],
                         indent=2))  # fmt: skip
        return int(ExitCode.OK)
    print(f"for {device.arch} ({device.kind})")
    for op in ops:
        print("\n".join(_listed(op, device, args.op is not None)))
    return int(ExitCode.OK)


def _listed(op: str, device: Device, whole: bool) -> Iterator[str]:
    yield ""
    yield op
    kernels = registry.specs(op)
    width = max(len(spec.name) for spec in kernels)
    for spec in kernels:
        miss = spec.device.miss(device)
        mark, said = (" ", spec.why) if miss is None else ("-", miss)
        yield f"{mark} {spec.name:{width}}  {said}"
        if whole:
            yield f"      {_where(spec.device)}"
            for field, predicate in spec.requires.items():
                yield f"      {field}: {predicate.text}"


def _where(rule: DeviceRule) -> str:
    archs = " or ".join(rule.archs) if rule.archs is not None else "any"
    features = f" with {', '.join(rule.features)}" if rule.features else ""
    return f"runs on {' or '.join(rule.kinds)}, {archs}{features}"


def _as_data(op: str, spec: KernelSpec, device: Device) -> dict[str, object]:
    return {
        "op": op,
        "kernel": spec.name,
        "why": spec.why,
        "reference": spec.is_reference,
        "kinds": spec.device.kinds,
        "archs": spec.device.archs,
        "features": spec.device.features,
        "requires": {field: _required(one) for field, one in spec.requires.items()},
        "missing": spec.device.miss(device),
    }


def _required(predicate: Predicate) -> object:
    return predicate.text if predicate.choices is None else list(predicate.choices)


def _explain(args: argparse.Namespace, hardware: Hardware | None) -> int:
    planned = plan_recipe(args.recipe, tuple(args.overrides), hardware)
    choices = planned.resolution.plan.kernels
    if args.op is not None:
        known = tuple(dict.fromkeys(choice.op for choice in choices))
        op = _op(args.op, known)
        choices = tuple(choice for choice in choices if choice.op == op)
    if args.output == "json":
        print(json.dumps([_choice_as_data(choice) for choice in choices], indent=2))
    else:
        print("\n\n".join(_explained(choice) for choice in choices))
    return int(ExitCode.OK)


def _explained(choice: KernelChoice) -> str:
    key = f"{choice.op}:{choice.variant}" if choice.variant else choice.op
    lines = [f"{key}: {choice.kernel or 'none'}, {choice.reason}"]
    width = max((len(loser.kernel) for loser in choice.rejected), default=0)
    lines += [f"  not {loser.kernel:{width}}  {loser.reason}" for loser in choice.rejected]
    return "\n".join(lines)


def _choice_as_data(choice: KernelChoice) -> dict[str, object]:
    return {
        "op": choice.op,
        "variant": choice.variant,
        "kernel": choice.kernel,
        "reason": choice.reason,
        "rejected": {loser.kernel: loser.reason for loser in choice.rejected},
    }


def _bench(args: argparse.Namespace) -> int:
    """In a process of its own: this one does without torch."""
    if args.op is not None:
        _op(args.op, tuple(dict.fromkeys(op for part in parts.PARTS for op in part.ops)))
    given = {"op": args.op, "only": args.only, "out": args.out, "commit": args.commit}
    command = [sys.executable, "-P", "-m", "tokenspeed_kernels.bench"]
    command += [f"--{name}={value}" for name, value in given.items() if value is not None]
    command += ["--tune"] if args.tune else []
    return subprocess.run(command, check=False).returncode


def _op(written: str, known: tuple[str, ...]) -> str:
    if written in known:
        return written
    near = nearest(written, known)
    guess = f"did you mean {near}? " if near else ""
    raise UsageError(
        Problem(
            code="TS-C005",
            message=f"there is no op {written!r}",
            hint=f"{guess}the ops are {', '.join(known)}",
        )
    )
