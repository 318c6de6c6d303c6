"""`tokenspeed bench agentic`: numbers of users one after the other, a table, JSON and a picture."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tokenspeed import env
from tokenspeed.bench import report
from tokenspeed.bench.agentic import inside, options, outside
from tokenspeed.bench.agentic.records import Level, summarise
from tokenspeed.bench.agentic.simulated import Costs, Simulated
from tokenspeed.bench.agentic.workload import Script, Workload, python_sources, scripts
from tokenspeed.bench.engine import engine
from tokenspeed.plan import Plan

# Sessions of one level, more than anybody runs.
_LEVEL = 1_000_000


@dataclass(frozen=True, slots=True)
class _Target:
    """What is measured: `run` gives the figures of a workload."""

    name: str
    device: str
    details: dict[str, Any]
    run: Callable[[Workload, int, float, Iterator[Script]], Level]


def run(args: argparse.Namespace, plans: list[Plan], console: Console) -> None:
    """`plans`: of engines in this process, none for a server. Raises UnavailableError where that
    does not answer, UsageError where sessions do not fit into its context."""
    if args.url:
        with _outside(args) as target:
            _sweep(args, target, console)
    for plan in plans:
        with _simulated(args, plan) if args.simulate else _inside(args, plan, console) as target:
            _sweep(args, target, console)
        del target
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next one fills the device too


def _sweep(args: argparse.Namespace, target: _Target, console: Console) -> None:
    workloads = options.workloads(args)
    curves: dict[str, list[Level]] = {}
    for workload in workloads:
        console.print(str(workload), highlight=False)
        curves[workload.name] = []
        for number, (users, seconds) in enumerate(options.levels(args)):
            # Never the sessions of another level: a server has those in its cache.
            each = scripts(workload, args.seed, number * _LEVEL)
            level = target.run(workload, users, seconds, each)
            curves[workload.name].append(level)
            console.print(
                f"users: {users}, answers begun: {level.turns}, {level.tps_user:.1f} tokens/s of a "
                f"user, {60 * level.output_s:,.0f} tokens/min of answers", style="dim"
            )  # fmt: skip
        _print(console, f"{target.name}, {workload.name}", curves[workload.name])
        # One that takes minutes is kept before the next one begins.
        _keep(args, target, workloads, curves, console)


@contextmanager
def _outside(args: argparse.Namespace) -> Iterator[_Target]:
    key = env.secret(args.api_key) if args.api_key else None
    url = args.url.rstrip("/").removesuffix("/v1")
    endpoint = outside.Endpoint(url, args.model, key, not args.no_ignore_eos)
    corpus = python_sources()
    most = outside.most_tokens(endpoint)
    if most is not None:
        for workload in options.workloads(args):
            options.require_room(workload, args.scale, most, "take a server with a longer context")

    def measure(workload: Workload, users: int, seconds: float, each: Iterator[Script]) -> Level:
        level = outside.run_level(endpoint, workload, corpus, users, seconds, each)
        return summarise(asyncio.run(level), users, args.devices)

    yield _Target(args.label or args.model, report.cpu_name(), {"url": url}, measure)


@contextmanager
def _inside(args: argparse.Namespace, plan: Plan, console: Console) -> Iterator[_Target]:
    ids = inside.Ids(python_sources(), plan.model.config.vocab_size)
    on_gpu = plan.device.kind == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else report.cpu_name()
    details = _details(args, plan) | {"uniform_experts": args.uniform_experts}
    with engine(plan, console.print, args.uniform_experts) as built:

        def measure(
            workload: Workload, users: int, seconds: float, each: Iterator[Script]
        ) -> Level:
            seen = inside.run_level(built, workload, ids, users, args.warm_up, seconds, each)
            level = summarise(seen.records, users, 1, seen.seconds)
            return replace(level, experts_read=built.routes.read(users))

        yield _Target(args.label or plan.name, device, details, measure)
        console.print(built.graph_share())


@contextmanager
def _simulated(args: argparse.Namespace, plan: Plan) -> Iterator[_Target]:
    device = options.device_of(args.simulate)
    ids = inside.Ids(python_sources(), plan.model.config.vocab_size)
    simulated = Simulated(plan, Costs.of(plan, device, args.uniform_experts))

    def measure(workload: Workload, users: int, seconds: float, each: Iterator[Script]) -> Level:
        seen = inside.run_level(simulated, workload, ids, users, args.warm_up, seconds, each)
        level = summarise(seen.records, users, 1, seen.seconds)
        return replace(level, delay=simulated.take_delays())

    details = _details(args, plan) | {"simulated": True, "uniform_experts": args.uniform_experts}
    yield _Target(args.label or plan.name, f"{device}, simulated", details, measure)


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


def _keep(
    args: argparse.Namespace,
    target: _Target,
    workloads: list[Workload],
    curves: dict[str, list[Level]],
    console: Console,
) -> None:
    body: dict[str, Any] = {
        "label": target.name,
        **target.details,
        "devices": args.devices,
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
