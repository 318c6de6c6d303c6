"""What the user can have done wrong, and how the command line answers it.

Three kinds of wrong exist. The user's mistake is a `TokenspeedError`: a stable code, where it
is, and the way out. Our own mistake is an assertion. Lack of room is a return value.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

# What keeps any program from writing, whatever it writes.
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS))


class ExitCode(IntEnum):
    """Exit codes of every verb, after sysexits(3), which systemd prints by name."""

    OK = 0
    UNEXPECTED = 1
    DIFFERS = 2
    NOT_RUNNING = 3  # of `status`, as `systemctl status` has it
    USAGE = 64
    INVALID_RECIPE = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    INTERNAL = 70
    IO_ERROR = 74
    TRY_AGAIN = 75
    UNSATISFIABLE = 78


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file. Lines and columns count from 1; 0 means "the file as a whole"."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if self.line == 0:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with the way out.

    `path` is the dotted recipe key, or "" where there is none. `hint` says what to do.
    """

    code: str
    message: str
    path: str = ""
    where: Where | None = None
    hint: str = ""


class TokenspeedError(Exception):
    """One or more problems that the user can mend. All that were found are listed at once."""

    exit_code: ExitCode = ExitCode.UNEXPECTED

    def __init__(self, *problems: Problem) -> None:
        assert problems, "an error without a problem says nothing"
        self.problems = problems
        super().__init__("\n".join(_line(problem) for problem in problems))


class UsageError(TokenspeedError):
    """The command line is off."""

    exit_code = ExitCode.USAGE


class NoInputError(TokenspeedError):
    """A file that the command line names is not there or cannot be read."""

    exit_code = ExitCode.NO_INPUT


class RecipeError(TokenspeedError):
    """The recipe is not valid YAML, or not a valid recipe."""

    exit_code = ExitCode.INVALID_RECIPE


class ResolveError(TokenspeedError):
    """A valid recipe that this machine, this model or this build cannot satisfy.

    `suggestion` is the smallest change that was proven to satisfy it, as (recipe key, value as the
    recipe spells it); () where none was found or looked for.
    """

    exit_code = ExitCode.UNSATISFIABLE

    def __init__(self, *problems: Problem, suggestion: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(*problems)
        self.suggestion = suggestion


class CheckpointError(TokenspeedError):
    """Weights or their description are missing, truncated or contradict each other."""

    exit_code = ExitCode.UNSATISFIABLE


class UnavailableError(TokenspeedError):
    """Something outside the recipe is not there: a running engine, a file, a driver."""

    exit_code = ExitCode.UNAVAILABLE


class OutputError(TokenspeedError):
    """What was asked for cannot be written: a full disk, a quota, a path that is none."""

    exit_code = ExitCode.IO_ERROR

    def __init__(self, what: str, error: OSError) -> None:
        full = error.errno in NO_ROOM
        super().__init__(
            Problem(
                code="TS-C004",
                message=f"{what} cannot be written: {error.strerror or error}",
                hint="free some space there, or write somewhere else"
                if full
                else "write somewhere else: to a file in an existing folder of your own",
            )
        )


class TryAgainError(TokenspeedError):
    """A download, a busy port: the same command may work later."""

    exit_code = ExitCode.TRY_AGAIN


def _line(problem: Problem) -> str:
    place = f"{problem.where}: " if problem.where else ""
    path = f"{problem.path}: " if problem.path else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"{place}[{problem.code}] {path}{problem.message}{hint}"


def some_of(names: Sequence[str], limit: int = 4) -> str:
    """`a, b, c, d and 3 more`, for messages."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
