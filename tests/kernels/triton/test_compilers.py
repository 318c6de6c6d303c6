"""Kernels that other processes compile are those that this one looks for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest

from tokenspeed.appliance.process import start_ticks

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def parts(repo, tmp_path_factory):
    """What the script says of each part, and what it logs. It is killed at the end."""
    folder = tmp_path_factory.mktemp("triton")
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(repo)}
    with (folder / "log").open("w+") as log:
        run = subprocess.Popen(
            [sys.executable, str(repo / "tests/kernels/triton/compiled_apart.py")],
            cwd=repo,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        found = {}
        for line in run.stdout:
            part = json.loads(line)
            found[part.pop("part")] = part
            if "waiting" in found:
                break
        run.kill()
        run.communicate()
        log.seek(0)
        return found, log.read()


def test_the_process_itself_compiles_nothing(parts):
    assert parts[0]["apart"] == {"kernels": 2, "apart": 2, "found": 2, "here": 0}, parts[1]
    assert parts[0]["in memory"] == {"kernels": 0, "apart": 0, "found": 0, "here": 0}


def test_what_is_wrong_with_a_kernel_is_raised_here(parts):
    assert "this kernel cannot be compiled" in parts[0]["wrong"]["error"], parts[1]


def test_without_compilers_the_process_compiles_itself(parts):
    assert parts[0]["killed"] == {"kernels": 1, "apart": 0, "found": 0, "here": 1}, parts[1]
    assert "a compiler of kernels is gone, _silu_mul was with it" in parts[1]


def test_nothing_is_compiled_twice_and_no_process_stays(parts):
    assert parts[0]["unused"] == {"kernels": 0, "apart": 0, "found": 0, "here": 0}
    assert parts[0]["closed"]["left"] == 0


def test_compilers_end_with_the_process_that_is_killed(parts):
    assert parts[0]["again"]["apart"] == 1, parts[1]
    pids = parts[0]["waiting"]["left"]
    assert len(pids) == 3
    deadline = time.monotonic() + 60.0
    while any(start_ticks(pid) is not None for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
