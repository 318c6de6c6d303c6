"""Built-in descriptions of checkpoints, so that they can be planned without their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenspeed.checkpoint.config import model_config
from tokenspeed.checkpoint.quantization import group_formats
from tokenspeed.checkpoint.source import Source
from tokenspeed.plan import ModelConfig, ModelFile

_FOLDER = Path(__file__).parent / "cards"


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of one source.

    `container` is "gguf" or "safetensors". `files` are the weight files, or () where they are
    not pinned. The formats are those stored in the files, as `describe.Described` has them.
    """

    source: str
    container: str
    files: tuple[ModelFile, ...]
    config: ModelConfig
    linear_formats: tuple[str, ...]
    embedding_format: str
    group_formats: dict[str, str]


def find(source: Source) -> Card | None:
    """The card of exactly this source and version, or None."""
    for path in sorted(_FOLDER.glob("*.json")):
        data = json.loads(path.read_bytes())
        if data["source"] == source.text:
            return _card(data, path.name)
    return None


def known() -> tuple[str, ...]:
    """The sources that have a card."""
    return tuple(json.loads(path.read_bytes())["source"] for path in sorted(_FOLDER.glob("*.json")))


def _card(data: dict[str, Any], file: str) -> Card:
    return Card(
        source=data["source"],
        container=data["container"],
        files=tuple(ModelFile(**entry) for entry in data["files"]),
        config=model_config(data["config"], file=file),
        linear_formats=tuple(data["linear_formats"]),
        embedding_format=data["embedding_format"],
        group_formats=group_formats(data["config"], file=file),
    )
