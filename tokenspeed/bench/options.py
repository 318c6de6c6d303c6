"""What measurements take on the command line, checked before anything heavy is imported."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenspeed.counts import whole

RECIPES = Path(__file__).parents[2] / "recipes"
DENSE = RECIPES / "qwen3-8b-h200x1-latency.yaml"
AGENTIC = RECIPES / "qwen3-8b-h200x1-agentic.yaml"

USERS_CONTEXT = "USERSxCONTEXT"
NEW_CACHED = "NEW+CACHED"
BESIDE = "NEW+CACHED@USERSxCONTEXT"
DECODE_POINTS = (
    (1, 1000), (8, 1000), (32, 1000), (1, 16000), (8, 16000), (32, 16000), (1, 40000),
)  # fmt: skip
PREFILL_POINTS = ((8192, 0), (32768, 0), (500, 32000))


def numbers(form: str) -> Callable[[str], tuple[int, ...]]:
    """Reads text of such a form, in which each word in capitals stands for a whole number."""
    pattern = re.compile(re.sub("[A-Z]+", r"(\\d+)", re.escape(form)), re.ASCII)

    def read(text: str) -> tuple[int, ...]:
        found = pattern.fullmatch(text)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text} is not {form}")
        return tuple(map(int, found.groups()))

    return read


def out(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    """The default of a parser below another leaves what that one read."""
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", default=default,
        help="keep the figures there (default: nowhere)",
    )  # fmt: skip


def engine(parser: argparse.ArgumentParser, recipe: Path, several: bool = False) -> None:
    """Of measurements of the engine in this process, on random weights. `several` recipes in turn
    are a list of them."""
    if several:
        parser.add_argument(
            "--recipe", nargs="+", type=Path, default=[recipe], help=f"default: {recipe}"
        )
    else:
        parser.add_argument("--recipe", type=Path, default=recipe, help="default: %(default)s")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="override a recipe value",
    )  # fmt: skip
    parser.add_argument(
        "--uniform-experts", type=whole(1), nargs="?", const=0, metavar="N",
        help="choose experts at random, evenly, instead of by the router of random weights; with "
        "N among the first N of each layer, to compare with an engine that reads fewer",
    )  # fmt: skip
    parser.add_argument("--commit", help="what is measured, where this is no git checkout")
    out(parser)


def decode(parser: argparse.ArgumentParser) -> None:
    engine(parser, DENSE)
    _points(parser, DECODE_POINTS, USERS_CONTEXT)
    parser.add_argument(
        "--trace", nargs="+", type=numbers(USERS_CONTEXT), default=[], metavar=USERS_CONTEXT,
        help="profile some steps of them",
    )  # fmt: skip


def prefill(parser: argparse.ArgumentParser) -> None:
    engine(parser, DENSE)
    _points(parser, PREFILL_POINTS, NEW_CACHED)
    parser.add_argument(
        "--beside", nargs="+", type=numbers(BESIDE), default=[], metavar=BESIDE,
        help="prompts while others decode, and what that costs these",
    )  # fmt: skip
    parser.add_argument("--runs", type=whole(1), default=3, help="counted runs (default 3)")


def _points(parser: argparse.ArgumentParser, points: Sequence[tuple[int, ...]], form: str) -> None:
    parser.add_argument(
        "--points", nargs="+", type=numbers(form), default=points, metavar=form,
        help=f"what to measure (default {' '.join(_written(form, point) for point in points)})",
    )  # fmt: skip


def _written(form: str, point: tuple[int, ...]) -> str:
    """What `numbers` would read as this."""
    values = iter(point)
    return re.sub("[A-Z]+", lambda _: str(next(values)), form)
