"""Known machines by name, and machines from files, so that plans need no machine."""

from __future__ import annotations

import difflib
from pathlib import Path

import msgspec

from tokenspeed.errors import NoInputError, Problem, Where
from tokenspeed.files import read_bounded
from tokenspeed.hardware.types import Gpu, Hardware

_FOLDER = Path(__file__).parent / "profiles"


def names() -> tuple[str, ...]:
    """The profiles that are shipped."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_hardware(name_or_file: str) -> Hardware:
    """A shipped profile by its name, or the hardware that a JSON file describes.

    Text with a slash or a dot is a file. Raises NoInputError with the nearest name.
    """
    if "/" in name_or_file or name_or_file.endswith(".json"):
        return _read(Path(name_or_file))
    if name_or_file not in names():
        near = difflib.get_close_matches(name_or_file, names(), n=1, cutoff=0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        raise NoInputError(
            Problem(
                code="TS-H001",
                message=f"no hardware profile is called {name_or_file!r}",
                hint=f"{guess}known are {', '.join(names())}; a file is given with its .json",
            )
        )
    return _read(_FOLDER / f"{name_or_file}.json")


def known_gpu(name: str, arch: str) -> Gpu | None:
    """The GPU of a shipped profile with this name and architecture; "" is any name, where the
    architecture has one shipped product. None where there is none."""
    found = {
        gpu.name: gpu
        for profile in names()
        for gpu in load_hardware(profile).gpus
        if gpu.arch == arch and name in ("", gpu.name)
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _read(path: Path) -> Hardware:
    try:
        return Hardware.from_json(read_bounded(path))
    except OSError as error:
        message = f"the hardware file cannot be read: {error.strerror or error}"
        raise NoInputError(
            Problem(code="TS-H002", message=message, where=Where(str(path)))
        ) from error
    except msgspec.DecodeError as error:
        problem = Problem(
            code="TS-H003",
            message=f"not a description of hardware: {error}",
            where=Where(str(path)),
            hint="take the `hardware` part of `tokenspeed plan RECIPE --output json`",
        )
        raise NoInputError(problem) from error
