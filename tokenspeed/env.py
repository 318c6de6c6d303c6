"""The only reader of the environment: where things lie, never how they behave.

What the engine does is said in the recipe. A variable that looks like ours but is not known
stops the start, so that a misspelt or outdated one is never obeyed in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.errors import Problem, UsageError
from tokenspeed.files import read_regular

PREFIX = "TOKENSPEED_"
# Every variable of ours that means something. None so far, and a new one needs a good reason:
# a recipe can be read, checked and compared; an environment cannot.
KNOWN: frozenset[str] = frozenset()
# Each service of the system has a folder of its own in here, under its name.
SYSTEM_RUN_ROOT = Path("/run/tokenspeed")
SYSTEM_STATE_ROOT = Path("/var/lib/tokenspeed")
SYSTEM_CACHE_ROOT = Path("/var/cache/tokenspeed")


# What a service manager says to this process alone, see sd_notify(3) and sd_listen_fds(3).
_MANAGER = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"),
)
_FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START


def check_variables(environ: Mapping[str, str] | None = None) -> None:
    """Raises UsageError that names every TOKENSPEED_* variable nobody reads."""
    names = os.environ if environ is None else environ
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in KNOWN)
    if not unknown:
        return
    raise UsageError(
        *(
            Problem(
                code="TS-E001",
                message=f"the environment variable {name} is set, but nothing reads it",
                hint=f"run `unset {name}`; behaviour is set in the recipe, see `tokenspeed schema`",
            )
            for name in unknown
        )
    )


def run_root() -> Path:
    """Folder of the running instances' private folders; not created here.

    Short on purpose: a Unix socket's path may have 107 bytes.
    """
    if directory := _first("RUNTIME_DIRECTORY"):
        return Path(directory)
    if directory := _first("XDG_RUNTIME_DIR"):
        return Path(directory) / "tokenspeed"
    # Not $TMPDIR, which may differ from shell to shell: `ps` must find what `up` started.
    return Path("/tmp") / f"tokenspeed-{os.getuid()}"


def run_roots() -> tuple[Path, ...]:
    """Where running instances may be: this user's, then one for each service of the system."""
    try:
        of_services = sorted(SYSTEM_RUN_ROOT.iterdir())
    except OSError:
        of_services = []
    return tuple(dict.fromkeys((run_root(), *of_services)))


def data_root() -> Path:
    """Folder of what outlives an instance: weights, logs. Not created here."""
    if directory := _first("STATE_DIRECTORY"):
        return Path(directory)
    if directory := _first("XDG_DATA_HOME"):
        return Path(directory) / "tokenspeed"
    return Path("~/.local/share/tokenspeed").expanduser()


def data_roots() -> tuple[Path, ...]:
    """This user's, then that of the system's services."""
    return tuple(dict.fromkeys((data_root(), SYSTEM_STATE_ROOT)))


def kernel_caches(data: Path) -> tuple[Path, ...]:
    """Folders of compiled kernels that belong to what runs from the data root `data`: those that
    the units and the images name. Triton's own default is not ours alone."""
    return (data / "cache", SYSTEM_CACHE_ROOT) if data == SYSTEM_STATE_ROOT else (data / "cache",)


def certificate_bundle() -> str | None:
    """The certificate authorities that pip's client falls back to, None for the system's."""
    return _first("REQUESTS_CA_BUNDLE") or _first("CURL_CA_BUNDLE")


def secret(reference: str) -> str:
    """What `env:NAME`, `file:/path` or `credential:NAME` (a systemd credential) leads to.

    Raises LookupError when the variable, or the folder of credentials, is not set, OSError when
    the file cannot be read, UnicodeDecodeError when it is not text.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        return os.environ[name]
    if kind == "credential":
        return read_regular(Path(os.environ["CREDENTIALS_DIRECTORY"]) / name).decode()
    assert kind == "file", "recipes hold no other kind of reference"
    return read_regular(Path(name)).decode()


def secret_file(reference: str) -> Path | None:
    """The file that `secret` reads; None for a variable. Raises LookupError as that does."""
    kind, _, name = reference.partition(":")
    if kind == "credential":
        return Path(os.environ["CREDENTIALS_DIRECTORY"]) / name
    return Path(name) if kind == "file" else None


def worker_environment(threads: int) -> dict[str, str]:
    """Environment of a worker with `threads` compute threads; 0 leaves their number alone.

    OpenMP reads its thread count once, before any code of ours runs in the worker.
    """
    return child_environment({"OMP_NUM_THREADS": str(threads)} if threads > 0 else {})


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `variables` set, for a process it starts; without what the
    service manager said to this one."""
    kept = {name: value for name, value in os.environ.items() if name not in _MANAGER}
    return kept | dict(variables)


@dataclass(frozen=True, slots=True)
class Manager:
    """The service manager that started this process, if one did.

    `notify` is the address it wants to be told at, "" for none. `watchdog_seconds`: it ends a
    process that is silent for so long; None where it does not. `sockets` are the descriptors it
    passed, with the names it gave them.
    """

    notify: str = ""
    watchdog_seconds: float | None = None
    sockets: tuple[tuple[int, str], ...] = ()


def service_manager() -> Manager:
    """What it said to this very process: the numbers of another one are not ours to obey."""
    return Manager(os.environ.get("NOTIFY_SOCKET", ""), _watchdog_seconds(), _passed_sockets())


def _watchdog_seconds() -> float | None:
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not microseconds.isdecimal() or int(microseconds) == 0 or meant != str(os.getpid()):
        return None
    return int(microseconds) / 1e6


def _passed_sockets() -> tuple[tuple[int, str], ...]:
    count = os.environ.get("LISTEN_FDS", "")
    # The count without our own number was meant for a process that passed its environment on.
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return ()
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    names += [""] * (int(count) - len(names))
    return tuple(
        (_FIRST_DESCRIPTOR + index, name) for index, name in enumerate(names[: int(count)])
    )


def journal_stream() -> str:
    """`device:inode` of the stream that leads to the system's journal, "" where none does."""
    return os.environ.get("JOURNAL_STREAM", "")


def _first(name: str) -> str | None:
    """The first entry of a colon list, as systemd passes it; None when unset, empty or relative."""
    entry = os.environ.get(name, "").split(":", 1)[0]
    return entry if entry.startswith("/") else None
