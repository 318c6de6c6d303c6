"""Models and oracles of the worker's tests, built once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rigs import FAMILIES, Oracle, build_rand


@dataclass(frozen=True)
class Model:
    """A folder and the oracle over it."""

    folder: Path
    oracle: Oracle


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """R-RAND of every family."""
    built = {}
    for family in FAMILIES:
        folder = build_rand(tmp_path_factory.mktemp(family) / "model", family, seed=11)
        built[family] = Model(folder, Oracle(folder))
    return built


@pytest.fixture(scope="session")
def llama(models: dict[str, Model]) -> Model:
    return models["llama"]
