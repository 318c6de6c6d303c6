"""`tokenspeed bench decode` and `prefill`: the engine without server or weights, on this device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tokenspeed.bench import decode, prefill, report
from tokenspeed.bench.engine import engine
from tokenspeed.bench.floors import floors
from tokenspeed.bench.trace import Trace, trace
from tokenspeed.plan import Plan

DECODE_SECONDS = 0.6


def run_decode(args: argparse.Namespace, plan: Plan, console: Console) -> None:
    """Each point of `args` that there is room for; a table, traces, and figures to keep."""
    device = torch.cuda.get_device_name()
    least = floors(plan, device)
    measured, traces = [], []
    with engine(plan, console.print, args.uniform_experts) as run:
        for batch, context in args.points:
            if not decode.fits(run, batch, context):
                console.print(f"{batch} x {context}: no room", style="dim")
                continue
            turns = max(16, int(DECODE_SECONDS / least.decode_seconds(batch, context)))
            measured.append(decode.measure(run, least, batch, context, turns))
            console.print(str(measured[-1]), style="dim")
        for point in args.trace:
            traces.append(trace(run, *point))
    table = Table(title=f"Decode, {plan.model.source} on {device}", title_justify="left")
    for name in ("users", "context", "tok/s user", "step ms", "floor ms", "of the floor",
                 "experts read"):  # fmt: skip
        table.add_column(name, justify="right")
    for point in measured:
        table.add_row(
            str(point.batch), str(point.context), f"{point.tps_user:.1f}",
            f"{point.step_ms:.3f}", f"{point.floor_ms:.3f}", f"{point.fraction:.1%}",
            "" if point.experts_read is None else f"{point.experts_read:.1f}",
        )  # fmt: skip
    console.print(table)
    for traced in traces:
        _print_trace(console, traced)
    _save(args, "decode", device, plan.name, measured, {"traces": [asdict(one) for one in traces]})


def run_prefill(args: argparse.Namespace, plan: Plan, console: Console) -> None:
    """Prompts alone, then beside others that decode; a table, and figures to keep."""
    device = torch.cuda.get_device_name()
    least = floors(plan, device)
    block = plan.cache.block_size
    measured, beside = [], []
    with engine(plan, console.print, args.uniform_experts) as run:
        for new, cached in args.points:
            measured.append(prefill.measure(run, least, new, cached // block * block, args.runs))
        for new, cached, batch, context in args.beside:
            behind = cached // block * block
            beside.append(prefill.measure_beside(run, new, behind, batch, context, args.runs))
        console.print(run.graph_share())
    table = Table(title=f"Prefill, {plan.model.source} on {device}", title_justify="left")
    for name in ("new", "cached", "first token ms", "tok/s", "floor ms", "of the floor"):
        table.add_column(name, justify="right")
    for point in measured:
        table.add_row(
            str(point.new), str(point.cached), f"{point.ttft_ms:.1f}",
            f"{point.tokens_s:,.0f}", f"{point.floor_ms:.1f}", f"{point.fraction:.1%}",
        )  # fmt: skip
    console.print(table)
    for one in beside:
        console.print(
            f"{one.new} on {one.cached} beside {one.batch} x {one.context}: first token "
            f"{one.ttft_ms:.1f} ms; a step of theirs {one.step_ms:.1f} ms, at most "
            f"{one.longest_ms:.1f}"
        )
    _save(args, "prefill", device, plan.name, measured, {"beside": [asdict(one) for one in beside]})


def _print_trace(console: Console, traced: Trace) -> None:
    console.print(
        f"{traced.batch} x {traced.context}: device busy {traced.busy:.2%}; from the end of a "
        f"step's graph to the start of the next {traced.between_replays_us:.1f} us (median; "
        f"{traced.busy_between_us:.1f} of them busy; {traced.longest_between_us:.1f} at most); "
        "longest pauses " + ", ".join(f"{gap:.1f}" for gap in traced.gaps_us)
    )
    for name, us, launches in traced.kernels:
        console.print(f"{us:9.1f} us {launches:6.1f} x  {name}", highlight=False, markup=False)


def _save(
    args: argparse.Namespace,
    kind: str,
    device: str,
    name: str,
    points: Sequence[Any],
    more: dict[str, Any],
) -> None:
    body = {
        "recipe": name,
        "overrides": args.overrides,
        "uniform_experts": args.uniform_experts,
        "torch": torch.__version__,
        "points": [asdict(point) for point in points],
    }
    if args.commit:
        body["commit"] = args.commit
    report.keep(Console(stderr=True), args.out, f"{kind}-{name}", device, body | more)
