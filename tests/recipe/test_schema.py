"""The generated schema is valid, and agrees with the loader about every shipped recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tokenspeed.recipe.load import key_paths
from tokenspeed.recipe.schema import recipe_schema


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = recipe_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def recipes(repo: Path) -> list[Path]:
    return sorted((repo / "recipes").glob("*.yaml"))


def test_shipped_recipes_are_valid(repo: Path, validator: Draft202012Validator) -> None:
    assert len(recipes(repo)) >= 2
    for path in recipes(repo):
        assert not list(validator.iter_errors(yaml.safe_load(path.read_text())))


def least() -> dict[str, Any]:
    return {"version": 1, "name": "demo", "model": {"source": "hf:org/name"}}


@pytest.mark.parametrize(
    "change",
    [
        {"sever": {}},
        {"kv": {"blok_size": 16}},
        {"kv": {"size": "80GB"}},
        {"kv": {"size": None}},
        {"kv": {"prefix_cache": "on"}},
        {"serve": {"drain": 30}},
        {"name": "Demo"},
        {"version": 2},
        {"model": {"source": "org/name"}},
        {"limits": {"max_running": "4k"}},
    ],
)
def test_it_refuses_what_the_loader_refuses(
    validator: Draft202012Validator, change: dict[str, Any]
) -> None:
    assert validator.is_valid(least())
    assert not validator.is_valid(least() | change)


def test_it_takes_the_keys_of_the_user(validator: Draft202012Validator) -> None:
    assert validator.is_valid(least() | {"x-team": {"any": [1]}, "kv": {"x-why": "because"}})


def test_every_example_is_valid(validator: Draft202012Validator) -> None:
    for path, field in key_paths().items():
        for example in field.examples or ():
            document: Any = example
            for part in reversed(path.split(".")):
                document = {part: document}
            merged = least()
            for key, value in document.items():
                whole = isinstance(value, dict) and isinstance(merged.get(key), dict)
                merged[key] = {**merged[key], **value} if whole else value
            assert not list(validator.iter_errors(merged)), path
