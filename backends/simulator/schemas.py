"""Values that fit a JSON schema: what the simulator says where an answer must have a form. Pure.

The first of what is allowed: the constant, the first of an enumeration, of `anyOf`, of several types; an object with
all its named properties, an array of as few items as it may have, but one. Patterns, formats and bounds other than
`minimum`, `minItems` and `minLength` are not heeded.
"""

from collections.abc import Mapping
from typing import Any

WORD = "load"
DEPTH_NULL = 4
DEPTH_MAX = 16
"""A schema may hold itself: from DEPTH_NULL on what may be null is, and below DEPTH_MAX everything is."""

Schema = Mapping[str, Any]


def fit(schema: object) -> Any:
    """A value for `schema`, which is a JSON schema or no such thing (then null)."""
    return _fit(schema, schema if isinstance(schema, Mapping) else {}, 0)


def _fit(schema: object, root: Schema, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        return None
    if "const" in schema:
        return schema["const"]
    if isinstance(allowed := schema.get("enum"), list) and allowed:
        return allowed[0]
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(allowed := schema.get(key), list) and allowed:
            if depth > DEPTH_NULL and {"type": "null"} in allowed:
                return None
            return _fit(allowed[0], root, depth + 1)
    if isinstance(pointer := schema.get("$ref"), str):
        return _fit(_resolve(root, pointer), root, depth + 1)
    return _of_type(_first_type(schema), schema, root, depth)


def _resolve(root: Schema, pointer: str) -> object:
    """`#/$defs/name` and the like; None: nothing is there."""
    found: object = root
    for name in pointer.removeprefix("#").strip("/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _first_type(schema: Schema) -> object:
    named = schema.get("type")
    if isinstance(named, list) and named:
        return named[0]
    return named or ("object" if "properties" in schema else None)


def _of_type(named: object, schema: Schema, root: Schema, depth: int) -> Any:
    match named:
        case "object":
            properties = schema.get("properties")
            named_ones = properties.items() if isinstance(properties, Mapping) else ()
            return {name: _fit(inner, root, depth + 1) for name, inner in named_ones}
        case "array":
            items_min = schema.get("minItems", 1)
            count = min(items_min, DEPTH_MAX) if isinstance(items_min, int) else 1
            return [_fit(schema.get("items"), root, depth + 1)] * max(1, count)
        case "string":
            length_min = schema.get("minLength", 0)
            return WORD.ljust(min(length_min, 1_000), "s") if isinstance(length_min, int) else WORD
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return None
