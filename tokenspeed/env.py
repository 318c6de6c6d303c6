"""The only reader of the environment: where things lie, never how they behave.

What the engine does is said in the recipe. A variable that looks like ours but is not known
stops the start, so that a misspelt or outdated one is never obeyed in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tokenspeed.errors import Problem, UsageError

PREFIX = "TOKENSPEED_"
# Every variable of ours that means something. None so far, and a new one needs a good reason:
# a recipe can be read, checked and compared; an environment cannot.
KNOWN: frozenset[str] = frozenset()


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


def data_root() -> Path:
    """Folder of what outlives an instance: weights, logs. Not created here."""
    if directory := _first("STATE_DIRECTORY"):
        return Path(directory)
    if directory := _first("XDG_DATA_HOME"):
        return Path(directory) / "tokenspeed"
    return Path("~/.local/share/tokenspeed").expanduser()


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
        return (Path(os.environ["CREDENTIALS_DIRECTORY"]) / name).read_text()
    assert kind == "file", "recipes hold no other kind of reference"
    return Path(name).read_text()


def worker_environment(threads: int) -> dict[str, str]:
    """Environment of a worker with `threads` compute threads; 0 leaves their number alone.

    OpenMP reads its thread count once, before any code of ours runs in the worker.
    """
    return child_environment({"OMP_NUM_THREADS": str(threads)} if threads > 0 else {})


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `variables` set, for a process it starts."""
    return dict(os.environ) | dict(variables)


def _first(name: str) -> str | None:
    """The first entry of a colon list, as systemd passes it; None when unset, empty or relative."""
    entry = os.environ.get(name, "").split(":", 1)[0]
    return entry if entry.startswith("/") else None
