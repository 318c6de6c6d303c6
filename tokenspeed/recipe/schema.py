"""JSON Schema (draft 2020-12) of a recipe, for editors and for `tokenspeed schema`."""

from __future__ import annotations

from typing import Any, get_args

from pydantic.fields import FieldInfo

from tokenspeed.recipe.conditions import DEVICES, LINKS
from tokenspeed.recipe.types import Recipe, Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """Accepts what `load` accepts, as far as a schema can say it.

    Descriptions, units, examples and the cost of a change (`x-reload`) are in it. An absent key
    differs from a null one, which deletes what a parent says: without a parent no property is
    nullable, so none is here.
    """
    schema = without_null(Recipe.model_json_schema())
    properties: dict[str, Any] = schema["properties"]
    properties["version"]["const"] = 1
    # What a parent may say need not be said again.
    del schema["required"], schema["$defs"]["Model"]["required"]
    head = {name: properties.pop(name) for name in ("version", "name")}
    schema["$defs"]["Parts"] = {
        "type": "object",
        "description": "Keys of a recipe, put over it.",
        "properties": {name: dict(part) for name, part in properties.items()},
        "additionalProperties": False,
        "patternProperties": {"^x-": True},
    }
    schema["properties"] = {**head, "extends": EXTENDS, "when": _when(), **properties}
    schema["if"] = {"not": {"required": ["extends"]}}
    schema["then"] = {
        "required": ["version", "name", "model"],
        "properties": {"model": {"required": ["source"]}},
    }
    return {"$schema": DIALECT, "title": "tokenspeed recipe", **schema}


def reload_cost(key: str) -> str:
    """What a change of a recipe key costs: live, drain or restart."""
    model: Any = Recipe
    field: FieldInfo | None = None
    for name in key.split("."):
        if model is None:
            break  # inside a mapping of the user's own words
        field = model.model_fields[name]
        model = next((part for part in _parts(field.annotation) if issubclass(part, Section)), None)
    assert field is not None and isinstance(field.json_schema_extra, dict), key
    return str(field.json_schema_extra["x-reload"])


def _parts(annotation: Any) -> list[type]:
    return [part for part in (annotation, *get_args(annotation)) if isinstance(part, type)]


EXTENDS = {
    "type": "string",
    "pattern": "^[^/~].*$",
    "description": "One recipe that this one is put over; the path counts from this file. Mappings "
    "merge, lists replace, null deletes.",
    "examples": ["base.yaml"],
    "x-reload": "restart",
}


def _when() -> dict[str, Any]:
    """Conditions on the machine, as `conditions` reads them."""
    sign = "^(>=|<=|>|<)? ?"
    number = "[0-9]+(\\.[0-9]+)?"
    words = {"type": "string"}
    conditions = {
        "arch": {
            "anyOf": [words, {"type": "array", "items": words, "minItems": 1}],
            "description": "Architecture of the device: sm_90, gfx950, x86_64; a list means any.",
            "examples": [["sm_100", "sm_103"]],
        },
        "device": {"enum": list(DEVICES), "description": "Kind of device that computes."},
        "memory": {
            "type": "string",
            "pattern": f"{sign}{number} ?(B|KiB|MiB|GiB|TiB)$",
            "description": "Memory of one device: a sign and a size.",
            "examples": [">=80GiB"],
        },
        "count": {
            "anyOf": [{"type": "integer", "minimum": 0}, words | {"pattern": f"{sign}[0-9]+$"}],
            "description": "Number of equal devices, or a sign and a number.",
            "examples": [">=4"],
        },
        "link": {"enum": list(LINKS), "description": "What joins the devices."},
    }
    branch = {
        "type": "object",
        "required": ["if", "then"],
        "properties": {
            "if": {
                "type": "object",
                "description": "All of these must hold.",
                "properties": conditions,
                "minProperties": 1,
                "additionalProperties": False,
            },
            "then": {"$ref": "#/$defs/Parts"},
        },
        "additionalProperties": False,
        "patternProperties": {"^x-": True},
    }
    return {
        "type": "array",
        "items": branch,
        "description": "Parts that hold on some machines only; each is put over the recipe, in "
        "order.",
        "examples": [[{"if": {"arch": "sm_100"}, "then": {"limits": {"max_running": 64}}}]],
        "x-reload": "restart",
    }


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
