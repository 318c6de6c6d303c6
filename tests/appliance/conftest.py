from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance.live import Home, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers, its files a module's own."""
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def home() -> Iterator[Home]:
    with Home() as home:
        yield home
