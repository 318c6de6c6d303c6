"""`tokenspeed explain`: what an error code means, with an example."""

from __future__ import annotations

import argparse
import json
import textwrap
import tomllib
from pathlib import Path

from tokenspeed.checkpoint import cards
from tokenspeed.errors import Problem, UsageError
from tokenspeed.hardware import profiles
from tokenspeed.recipe.words import nearest

HELP = "explain an error code, as in error[TS-R010]; without a code list all of them"

_COLUMNS = 88


def codes() -> dict[str, dict[str, str]]:
    """code -> title, text and example of every code there is, in the order of the table."""
    table = tomllib.loads((Path(__file__).parent / "codes.toml").read_text(encoding="utf-8"))
    return {code: dict(entry) for code, entry in table.items()}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="TS-R010, or R010")
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text (default) or json"
    )


def run(args: argparse.Namespace) -> int:
    known = codes()
    chosen = known if args.code is None else {code: known[code] for code in [_find(args.code)]}
    if args.output == "json":
        print(json.dumps(chosen, indent=2, ensure_ascii=False))
    elif args.code is None:
        for code, entry in chosen.items():
            print(f"{code}  {entry['title']}")
    else:
        for code, entry in chosen.items():
            print(explanation(code, entry), end="")
            print(_known_here(code), end="")
    return 0


def explanation(code: str, entry: dict[str, str]) -> str:
    text = textwrap.fill(entry["text"], _COLUMNS)
    example = textwrap.indent(entry["example"].rstrip(), "    ")
    return f"{code}: {entry['title']}\n\n{text}\n\nFor example:\n\n{example}\n"


def _known_here(code: str) -> str:
    """What the code's message would be too long with: the names that it asks for."""
    lists = {
        "TS-W003": ("Models that are known by name", cards.known),
        "TS-H001": ("Profiles of hardware", profiles.names),
    }
    if code not in lists:
        return ""
    title, names = lists[code]
    return f"\n{title}:\n\n" + "".join(f"    {name}\n" for name in names())


def _find(written: str) -> str:
    code = written.upper()
    code = code if code.startswith("TS-") else f"TS-{code}"
    known = tuple(codes())
    if code in known:
        return code
    near = nearest(code, known)
    guess = f"did you mean {near}? " if near else ""
    raise UsageError(
        Problem(
            code="TS-C003",
            message=f"no message has the code {written!r}",
            hint=f"{guess}`tokenspeed explain` lists all codes",
        )
    )
