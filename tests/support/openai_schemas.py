"""OpenAI's own schemas (tests/data/openai) as a judge of answers. Imports nothing of the project.

The document is OpenAPI 3.0 in places (`nullable`) and 3.1 in others; it is read as JSON Schema 2020-12.
"""

import copy
import dataclasses
import functools
import json
import pathlib
import typing
from collections.abc import Iterable, Iterator

import jsonschema
from jsonschema.exceptions import ValidationError

SCHEMAS = pathlib.Path(__file__).parent.parent / "data" / "openai" / "schemas.json"
KINDS = ("type", "object", "role")
"""Fields that say which member of a union a value is."""

Json = typing.Any


@dataclasses.dataclass(frozen=True, order=True)
class Violation:
    """One field that is not as the schema says.

    field: its path in the answer, `[]` for any place of a list. found: `missing`, the JSON type of what stands
    there (`null`, `integer`, …), or the value where only some values are allowed.
    """

    schema: str
    field: str
    found: str


def violations(schema: str, answer: Json) -> set[Violation]:
    """All fields of an answer that are not as the schema of this name says."""
    return {
        Violation(schema, _field(leaf), _found(leaf))
        for error in _validator(schema).iter_errors(answer)
        for leaf in _leaves(error)
    }


@functools.cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    document = _document()
    assert schema in document["components"]["schemas"], schema
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{schema}", **document})


@functools.cache
def _document() -> Json:
    return _null_as_a_type({"components": json.loads(SCHEMAS.read_text())["components"]})


def _null_as_a_type(node: Json) -> Json:
    """`nullable: true` of OpenAPI 3.0 in the words of 3.1, which JSON Schema knows."""
    if isinstance(node, list):
        return [_null_as_a_type(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {name: _null_as_a_type(item) for name, item in node.items()}
    if inner.get("nullable") is not True:
        return inner
    bare = copy.copy(inner)
    del bare["nullable"]
    return {"anyOf": [bare, {"type": "null"}]}


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    """The errors at the bottom: of a union those of the one member that was meant, if it can be told."""
    if error.validator not in ("anyOf", "oneOf") or not error.context:
        yield error
        return
    members: dict[int, list[ValidationError]] = {}
    for inner in error.context:
        members.setdefault(int(inner.relative_schema_path[0]), []).append(inner)
    meant = [errors for errors in members.values() if not any(map(_is_another_kind, errors))]
    if len(meant) != 1:
        yield error
        return
    for inner in meant[0]:
        yield from _leaves(inner)


def _is_another_kind(error: ValidationError) -> bool:
    """Does this error of a union's member say that another member was meant?"""
    path = list(error.relative_path)
    if not path:
        return error.validator == "type"
    return len(path) == 1 and path[0] in KINDS and error.validator in ("enum", "const")


def _field(error: ValidationError) -> str:
    steps: Iterable[str | int] = error.absolute_path
    names = ["[]" if isinstance(step, int) else f".{step}" for step in steps]
    if error.validator == "required":
        (missing,) = (name for name in error.validator_value if error.message.startswith(f"{name!r} "))
        names.append(f".{missing}")
    return "".join(names).lstrip(".")


def _found(error: ValidationError) -> str:
    match error.validator:
        case "required":
            return "missing"
        case "enum" | "const" if error.instance is not None:
            return str(error.instance)
        case _:
            return _json_type(error.instance)


def _json_type(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
