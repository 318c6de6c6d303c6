"""Standard streams that are closed, full, or in an encoding without our letters."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Says which of 0, 1, 2 are open afterwards, and whether a child has them too, on descriptor 9.
LOOK = """
import os, subprocess, sys
from tokenspeed import streams
streams.prepare()
print("lost")
print("lost", file=sys.stderr)
names = [os.readlink(f"/proc/self/fd/{n}") for n in range(3)]
child = subprocess.run(["sh", "-c", "ls /proc/self/fd >&9"], pass_fds=[9])
os.write(9, f"{names} {sys.stdin.read()!r} {child.returncode}".encode())
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere_and_stay_free_of_other_files(closed: str) -> None:
    script = f'exec 9>&1 </dev/null >/dev/null 2>/dev/null; exec "$0" -c "$1" {closed}'
    command = ["bash", "-c", script, sys.executable, LOOK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "['/dev/null', '/dev/null', '/dev/null'] '' 0" in done.stdout
    assert done.stdout.split()[:3] == ["0", "1", "2"]


def test_a_worker_without_streams_ends_as_one_with_them() -> None:
    script = '"$0" -P -m tokenspeed.worker --run-dir /nowhere --model-dir / --endpoint /x/y'
    for closed in ("", "<&- >&- 2>&-"):
        command = ["bash", "-c", f"{script} {closed}", sys.executable]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 69
