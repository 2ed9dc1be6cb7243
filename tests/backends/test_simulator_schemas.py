import jsonschema
import pytest

from backends.simulator.schemas import fit

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}}, {"city": "Oslo"}),
        ({"type": "object"}, {}),
        ({"properties": {"a": {"type": "null"}}}, {"a": None}),
        ({"type": "array", "items": {"type": "integer"}}, [1]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, [1, 1, 1]),
        ({"type": "string"}, "load"),
        ({"type": "string", "minLength": 6}, "loadss"),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "number"}, 1),
        ({"type": "boolean"}, True),
        ({"type": ["null", "string"]}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"oneOf": [{"const": "x"}]}, "x"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "boolean"}}}, True),
        ({}, None),
    ],
)  # fmt: skip
def test_a_value_fits_its_schema(schema: dict, value: object) -> None:
    assert fit(schema) == value
    jsonschema.validate(value, schema)


@pytest.mark.parametrize(
    "schema",
    [None, 3, [], {"$ref": 3}, {"$ref": "#/nowhere"}, {"type": []}, {"enum": []}, {"properties": 7},
     {"type": "array", "minItems": "x"}, {"type": "string", "minLength": None}, {"type": "unheard-of"}],
)  # fmt: skip
def test_what_is_no_schema_has_some_value(schema: object) -> None:
    fit(schema)


def test_a_schema_that_may_hold_itself_has_a_value_that_fits() -> None:
    node = {
        "type": "object", "required": ["name", "next"],
        "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    }  # fmt: skip
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    value = fit(schema)
    jsonschema.validate(value, schema)
    assert value["next"]["name"] == "load"


def test_a_schema_that_holds_itself_comes_to_an_end() -> None:
    value, depth = fit(TREE), 0
    while value is not None:
        value, depth = value["next"], depth + 1
    assert depth > 3
