"""The generated schema is valid, and agrees with the loader about every shipped recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tokenspeed.recipe.keys import key_paths
from tokenspeed.recipe.kinds import Count, Number
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


COUNTED = (Count, Number)


def test_every_key_tells_editors_and_reload_what_they_need() -> None:
    """Description, example, what a plain number counts, and what a change of it costs."""
    for path, field in key_paths().items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict), path
        assert extra["x-reload"] in ("live", "drain", "restart"), path
        assert field.description, path
        assert field.examples, path
        counts = any(isinstance(note, COUNTED) for note in field.metadata)
        lists = ("graphs.batch_sizes", "graphs.token_counts")
        assert bool(extra.get("x-unit")) is (counts or path in lists), path


def test_the_number_of_keys_that_a_reader_meets() -> None:
    """Sampling is what a request may say as well; advanced is for those who look for it."""
    met = [path for path in key_paths() if not path.startswith(("serve.sampling", "advanced"))]
    assert len(met) <= 48
    assert all("advanced" not in path for path in met)


def test_reload_and_units_are_in_the_schema() -> None:
    limits = recipe_schema()["$defs"]["Limits"]["properties"]
    assert limits["max_waiting"]["x-reload"] == "live"
    assert limits["max_running"]["x-reload"] == "restart"
    assert limits["max_step_tokens"]["x-unit"] == "tokens"


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({"extends": "base.yaml"}, True),
        ({"extends": "/etc/base.yaml"}, False),
        ({"when": [{"if": {"arch": "sm_90"}, "then": {"kv": {"size": "1GiB"}}}]}, True),
        ({"when": [{"if": {"count": ">=4", "memory": "<80GiB"}, "then": {"x-a": 1}}]}, True),
        ({"when": [{"if": {"arhc": "sm_90"}, "then": {}}]}, False),
        ({"when": [{"if": {"memory": "80GB"}, "then": {}}]}, False),
        ({"when": [{"if": {"arch": "sm_90"}, "then": {"kv": {"sise": "1GiB"}}}]}, False),
        ({"when": [{"if": {"arch": "sm_90"}}]}, False),
        ({"when": [{"if": {"arch": "sm_90"}, "then": {"name": "x"}}]}, False),
    ],
)
def test_composition(validator: Draft202012Validator, change: dict[str, Any], valid: bool) -> None:
    assert validator.is_valid(least() | change) is valid


def test_a_parent_may_have_said_what_is_required(validator: Draft202012Validator) -> None:
    assert validator.is_valid({"extends": "base.yaml", "model": {"max_context": 4096}})
    assert not validator.is_valid({"version": 1, "name": "a", "model": {"max_context": 4096}})
    assert not validator.is_valid({"version": 1, "name": "a"})


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
