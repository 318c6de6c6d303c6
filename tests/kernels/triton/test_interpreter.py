"""The kernels' arithmetic, interpreted on the CPU: in a process of its own, since a kernel is
either compiled or interpreted for good when it is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

# One subprocess interprets them all, on a machine that may be busy.
pytestmark = pytest.mark.timeout(600)


def test_every_kernel_equals_its_reference(repo):
    files = sorted((repo / "tests/kernels/triton/interpreted").glob("interpreted_*.py"))
    assert len(files) >= 3
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", *map(str, files)],
        cwd=repo,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
