"""What of a JSON schema says something about a value.

Generators of schemas write keywords that allow everything, such as `uniqueItems: false`. The
compiler refuses them by name, like any keyword that it does not enforce; without them the same
values satisfy the schema.
"""

from __future__ import annotations

from typing import Any

# Where schemas stand within a schema: under names of their own, in a list, or alone.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_IN_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_ALONE = frozenset({"items", "additionalProperties", "additionalItems", "contains", "not"})
_ALLOWS_ALL: tuple[Any, ...] = (True, {})
# Keyword -> values with which it allows everything.
_EMPTY: dict[str, tuple[Any, ...]] = {
    "propertyNames": (*_ALLOWS_ALL, {"type": "string"}),
    "unevaluatedProperties": _ALLOWS_ALL,
    "unevaluatedItems": _ALLOWS_ALL,
    "uniqueItems": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "not": (False,),
}


def telling(schema: Any) -> Any:
    """The same schema without the keywords that allow every value. Recursive: the caller has
    bounded its depth."""
    if not isinstance(schema, dict):
        return schema
    return {key: _within(key, value) for key, value in schema.items() if _tells(key, value)}


def _tells(key: str, value: Any) -> bool:
    # False and 0 are equal, and so are True and 1.
    return not any(type(value) is type(one) and value == one for one in _EMPTY.get(key, ()))


def _within(key: str, value: Any) -> Any:
    if key in _ALONE:
        return telling(value)
    if key in _BY_NAME and isinstance(value, dict):
        return {name: telling(inner) for name, inner in value.items()}
    if key in _IN_LIST and isinstance(value, list):
        return [telling(inner) for inner in value]
    return value
