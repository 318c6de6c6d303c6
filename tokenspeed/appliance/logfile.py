"""The log files of detached instances: `<data_root>/logs/<name>.log`, and the one before it.

A start writes to a draft until the name is its own. Of two that race for a name, only the one
that wins moves the old log away.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tokenspeed import env
from tokenspeed.errors import Problem, TryAgainError

_READ_BYTES = 64 << 10


def log_file(name: str) -> Path:
    """Where a detached instance of that name writes; stays when it ends."""
    return env.data_root() / "logs" / f"{name}.log"


def new_draft(name: str) -> tuple[int, Path]:
    """An open descriptor and the path of a file beside the log. Raises TryAgainError."""
    folder = log_file(name).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix=f"{name}.", suffix=".new", dir=folder)
    except OSError as error:
        raise _cannot_log(folder, error) from error
    return descriptor, Path(path)


def adopt(draft: Path, name: str) -> Path:
    """Makes the draft the log of that name, and its log until now the one before it.

    Only for who has claimed the name. Writers that have the draft open go on. Raises
    TryAgainError.
    """
    path = log_file(name)
    try:
        if path.exists():
            path.replace(path.with_name(f"{path.name}.1"))
        draft.rename(path)
    except OSError as error:
        raise _cannot_log(path.parent, error) from error
    return path


def tail(path: Path, lines: int) -> tuple[str, int]:
    """The last `lines` lines of a log, each of them whole, and where in the file they end."""
    with path.open("rb") as file:
        begin = end = file.seek(0, os.SEEK_END)
        parts: list[bytes] = []
        newlines = 0
        # One more than there are lines: that before the first of them, and the last one's own.
        while begin and newlines <= lines:
            size = min(begin, _READ_BYTES)
            begin = file.seek(begin - size)
            parts.append(file.read(size))
            newlines += parts[-1].count(b"\n")
    text = b"".join(reversed(parts)).decode(errors="replace").removesuffix("\n")
    return "\n".join(text.split("\n")[-lines:]) if lines else "", end


def _cannot_log(folder: Path, error: OSError) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S205",
            message=f"the log folder {folder} cannot be used: {error}",
            hint="fix that, or set XDG_DATA_HOME to a writable folder; without "
            "--detach no log file is kept",
        )
    )
