"""A worker dies with the process that started it, for whatever reason that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from tokenspeed.errors import ExitCode

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; exit at once if that was before.

    `parent` is the parent's process id as it was when this process began.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent or _adopted(parent):
        raise SystemExit(ExitCode.UNAVAILABLE)


def _adopted(parent: int) -> bool:
    """Whether process 1 took over an orphan. In a container the front itself may be process 1."""
    if parent != 1:
        return False
    return b"tokenspeed" not in Path("/proc/1/cmdline").read_bytes()
