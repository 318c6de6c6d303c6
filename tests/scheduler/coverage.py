"""How much of the core its own tests reach: lines, and branches without those that only throw.

    python -m tests.scheduler.coverage

Builds the GoogleTest program and the replay player with gcov's counters, runs both (the player on
random traces), and has gcovr report. Assertions are left out: their other branch is a bug of ours.
Fails below 95 % of lines or 90 % of branches.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parents[2]
CORE = REPO / "tokenspeed" / "scheduler" / "csrc"
TRACES = 400


def run(*command: str | Path, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def build(folder: Path) -> None:
    run(
        *("cmake", "-S", CORE, "-B", folder, "-DTOKENSPEED_BUILD_MODULE=OFF"),
        *("-DTOKENSPEED_BUILD_TESTS=ON", "-DTOKENSPEED_BUILD_REPLAY=ON"),
        *("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=--coverage -O0 -fno-inline"),
    )
    # What CMake compiled to get to know the compiler is none of ours.
    for trial in folder.glob("CMakeFiles/*/CompilerIdCXX"):
        shutil.rmtree(trial)
    run("cmake", "--build", folder, "--parallel", "2")


def traces(folder: Path) -> list[Path]:
    paths = []
    for seed in range(TRACES):
        paths.append(folder / f"{seed}.trace")
        paths[-1].write_bytes(random.Random(seed).randbytes(2000))
    return paths


def report(folder: Path) -> str:
    """Lines missed per file, then branches, then the sums. Ends the program below the bars."""
    common = (
        *(sys.executable, "-m", "gcovr", "--root", CORE, "--object-directory", folder),
        *("--exclude-throw-branches", "--exclude-unreachable-branches", "--exclude", ".*audit.cc"),
        *("--exclude-lines-by-pattern", r".*TS_CHECK\(.*"),
        *("--exclude-branches-by-pattern", r".*(TS_CHECK|Require)\(.*"),
    )
    lines = run(*common)
    branches = run(*common, "--txt-metric=branch")
    bars = ("--fail-under-line", "95", "--fail-under-branch", "90")
    return lines + branches + run(*common, "--txt-summary", *bars)


def main() -> int:
    folder = REPO / "build" / "scheduler-coverage"
    build(folder)
    for counts in folder.rglob("*.gcda"):
        counts.unlink()  # of the run before
    run(folder / "scheduler_test", "--gtest_brief=1", cwd=folder)
    with tempfile.TemporaryDirectory() as name:
        run(folder / "scheduler_replay", *traces(Path(name)), cwd=folder)
    print(report(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
