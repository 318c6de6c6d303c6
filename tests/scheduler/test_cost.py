"""A call costs what it changes: counted work stays level while caches, contexts and queues grow.

The count is of basic blocks run (see cost/cost.cc): no clock, so the same on a busy machine.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

# How much more work a call may take at the largest size than at the smallest.
SLACK = 1.25


@pytest.fixture(scope="module")
def work(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, int]]:
    """Per call: size of what must not matter to the work done."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "a C++ compiler is missing: apt-get install g++"
    folder = tmp_path_factory.mktemp("cost")
    core = repo / "tokenspeed" / "scheduler" / "csrc"
    unit = folder / "unit.cc"
    sources = sorted(core.glob("*.cc"))
    unit.write_text("".join(f'#include "{s}"\n' for s in sources if s.name != "bindings.cc"))
    common = [compiler, "-std=c++20", "-O1", f"-I{core}"]
    cost = repo / "tests" / "scheduler" / "cost" / "cost.cc"
    for command in (
        [*common, "-fsanitize-coverage=trace-pc", "-c", unit, "-o", folder / "core.o"],
        [*common, cost, folder / "core.o", "-o", folder / "cost"],
    ):
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    output = subprocess.run([folder / "cost"], capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for line in output.splitlines():
        what, size, blocks = line.split()
        found[what][int(size)] = int(blocks)
    return found


@pytest.mark.parametrize("what", ["evict", "decode", "wait", "retry", "event"])
def test_work_does_not_grow(work: dict[str, dict[int, int]], what: str) -> None:
    counts = work[what]
    smallest, *_, largest = sorted(counts)
    assert largest >= 64 * smallest
    assert counts[smallest] > 20, "the counter counts"
    assert counts[largest] <= SLACK * counts[smallest], counts
