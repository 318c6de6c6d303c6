"""Builds and runs the GoogleTest program of the scheduler core."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HINT = "GoogleTest is missing: apt-get install libgtest-dev (or set GTest_DIR)"


def run(*command: str | Path) -> str:
    """Output of a command; fails the test with it when the command fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(HINT if "GTest" in done.stdout else done.stdout, pytrace=False)
    return done.stdout


def test_the_core_passes_its_own_tests(repo: Path) -> None:
    build = repo / "build" / "scheduler-tests"
    cmake = shutil.which("cmake")
    assert cmake is not None, "cmake is missing: apt-get install cmake, or pip install cmake"
    run(
        cmake,
        *("-S", repo / "tokenspeed" / "scheduler" / "csrc", "-B", build),
        "-DTOKENSPEED_BUILD_MODULE=OFF",
        "-DTOKENSPEED_BUILD_TESTS=ON",
        "-DCMAKE_BUILD_TYPE=Release",
    )
    run(cmake, "--build", build, "--parallel", "2")
    output = run(build / "scheduler_test", "--gtest_brief=1")
    assert "[  PASSED  ]" in output
