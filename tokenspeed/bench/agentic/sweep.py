"""`tokenspeed bench agentic`: numbers of users one after the other, a table, JSON and a picture."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tokenspeed import env
from tokenspeed.bench import report
from tokenspeed.bench.agentic import inside, outside
from tokenspeed.bench.agentic.records import Level, summarise
from tokenspeed.bench.agentic.simulated import Costs, Simulated
from tokenspeed.bench.agentic.workload import (
    WORKLOADS,
    Script,
    Span,
    Workload,
    python_sources,
    scripts,
)
from tokenspeed.bench.engine import engine, plan_of
from tokenspeed.bench.floors import CEILINGS
from tokenspeed.errors import Problem, UsageError
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.plan import Plan

# Sessions of one level, more than anybody runs.
_LEVEL = 1_000_000


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _amount(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number above 0")


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe = Path(__file__).parents[3] / "recipes" / "qwen3-8b-h200x1-latency.yaml"
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
    parser.add_argument("--model", help="what that server calls the model")
    parser.add_argument("--api-key", metavar="REFERENCE", help="env:NAME or file:/path")
    parser.add_argument(
        "--no-ignore-eos", action="store_true", help="the server lacks this field; answers may end"
    )
    parser.add_argument("--devices", type=_count, default=1, help="of the server (default 1)")
    parser.add_argument("--recipe", type=Path, default=recipe, help="default: %(default)s")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--workload", nargs="+", choices=[*WORKLOADS], default=["fixed"])
    parser.add_argument(
        "--shape", metavar="SYSTEM/FIRST/TURNS/ADDED/GENERATED",
        help="a workload of your own in tokens, each but the first a number or LOW-HIGH",
    )  # fmt: skip
    parser.add_argument("--scale", type=_amount, default=1.0, help="of prompts (default 1)")
    parser.add_argument("--users", nargs="+", type=_count, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=_amount, default=30.0, help="of each (default 30)")
    parser.add_argument(
        "--warm-up", type=_amount, default=3.0, metavar="SECONDS",
        help="before them, without --url (default 3)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--uniform-experts", action="store_true",
        help="choose experts at random, evenly, instead of by the router of random weights",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep figures and picture there")
    parser.add_argument("--commit", help="what is measured, where this is no git checkout")


@dataclass(frozen=True, slots=True)
class _Target:
    """What is measured: `run` gives the figures of a workload. `most_tokens`: of a prompt and its
    answer, None where nobody knows."""

    name: str
    device: str
    details: dict[str, Any]
    run: Callable[[Workload, int, Iterator[Script]], Level]
    most_tokens: int | None = None


def run(args: argparse.Namespace, console: Console) -> None:
    """Raises UsageError, and UnavailableError where the server does not answer."""
    workloads = [workload.scaled(args.scale) for workload in _workloads(args)]
    curves: dict[str, list[Level]] = {}
    for target in _targets(args, console):
        for workload in workloads:
            _require_room(workload, args.scale, target.most_tokens)
            console.print(str(workload), highlight=False)
            curves[workload.name] = []
            for number, users in enumerate(args.users):
                # Never the sessions of another level: a server has those in its cache.
                each = scripts(workload, args.seed, number * _LEVEL)
                level = target.run(workload, users, each)
                curves[workload.name].append(level)
                console.print(f"{users} users: {level.turns} answers begun", style="dim")
            _print(console, f"{target.name}, {workload.name}", curves[workload.name])
        _save(args, target, workloads, curves, console)


def _require_room(workload: Workload, scaled_by: float, most_tokens: int | None) -> None:
    if most_tokens is None or workload.most_tokens <= most_tokens:
        return
    message = f"sessions of {workload.most_tokens} tokens, and requests have {most_tokens} at most"
    hint = (
        f"--set model.max_context={workload.most_tokens} (beyond the model's positions also "
        "--set advanced.beyond_model_context=true)"
    )
    begin = workload.system + workload.first.high
    if (left := most_tokens - (workload.most_tokens - begin)) > 1:
        scale = math.floor(100 * left / begin) / 100 * scaled_by
        hint += f", or shorter prompts: --scale {scale:.2g}" if scale >= 0.01 else ""
    raise UsageError(Problem(code="TS-B003", message=message, hint=hint))


def _targets(args: argparse.Namespace, console: Console) -> Iterator[_Target]:
    if args.url:
        return _outside(args)
    return _simulated(args) if args.simulate else _inside(args, console)


def _workloads(args: argparse.Namespace) -> list[Workload]:
    if args.shape is None:
        return [WORKLOADS[name] for name in args.workload]
    try:
        system, *spans = args.shape.split("/")
        ends = [tuple(map(int, span.split("-"))) for span in spans]
        first, turns, added, generated = (Span(end[0], end[-1]) for end in ends)
        if not all(1 <= span.low <= span.high for span in (first, turns, added, generated)):
            raise ValueError("a span that is empty or begins below 1")
        workload = Workload("own", int(system), first, turns, added, generated)
    except ValueError as error:
        raise UsageError(
            Problem(
                code="TS-B003",
                message=f"--shape {args.shape} is not SYSTEM/FIRST/TURNS/ADDED/GENERATED",
                hint="for example --shape 8000/42000/10-15/800/500",
            )
        ) from error
    return [workload]


def _outside(args: argparse.Namespace) -> Iterator[_Target]:
    if args.model is None:
        raise UsageError(
            Problem(code="TS-B003", message="--url needs --model", hint="GET /v1/models lists them")
        )
    key = env.secret(args.api_key) if args.api_key else None
    url = args.url.rstrip("/").removesuffix("/v1")
    endpoint = outside.Endpoint(url, args.model, key, not args.no_ignore_eos)
    corpus = python_sources()

    def measure(workload: Workload, users: int, each: Iterator[Script]) -> Level:
        level = outside.run_level(endpoint, workload, corpus, users, args.seconds, each)
        return summarise(asyncio.run(level), users, args.devices)

    yield _Target(args.model, report.cpu_name(), {"url": url}, measure)


def _inside(args: argparse.Namespace, console: Console) -> Iterator[_Target]:
    plan = plan_of(args.recipe, tuple(args.overrides))
    corpus = python_sources()
    on_gpu = plan.device.kind == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else report.cpu_name()
    details = _details(args, plan) | {"uniform_experts": args.uniform_experts}
    with engine(plan, console.print, args.uniform_experts) as built:

        def measure(workload: Workload, users: int, each: Iterator[Script]) -> Level:
            seen = inside.run_level(
                built, workload, corpus, users, args.warm_up, args.seconds, each
            )
            level = summarise(seen.records, users, 1, seen.seconds)
            return replace(level, experts_read=built.routes.read(users))

        yield _Target(plan.name, device, details, measure, plan.scheduler.max_model_len)
        console.print(built.graph_share())


def _simulated(args: argparse.Namespace) -> Iterator[_Target]:
    hardware = load_hardware(args.simulate)
    device = hardware.gpus[0].name if hardware.gpus else hardware.cpu.model
    if device not in CEILINGS:
        raise UsageError(
            Problem(
                code="TS-B003",
                message=f"nobody measured what steps take on {device}",
                hint=f"steps of {', '.join(CEILINGS)} are known",
            )
        )
    plan = plan_of(args.recipe, tuple(args.overrides), hardware)
    corpus = python_sources()
    simulated = Simulated(plan, Costs.of(plan, device))

    def measure(workload: Workload, users: int, each: Iterator[Script]) -> Level:
        seen = inside.run_level(
            simulated, workload, corpus, users, args.warm_up, args.seconds, each
        )
        level = summarise(seen.records, users, 1, seen.seconds)
        return replace(level, delay=simulated.take_delays())

    details = _details(args, plan) | {"simulated": True}
    most = plan.scheduler.max_model_len
    yield _Target(plan.name, f"{device}, simulated", details, measure, most)


def _details(args: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    return {"recipe": plan.name, "overrides": args.overrides, "warm_up": args.warm_up}


def _print(console: Console, title: str, levels: list[Level]) -> None:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in (
        "users", "tok/s\nuser", "out\ntok/s", "in\ntok/s", "TPM\nall", "TPM\nnew",
        "first\nturn s", "later\nturns s", "hit/ideal\n%", "step\n+ms",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for level in levels:
        table.add_row(
            str(level.users), f"{level.tps_user:.1f}", f"{level.output_s:,.0f}",
            f"{level.prefill_s:,.0f}", f"{level.tpm / 1e6:,.2f}M",
            f"{level.tpm_computed / 1e6:,.2f}M", _both(level.ttft_first),
            _both(level.ttft_later), f"{100 * level.hit_rate:.2f}/{100 * level.ideal_hit_rate:.2f}",
            "-" if level.delay is None else "/".join(f"{1e3 * one:.0f}" for one in level.delay),
        )  # fmt: skip
    # A file or a pipe has no width of its own that would be worth cutting figures for.
    Console(file=console.file, width=max(console.width, 100)).print(table)
    console.print(
        "out: answers. in: prompt tokens that were computed. TPM: tokens a minute and device, all "
        "or without those found in the cache. Time to the first token: median/95th percentile. "
        "+ms: what prompts add to steps with answers, 95th percentile/longest.",
        style="dim",
    )


def _both(waits: tuple[float, float] | None) -> str:
    return "-" if waits is None else f"{waits[0]:.2f}/{waits[1]:.2f}"


def _save(
    args: argparse.Namespace,
    target: _Target,
    workloads: list[Workload],
    curves: dict[str, list[Level]],
    console: Console,
) -> None:
    body: dict[str, Any] = {
        **target.details,
        "devices": args.devices,
        "seconds": args.seconds,
        "seed": args.seed,
        "workloads": [asdict(workload) for workload in workloads],
        "levels": {name: [asdict(level) for level in curve] for name, curve in curves.items()},
    }
    if args.commit:
        body["commit"] = args.commit
    kind = f"agentic-{target.name.split('/')[-1]}"
    path = report.keep(console, args.out, kind, target.device, body)
    if path is None:
        return
    try:
        # matplotlib comes with the bench extra, and not with the engine.
        pareto = importlib.import_module("tokenspeed.bench.agentic.pareto")
    except ModuleNotFoundError as error:
        console.print(f"no picture: {error.name} is not installed", style="dim")
        return
    picture = path.with_suffix(".png")
    pareto.draw(curves, f"{target.name} on {target.device}", picture)
    console.print(f"drawn in {picture}", style="dim")
