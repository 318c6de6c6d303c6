"""The keys of a recipe, by dotted path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tokenspeed.recipe.types import Recipe


def key_paths() -> dict[str, FieldInfo]:
    """Every key of a recipe that holds a value, by dotted path, in the order of the schema."""
    return dict(_leaves(Recipe, ""))


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        inner = section_of(info)
        if inner is None:
            yield prefix + name, info
        else:
            yield from _leaves(inner, f"{prefix}{name}.")


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, or None for a plain value."""
    for candidate in (info.annotation, *get_args(info.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
