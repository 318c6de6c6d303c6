"""The wheels of this installation: tokenspeed's own, and all that it needs, as they are here."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from tokenspeed.appliance import packages

OURS = ("tokenspeed-appliance-kernels", "tokenspeed-appliance")


def gather(folder: Path, wanted: Callable[[], None]) -> None:
    """Has pip put them into `folder`: those of an index are downloaded, our own are built where
    they were installed from a checkout. Raises as `packages.run` does."""
    pins = folder / "installed.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in installed()))
    arguments = ["--quiet", "--wheel-dir", str(folder), "--constraint", str(pins)]
    try:
        packages.run("wheel", *arguments, *map(_requirement, OURS), wanted=wanted)
    finally:
        pins.unlink()


def installed() -> list[tuple[str, str]]:
    """Name and version of everything here but our own."""
    found = {item.metadata["Name"]: item.version for item in metadata.distributions()}
    return sorted((name, version) for name, version in found.items() if name not in OURS)


def _requirement(name: str) -> str:
    here = metadata.distribution(name)
    said = json.loads(here.read_text("direct_url.json") or "{}")
    url = urllib.parse.urlsplit(said.get("url", ""))
    place = f"=={here.version}"
    if url.scheme == "file":
        place = f" @ {said['url']}"
    extra = "[worker]" if name == OURS[-1] and _has_torch() else ""
    return f"{name}{extra}{place}"


def _has_torch() -> bool:
    return bool(list(metadata.distributions(name="torch")))
