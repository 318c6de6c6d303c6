"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Two spinning OpenMP threads beside other busy processes are slower than one, by a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO
