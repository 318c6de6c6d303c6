"""`tokenspeed version`: of this program and of what decides its results."""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata

from tokenspeed import __version__

HELP = "print the versions of tokenspeed and of what it runs on"

# Never imported here: only the worker needs it.
_LIBRARIES = ("torch", "triton", "numpy", "tokenizers")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text (default) or json"
    )


def run(args: argparse.Namespace) -> int:
    versions = {"tokenspeed": __version__, "python": platform.python_version()}
    versions |= {name: _installed(name) for name in _LIBRARIES}
    if args.output == "json":
        print(json.dumps(versions, indent=2))
    else:
        for name, version in versions.items():
            print(f"{name:11} {version}")
    return 0


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
