"""Running instances: one private folder each, with what is needed to find and stop them.

    <run_root>/<name>/            0700; the worker's sockets lie here, guarded by its mode
        lock                      held by the front for as long as it lives
        instance.json             the Record below
        plan.json                 what runs
        front.sock                the same HTTP as on the port, for this machine's own tools
        front-<n>.sock            of the n-th front, where there are more than one
        worker-<n>.sock           of the n-th worker since the start

A folder whose front is gone (killed, or the machine went down) is stale: it is shown by nobody
and cleared by the next start of that name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokenspeed import env
from tokenspeed.appliance.process import start_ticks
from tokenspeed.errors import Problem, TryAgainError, UnavailableError
from tokenspeed.files import read_regular
from tokenspeed.plan import Plan

RECORD_VERSION = 1
UNIX = "unix:"  # begins the address of a Unix socket, where others begin with http://
_SOCKET_PATH_BYTES = 107  # sun_path of Linux holds 108 with the closing zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What instance.json says.

    `start_ticks` tells the process `pid` from a later one of that number; `started` is seconds
    since the epoch; `log` is the log file of a detached instance; `greeting` is "" until the
    instance is ready, then what there is to tell about it; `overrides` are the texts of --set;
    `local` is the address of front.sock, which answers also while nobody else is let in;
    `generation` is that of an installed recipe, None of any other; `key` lets this machine's own
    user ask where API keys are wanted: it is made for this process, and the folder is private.
    """

    version: int
    name: str
    pid: int
    start_ticks: int
    url: str
    recipe: str
    started: float
    drain_seconds: float
    log: str | None
    greeting: str
    overrides: tuple[str, ...] = ()
    key: str = ""
    local: str = ""
    generation: int | None = None

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return Path(self.local.removeprefix(UNIX)).parent

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


class RunDir:
    """The claimed folder of one instance; `remove` it at the end."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def endpoint(self, incarnation: int) -> str:
        """The socket's path of the n-th worker: a new one never meets what an old one left."""
        return str(self.socket(incarnation))

    def socket(self, incarnation: int) -> Path:
        return self.path / f"worker-{incarnation}.sock"

    @property
    def front_socket(self) -> Path:
        return self.path / "front.sock"

    @property
    def front_url(self) -> str:
        return f"{UNIX}{self.front_socket}"

    def further_socket(self, number: int) -> Path:
        """Of the n-th front, counting the first one too."""
        return self.path / f"front-{number}.sock"

    def further_url(self, number: int) -> str:
        return f"{UNIX}{self.further_socket(number)}"

    def write_plan(self, plan: Plan) -> None:
        """For the workers; nothing where it is there already. Raises TryAgainError."""
        data = plan.to_json()
        try:
            if (self.path / "plan.json").read_bytes() == data:
                return
        except OSError:
            pass  # not there yet
        self._write("plan.json", data)

    def write_record(self, record: Record) -> None:
        """Raises TryAgainError."""
        data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
        self._write("instance.json", data)

    def _write(self, name: str, data: bytes) -> None:
        """Readers see the old file or the new one, never a part."""
        draft = self.path / f"{name}.new"
        try:
            draft.write_bytes(data)
            draft.rename(self.path / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise cannot_write(draft, error) from error

    def clear(self) -> None:
        """Removes all but the claim, for another instance of that name in this process."""
        _clear(self.path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def claim(root: Path, name: str) -> RunDir:
    """Makes the folder of `name` this process's own.

    Raises TryAgainError when an instance of that name runs or there is no room, UnavailableError
    when the folder cannot be private.
    """
    _make_private_root(root)
    path = _folder(root, name)
    longest = len(os.fsencode(path / "worker-9999.sock"))
    if longest > _SOCKET_PATH_BYTES:
        raise UnavailableError(
            Problem(
                code="TS-S201",
                message=f"{path} is too long for a Unix socket by {longest - _SOCKET_PATH_BYTES} "
                "bytes",
                hint="set XDG_RUNTIME_DIR to a shorter path, or give the recipe a shorter name",
            )
        )
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            _require_private(path)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # its owner removed the folder just now
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise _in_use(root, name) from None
        if _is_same(lock, path / "lock"):
            _clear(path)
            return RunDir(path, lock)
        os.close(lock)


def require_free(root: Path, name: str) -> None:
    """Raises TryAgainError when an instance of that name runs, without claiming the name."""
    if any(record.name == name for record in records(root)):
        raise _in_use(root, name)


def records(root: Path) -> list[Record]:
    """The instances that run, by name."""
    found = []
    for path in sorted((*root.glob("instance.json"), *root.glob("*/instance.json"))):
        record = _read(path)
        if record is not None and record.alive:
            found.append(record)
    return found


def find(root: Path, wanted: str) -> Record | None:
    """The running instance of that name, or of that recipe file."""
    running = records(root)
    for record in running:
        if record.name == wanted:
            return record
    recipe = str(Path(wanted).absolute())
    return next((record for record in running if record.recipe == recipe), None)


def _folder(root: Path, name: str) -> Path:
    """A service of the system has a root for itself alone, which is its folder."""
    return root if root == env.SYSTEM_RUN_ROOT / name else root / name


def _read(path: Path) -> Record | None:
    try:
        record = msgspec.json.decode(read_regular(path), type=Record)
    except (OSError, msgspec.DecodeError):
        return None  # gone just now, or written by another version
    return record if record.version == RECORD_VERSION else None


def _in_use(root: Path, name: str) -> TryAgainError:
    record = _read(_folder(root, name) / "instance.json")
    place = f" at {record.url} (pid {record.pid})" if record else ""
    return TryAgainError(
        Problem(
            code="TS-S202",
            message=f"an instance named {name} is already running{place}",
            # A second one under the same recipe would find the port of the first one taken.
            hint=f"`tokenspeed down {name}` stops it; `--set name=other --set serve.port=0` starts "
            "a second one, on a free port",
        )
    )


def cannot_write(path: Path, error: OSError) -> TryAgainError:
    """Of a file or socket in a run folder."""
    return TryAgainError(
        Problem(
            code="TS-S207",
            message=f"{path} cannot be written: {error.strerror}",
            hint="check for free space: `df -h` and `df -i` on that folder",
        )
    )


def _make_private_root(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            Problem(
                code="TS-S203",
                message=f"the folder for running instances cannot be made: {error}",
                hint="set XDG_RUNTIME_DIR to a folder of your own",
            )
        ) from error
    # Others may read the folder's names (systemd makes it so) but never add to it.
    _require_private(root, forbidden=stat.S_IWGRP | stat.S_IWOTH)


def _require_private(path: Path, forbidden: int = 0o077) -> None:
    """In a shared folder such as /tmp another user may have made the path first."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & forbidden
    ):
        return
    raise UnavailableError(
        Problem(
            code="TS-S204",
            message=f"{path} is not a private folder of this user "
            f"(owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})",
            hint="remove it, or set XDG_RUNTIME_DIR to a folder of your own",
        )
    )


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _clear(path: Path) -> None:
    for left in path.iterdir():
        if left.name != "lock":
            left.unlink()
