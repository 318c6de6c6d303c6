"""Where a model of a repository lies once it is in the weights store."""

from __future__ import annotations

from pathlib import Path

from tokenspeed.checkpoint.source import Source


def fetched(store: Path, source: Source) -> Path:
    """A link to the snapshot, made when all of it is there."""
    assert source.kind == "hf", f"{source.text} is no repository"
    name = source.name.replace("/", "--")
    return store / "models" / f"{name}-{source.version.replace('/', '--') or 'main'}-hub"
