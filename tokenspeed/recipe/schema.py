"""JSON Schema (draft 2020-12) of a recipe, for editors and for `tokenspeed schema`."""

from __future__ import annotations

from typing import Any

from tokenspeed.recipe.types import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """Accepts what `load` accepts, as far as a schema can say it.

    Descriptions and examples of the keys are in it. An absent key differs from a null one, which
    is refused: so no property is nullable.
    """
    schema = without_null(Recipe.model_json_schema())
    schema["properties"]["version"]["const"] = 1
    return {"$schema": DIALECT, "title": "tokenspeed recipe", **schema}


def without_null(node: Any) -> Any:
    """`node` without null alternatives, null defaults and generated titles."""
    if isinstance(node, list):
        return [without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: without_null(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and key != "default"
    }
    options = kept.get("anyOf")
    if options is None:
        return kept
    options = [option for option in options if option != {"type": "null"}]
    if len(options) > 1:
        return {**kept, "anyOf": options}
    del kept["anyOf"]
    return {**options[0], **kept}
