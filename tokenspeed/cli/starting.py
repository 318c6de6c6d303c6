"""What `tokenspeed up` does with what it was asked for."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from tokenspeed import env
from tokenspeed import log as logs
from tokenspeed.appliance import detach
from tokenspeed.appliance.early import EarlyWorker
from tokenspeed.appliance.order import Order, refuse_unmet
from tokenspeed.appliance.progress import display, say
from tokenspeed.appliance.rollout import Rollout
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.up import up, up_installed
from tokenspeed.cli.locking import require_locked
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.cli.rolling import generations_of
from tokenspeed.errors import ExitCode, Problem, UsageError
from tokenspeed.journal import JournalHandler, MessageFormatter, leads_to_journal
from tokenspeed.plan import Plan
from tokenspeed.resolve.lock import lock_path, wishes_of


def start(args: argparse.Namespace, early: EarlyWorker | None) -> int:
    if args.installed:
        return _installed(args)
    if args.recipe is None:
        raise UsageError(
            Problem(
                code="TS-C001",
                message="which recipe?",
                hint="tokenspeed up RECIPE, or tokenspeed up --installed NAME",
            )
        )
    order = replace(_order(args, args.recipe, locked=args.locked), early=early)
    if args.locked:
        Store(env.data_root() / "weights").hold(lock_path(args.recipe))
    if args.detach:
        return _detached(args, order.plan)
    handler = _log_handler(args.log_format)
    try:
        again = partial(_order, args, args.recipe, locked=False)
        return int(up(order, again, handler))
    finally:
        handler.close()


def _order(args: argparse.Namespace, recipe: Path, *, locked: bool) -> Order:
    overrides = tuple(args.overrides)
    planned = plan_recipe(recipe, overrides)
    if locked:
        require_locked(planned)
    refuse_unmet(planned.resolution.plan)
    return Order(
        plan=planned.resolution.plan,
        recipe=recipe,
        offline=args.offline,
        log_draft=args.log_draft,
        overrides=overrides,
        wishes=wishes_of(planned.loaded),
    )


def _installed(args: argparse.Namespace) -> int:
    if args.recipe or args.overrides or args.detach:
        raise UsageError(
            Problem(
                code="TS-C001",
                message="--installed runs a generation as it is, in the foreground",
                hint="change it with `tokenspeed apply RECIPE --set ...`",
            )
        )
    generations = generations_of(args.installed)
    handler = _log_handler(args.log_format)
    try:
        rollout = Rollout(generations, lambda recipe: _order(args, recipe, locked=True))
        return int(up_installed(rollout, handler))
    finally:
        handler.close()


def _log_handler(form: str) -> logs.QueueHandler:
    """Records with their fields where standard error is the journal's, unless JSON is wanted."""
    if form == "text" and leads_to_journal(env.journal_stream(), 2):
        with contextlib.suppress(OSError):
            handler = JournalHandler()
            handler.setFormatter(MessageFormatter())
            return logs.use(handler)
    return logs.setup(structured=form == "json")


def _detached(args: argparse.Namespace, plan: Plan) -> int:
    options = [str(args.recipe), "--log-format", args.log_format]
    for override in args.overrides:
        options += ["--set", override]
    options += [f"--{name}" for name in ("offline", "locked") if getattr(args, name)]
    with display() as shown:
        code, text, log = detach.start(plan.name, options, shown)
    if code != 0:
        rest = f"; all of its log is in {log}" if log else ""
        sys.stderr.write(f"{text}\n\n{plan.name} did not start{rest}\n")
        return code
    say(text)
    say(f"It runs in the background. `tokenspeed down {plan.name}` stops it.")
    return int(ExitCode.OK)
