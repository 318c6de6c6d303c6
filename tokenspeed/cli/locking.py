"""Locks for the verbs: made from a recipe and this machine, and held against one."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from tokenspeed import __version__, env
from tokenspeed.checkpoint.source import parse
from tokenspeed.cli.planning import Planned
from tokenspeed.errors import Problem, ResolveError, Where
from tokenspeed.plan import ModelFile
from tokenspeed.resolve.diff import PREDICTION, Difference, differences, view_of_lock
from tokenspeed.resolve.lock import Lock, hash_files, lock_path, make_lock, read_lock

# What results hang on beside our own code; asked of the installed packages, never imported.
_PROGRAMS = ("torch", "triton", "numpy", "tokenizers")


def versions() -> dict[str, str]:
    found = {"tokenspeed": __version__, "python": platform.python_version()}
    for name in _PROGRAMS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "-"
    return found


def lock_of(planned: Planned, report: Callable[[str], None] = lambda name: None) -> Lock:
    """The lock of a resolved recipe. Files of a folder are hashed, which takes their reading the
    first time and after each change; `report` is told the names of those."""
    files = _files(planned, report)
    return make_lock(planned.loaded, planned.resolution, planned.hardware, versions(), files)


def _files(planned: Planned, report: Callable[[str], None]) -> tuple[ModelFile, ...]:
    """Pinned ones as they are pinned; those in a folder as they are now."""
    model = planned.resolution.plan.model
    source = parse(model.source)
    if source.kind != "path" or all(file.sha256 for file in model.files):
        return model.files
    known = env.data_root() / "hashes"
    return hash_files(source.directory(Path("/")), model.files, report, known)


def moved(planned: Planned, lock: Lock) -> tuple[Difference, ...]:
    """What is not as the lock has it, here and now. Predicted speed is no part of what runs."""
    found = differences(view_of_lock(lock), view_of_lock(lock_of(planned)))
    return tuple(one for one in found if not one.field.startswith(PREDICTION))


def require_locked(planned: Planned) -> None:
    """Raises ResolveError without a lock, or naming everything that moved since."""
    path = lock_path(planned.loaded.file)
    found = moved(planned, read_lock(path))
    if not found:
        return
    recipe = planned.loaded.file
    hint = f"`tokenspeed diff {path} {recipe}` says why; `tokenspeed lock {recipe}` accepts it"
    raise ResolveError(
        *(
            Problem(
                code="TS-L003",
                message=f"changed since it was locked: {difference}",
                where=Where(str(path)),
                hint=hint if difference is found[-1] else "",
            )
            for difference in found
        )
    )


def progress(name: str) -> None:
    """Hashing a checkpoint takes minutes; standard output stays for data."""
    print(f"hashing {name}", file=sys.stderr)
