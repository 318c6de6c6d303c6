"""Run the command line as its users do: another process, its streams and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]

# Refuses the import of what planning must not need, wherever it comes from.
BLOCKER = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by the test)")

sys.meta_path.insert(0, Block())
from tokenspeed.cli import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def tokenspeed(*arguments: str, blocked: tuple[str, ...] = (), room: int | None = None) -> Outcome:
    """`python -m tokenspeed ARGUMENTS` in the repository; `blocked` modules do not exist there.
    `room`: no file can have more bytes, as on a disk that is nearly full."""
    start = ["-c", BLOCKER.format(blocked=blocked)] if blocked else ["-m", "tokenspeed"]
    limited = [] if room is None else ["prlimit", f"--fsize={room}"]
    done = subprocess.run(
        [*limited, sys.executable, *start, *arguments],
        cwd=REPO,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
