"""The CUDA device of a process of tests."""

from __future__ import annotations

import os

import pytest
import torch


def require_whole_device(config: pytest.Config) -> None:
    """Skips the test where there is no CUDA device, and ends the process where an earlier test has
    broken its context: every later one would fail there, whatever it tests. Of several processes
    another one is started then, and the test that was about to begin counts as crashed."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        if hasattr(config, "workerinput"):
            os._exit(1)
        pytest.exit(f"an earlier test broke the device's context: {error}", returncode=1)
