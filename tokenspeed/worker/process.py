"""One worker process: `python -m tokenspeed.worker --run-dir DIR --model-dir DIR --endpoint E`.

Reads DIR/plan.json, loads the model, serves until told to stop. Dies with its parent.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from tokenspeed import log as logs
from tokenspeed import streams
from tokenspeed.errors import ExitCode, Problem, TokenspeedError, UnavailableError, Where
from tokenspeed.plan import Plan
from tokenspeed.stages import Stages
from tokenspeed.wire import Ready
from tokenspeed.worker.build import build
from tokenspeed.worker.profile import Profiler
from tokenspeed.worker.service import Service

log = logging.getLogger("tokenspeed.worker")


def main(arguments: Sequence[str], asked: float) -> int:
    """Returns the exit code: 0 after a shutdown, that of the error otherwise. `asked` is when this
    process was asked for, monotonic seconds."""
    streams.prepare()
    faulthandler.enable()  # the front ends a worker that hangs with SIGABRT: this shows where
    options = _parse(arguments)
    handler = logs.setup()
    try:
        return _run(options, asked)
    except TokenspeedError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception:
        log.exception("the worker failed")
        return ExitCode.INTERNAL
    finally:
        handler.close()


def _run(options: argparse.Namespace, asked: float) -> ExitCode:
    plan = _read_plan(options.run_dir / "plan.json")
    service = _bind(options.endpoint)
    # Ctrl-C reaches the whole group; the front decides when its worker stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    try:
        stages = Stages(service.starting, before=time.monotonic() - asked)
        built = build(plan, options.model_dir, stages)
        ready = Ready(capacity=built.capacity, stages=stages.done())
        log.info("ready", extra={"fields": msgspec.to_builtins(ready)})
        try:
            return service.serve(built.loop, ready, Profiler(options.run_dir))
        finally:
            built.loop.close()
    finally:
        service.close()


def _bind(endpoint: str) -> Service:
    try:
        return Service(endpoint)
    except OSError as error:
        raise UnavailableError(
            Problem(
                code="TS-E020",
                message=f"cannot listen on {endpoint}: {error}",
                hint="the run directory must exist and be writable; its path must be short",
            )
        ) from error


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.from_json(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UnavailableError(
            Problem(
                code="TS-E021",
                message=f"no plan can be read: {error}",
                where=Where(str(path)),
                hint="workers are started by `tokenspeed up`, which writes the plan",
            )
        ) from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="python -m tokenspeed.worker", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="holds plan.json")
    parser.add_argument("--model-dir", type=Path, required=True, help="holds the weights")
    parser.add_argument("--endpoint", required=True, help="the socket to listen at: a path")
    return parser.parse_args(arguments)
