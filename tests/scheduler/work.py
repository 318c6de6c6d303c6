"""Counts what calls of a core cost while what must not matter grows: `cost/cost.cc`.

The count is of basic blocks run: no clock, so the same on a busy machine.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

COST = Path(__file__).parent / "cost" / "cost.cc"
# How much more work a call may take at the largest size than at the smallest.
SLACK = 1.25
# Of the program, which takes a second: a broken core may hang.
LIMIT_S = 120

# Per call: size of what must not matter to blocks run.
Work = dict[str, dict[int, int]]


def counted(core: Path, folder: Path) -> Work:
    """Builds the sources in `core` with a counter, in `folder`. RuntimeError where that fails."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError("a C++ compiler is missing: apt-get install g++")
    unit = folder / "unit.cc"
    sources = sorted(core.glob("*.cc"))
    unit.write_text("".join(f'#include "{s}"\n' for s in sources if s.name != "bindings.cc"))
    common = [compiler, "-std=c++20", "-O1", f"-I{core}"]
    _run(*common, "-fsanitize-coverage=trace-pc", "-c", unit, "-o", folder / "core.o")
    _run(*common, COST, folder / "core.o", "-o", folder / "cost")
    found: Work = defaultdict(dict)
    for line in _run(folder / "cost", timeout=LIMIT_S).splitlines():
        what, size, blocks = line.split()
        found[what][int(size)] = int(blocks)
    return found


def grows(counts: dict[int, int]) -> bool:
    return counts[max(counts)] > SLACK * counts[min(counts)]


def _run(*words: str | Path, timeout: float | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=timeout
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout
