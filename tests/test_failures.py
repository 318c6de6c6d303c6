"""What a run of tests that is cut off has told by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """\
import signal


def test_right():
    pass

def test_wrong():
    assert 2 + 2 == 5, "not in base ten"

def test_endless():
    while True:
        signal.pause()
"""


def test_a_run_that_is_cut_off_names_its_failures(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.failures", "-c", os.devnull]
    with subprocess.Popen(
        [*command, "--tb=no", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(repo), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        line = "FAILED test_three.py::test_wrong (main, call): AssertionError: not in base ten\n"
        assert line in iter(run.stdout.readline, "")
        run.terminate()
        rest = run.stdout.read()
    assert run.returncode == 2  # as by Ctrl-C
    cut, _, end = rest.partition("1 failed, 1 passed, cut off by SIGTERM\n" + line)
    assert cut and end.endswith("\n1 failed, 1 passed\n" + line)
