"""The kernels' arithmetic, interpreted on the CPU: in a process of its own, since a kernel is
either compiled or interpreted for good when it is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

# On a machine that may be busy.
pytestmark = pytest.mark.timeout(600)

FILES = sorted((Path(__file__).parent / "interpreted").glob("interpreted_*.py"))
assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("interpreted_"))
def test_kernels_equal_their_references(repo: Path, file: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", str(file)],
        cwd=repo,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
