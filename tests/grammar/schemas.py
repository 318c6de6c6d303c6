"""Schemas in the style of the public JSON Schema test suite: a keyword at a time, then together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any] | bool


def _object(properties: dict[str, Any], *required: str, closed: bool = True) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return schema | ({"additionalProperties": False} if closed else {})


_STRING, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": _INTEGER,
                "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


def _types() -> Iterator[Schema]:
    names = ("null", "boolean", "integer", "number", "string", "array", "object")
    yield from ({"type": name} for name in names)
    yield from ({"type": list(pair)} for pair in itertools.combinations(names[:5], 2))
    yield from ({"type": ["null", name]} for name in ("array", "object"))
    yield from (True, {})


def _values() -> Iterator[Schema]:
    every = [None, True, 0, -3, 1.5, "", "a b", 'q"\\', "é", [], [1, "x"], {}, {"a": {"b": [None]}}]
    yield from ({"const": value} for value in every)
    yield {"enum": every}
    yield from ({"enum": pair} for pair in (["a", "ab"], [1, "1"], [None, "null"], ["x"], [[], {}]))
    yield {"type": "string", "enum": ["red", "green"]}


def _numbers() -> Iterator[Schema]:
    bounds = [(0, 0), (0, 9), (-5, 5), (10, 130), (-200, -3), (999, 1001)]
    for low, high in bounds:
        yield {"type": "integer", "minimum": low, "maximum": high}
        yield {"type": "number", "minimum": low - 0.5, "maximum": high + 0.25}
    yield from ({"type": "integer", key: 7} for key in ("minimum", "maximum"))
    yield {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}
    yield {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    yield from ({"type": "integer", "multipleOf": step} for step in (1, 2, 5, 7))
    yield {"type": "integer", "multipleOf": 5, "minimum": -20, "maximum": 40}
    yield from ({"type": "number", "multipleOf": step} for step in (0.25, 0.5, 10))
    yield {"type": ["integer", "string"], "minimum": 3, "maxLength": 3}


def _strings() -> Iterator[Schema]:
    yield from ({"type": "string", "minLength": n, "maxLength": n + 2} for n in (0, 1, 5))
    yield {"type": "string", "minLength": 3}
    yield {"type": "string", "maxLength": 4}
    patterns = ("^[a-z]+$", "^\\d{3}-\\d{4}$", "b", "^(ab|cd)*$", "^$", "^[a-z]{1,9}[.]json$",
                "^é+$", "^\\S+$", "^[^\"\\\\]{2,3}$", "^(?:a|bc){1,2}x?$", "^[+-]?[0-9]{1,4}$",
                "^\\w{2,5}$", "^#([0-9a-f]{3}){1,2}$", "^(/[a-z]{1,4}){1,3}$")  # fmt: skip
    yield from ({"type": "string", "pattern": pattern} for pattern in patterns)
    formats = ("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "uri",
               "duration")  # fmt: skip
    yield from ({"type": "string", "format": name} for name in formats)


def _arrays() -> Iterator[Schema]:
    for items in (_INTEGER, _STRING, {"enum": ["a", "b"]}, {"type": "array", "items": _INTEGER}):
        yield {"type": "array", "items": items, "maxItems": 3}
        yield {"type": "array", "items": items, "minItems": 2, "maxItems": 4}
    yield {"type": "array", "minItems": 1, "maxItems": 1}
    yield {"type": "array", "maxItems": 0}
    yield {"type": "array", "prefixItems": [_INTEGER, _STRING], "items": False, "minItems": 2}
    yield {"type": "array", "prefixItems": [{"const": 1}], "items": _STRING, "maxItems": 3}
    yield {"type": "array", "prefixItems": [_INTEGER, {"type": "boolean"}], "maxItems": 2}


def _objects() -> Iterator[Schema]:
    values = (_STRING, _INTEGER, {"type": "boolean"}, {"type": "array", "items": _INTEGER})
    for value in values:
        yield _object({"a": value}, "a")
        yield _object({"a": value})
        yield _object({"a": value, "b": _INTEGER}, "b")
        yield _object({"a": value}, "a", closed=False)
    yield _object({})
    yield _object({"a": _object({"b": _object({"c": _INTEGER}, "c")}, "b")}, "a")
    yield {"type": "object", "additionalProperties": _INTEGER}
    yield {"type": "object", "required": ["x"], "additionalProperties": _STRING}
    yield {"type": "object", "required": ["x", "y"]}
    yield {"type": "object", "patternProperties": {"^n_": _INTEGER}, "additionalProperties": False}
    yield _object({'q"': _INTEGER, "é": _STRING, "a/b": {"type": "null"}}, 'q"', "é")
    yield {"type": "object", "properties": {"foo": False}, "additionalProperties": _INTEGER}
    yield {"type": "object", "minProperties": 1, "maxProperties": 2}


def _together() -> Iterator[Schema]:
    cat = _object({"kind": {"const": "cat"}, "lives": _INTEGER}, "kind", "lives")
    dog = _object({"kind": {"const": "dog"}, "name": _STRING}, "kind")
    yield {"anyOf": [_INTEGER, {"type": "string", "maxLength": 3}]}
    yield {"anyOf": [cat, dog]}
    yield {"anyOf": [_object({"a": _INTEGER}, "a"), _object({"b": _STRING}, "b")]}
    yield {"oneOf": [cat, dog]}
    yield {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}
    yield {"allOf": [{"type": "object", "properties": {"a": _INTEGER}}, {"required": ["a"]}]}
    yield {"type": "integer", "allOf": [{"minimum": 0}], "anyOf": [{"maximum": 5}]}
    yield {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer", "minimum": 1}}}
    yield {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "boolean"}}}
    yield {"properties": {"x": {"$ref": "#/$defs/s"}}, "$defs": {"s": _STRING}, "type": "object"}
    yield _TREE
    yield {
        "type": "object",
        "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "id": _INTEGER},
        "required": ["id", "next"],
        "additionalProperties": False,
    }
    pets = {"type": "array", "items": {"anyOf": [cat, dog]}, "maxItems": 2}
    yield _object({"pets": pets}, "pets")
    yield {"type": "array", "items": {"type": "array", "items": pets, "maxItems": 1}, "maxItems": 2}
    yield {"type": ["string", "null"], "maxLength": 5, "pattern": "^[a-c]+$"}
    yield {"anyOf": [{"const": "on"}, {"type": "integer", "minimum": 1, "maximum": 3}]}
    yield _object({"optional": {"anyOf": [_STRING, {"type": "null"}], "default": None}})
    yield _object({"when": {"type": "string", "format": "date-time"}, "where": pets}, "when")
    yield {"type": "object", "additionalProperties": {"enum": ["a", "b"]}, "maxProperties": 3}
    yield {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/order",
        "title": "Order",
        "description": "What agents send",
        "$comment": "none",
        "examples": [{}],
        "default": {},
        **_object(
            {
                "id": {"type": "string", "format": "uuid"},
                "total": {"type": "number", "minimum": 0, "maximum": 1000},
                "lines": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 2,
                    "items": _object({"sku": _STRING, "count": {"type": "integer"}}, "sku"),
                },
                "note": {"type": ["string", "null"], "maxLength": 9},
            },
            "id",
            "lines",
        ),
    }


def _saying_nothing() -> Iterator[Schema]:
    """Keywords that are not enforced otherwise, with values that allow everything; and, below
    them, the same words as names and values."""
    strings = {"type": "array", "items": _STRING, "maxItems": 3}
    names = ("propertyNames", "uniqueItems", "not")
    yield {"type": "object", "propertyNames": _STRING, "additionalProperties": _INTEGER}
    yield {"type": "object", "propertyNames": True, "unevaluatedProperties": {}}
    yield {"type": "object", "dependentRequired": {}, "dependentSchemas": {}, "not": False}
    yield {**strings, "uniqueItems": False, "unevaluatedItems": True}
    yield {"anyOf": [{**strings, "uniqueItems": False}, {"$ref": "#/$defs/not"}]} | {
        "$defs": {"not": {"type": "object", "propertyNames": _STRING}}
    }
    yield {"items": {**strings, "uniqueItems": False}, "type": "array", "maxItems": 2}
    yield _object({name: {"type": "boolean", "not": False} for name in names}, *names)
    yield {"enum": [{"uniqueItems": False}]}
    yield {"const": {"propertyNames": True, "not": False}}


SUPPORTED: list[Schema] = [
    schema
    for family in (
        _types,
        _values,
        _numbers,
        _strings,
        _arrays,
        _objects,
        _together,
        _saying_nothing,
    )
    for schema in family()
]

# A valid schema each that cannot be enforced, and the word that must be in the refusal.
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": _INTEGER}, "contains"),
    ({"type": "array", "contains": {}, "minContains": 2}, "contains"),
    ({"not": _STRING}, "not"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"type": "object", "propertyNames": False}, "propertyNames"),
    ({"type": "array", "uniqueItems": 0}, "uniqueItems"),
    ({"not": True}, "not"),
    ({"type": "array", "items": {"anyOf": [{"not": {}}]}}, "not"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({"type": "object", "dependencies": {"a": ["b"]}}, "dependencies"),
    ({"if": _STRING, "then": {"maxLength": 2}}, "if"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "array", "unevaluatedItems": False}, "unevaluatedItems"),
    ({"$dynamicRef": "#x"}, "$dynamicRef"),
    ({"type": "string", "format": "moon-phase"}, "moon-phase"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "oneOf"),
    ({"type": "string", "pattern": "a(?=b)"}, "look-around"),
    ({"$ref": "https://example.com/other.json"}, "https://example.com/other.json"),
]
