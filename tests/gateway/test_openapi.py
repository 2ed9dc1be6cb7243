"""The description of the API: true of the code that reads requests, and whole."""

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors, openapi
from gateway.errors import InvalidRequest, Shape
from gateway.forms import read_form_ask
from gateway.operations import ALL_OPERATIONS, CANCEL, OPERATIONS, Operation
from gateway.wire import read_ask
from tests.support import audio

DOCUMENT = openapi.document("1.2.3", ["m1"])


def schema_of(part: dict[str, Any]) -> dict[str, Any]:
    """A schema of the document with all that it refers to."""
    return part | {"components": DOCUMENT["components"]}


def body_schema(operation: Operation) -> dict[str, Any]:
    (body,) = DOCUMENT["paths"][operation.path]["post"]["requestBody"]["content"].values()
    return dict(body["schema"])


def test_it_is_json_and_names_its_version() -> None:
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", "1.2.3")


def test_every_operation_is_in_it_under_a_name_of_its_own() -> None:
    posted = {path: item["post"] for path, item in DOCUMENT["paths"].items() if "post" in item}
    assert posted.keys() == OPERATIONS.keys() | {CANCEL.path}
    assert ALL_OPERATIONS.keys() <= DOCUMENT["paths"].keys()
    for operation in ALL_OPERATIONS.values():
        assert operation.method.lower() in DOCUMENT["paths"][operation.path]
    methods = [item.get("post") or item["get"] for item in DOCUMENT["paths"].values()]
    assert len({method["operationId"] for method in methods}) == len(methods)
    for path, operation in OPERATIONS.items():
        schema = body_schema(operation)
        assert schema["properties"].keys() - {"file"} == operation.acted_on
        assert ("file" in schema["required"]) is operation.form
        assert ("multipart/form-data" in posted[path]["requestBody"]["content"]) is operation.form
        assert schema["properties"]["model"]["examples"] == ["m1"]
        answers = posted[path]["responses"]
        assert ("text/event-stream" in answers["200"]["content"]) is operation.streams
        bare = operation.name in ("embeddings", "pooling")
        assert ("application/octet-stream" in answers["200"]["content"]) is bare
        assert answers.keys() == {"200", "4XX", "5XX"}


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    names = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(DOCUMENT)))
    assert names == DOCUMENT["components"]["schemas"].keys()
    for schema in [*DOCUMENT["components"]["schemas"].values(), *map(body_schema, OPERATIONS.values())]:
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("shape", Shape)
def test_errors_are_as_it_says(shape: Shape) -> None:
    path = next(path for path, operation in OPERATIONS.items() if operation.errors is shape)
    answer = DOCUMENT["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
    for error in (InvalidRequest("no", param="n"), errors.Fault("no"), errors.UnknownKey("no")):
        jsonschema.validate(json.loads(errors.error_body(error, shape)), schema_of(answer))


VALUES = st.none() | st.booleans() | st.integers(-2, 200) | st.sampled_from(
    [2**53, 2**53 + 1, "", "m1", "x" * 256, "x" * 257, [], {}, 0.5, 5.0, 1e16,
     {"include_usage": True}, {"include_usage": None}, {"include_usage": 1}]
)  # fmt: skip


@given(st.data(), st.sampled_from([operation for operation in OPERATIONS.values() if not operation.form]))
def test_it_says_of_a_body_what_the_code_says(data: st.DataObject, operation: Operation) -> None:
    names = st.sampled_from([*sorted(operation.acted_on), "messages", "n", "stream", "x"])
    body = {"model": "m1"} | data.draw(st.dictionaries(names, VALUES, max_size=4))
    if data.draw(st.integers(0, 9)) == 0:
        del body["model"]
    fits = jsonschema.Draft202012Validator(body_schema(operation)).is_valid(body)
    try:
        read_ask(json.dumps(body).encode(), operation)
    except InvalidRequest:
        assert not fits
    else:
        assert fits


FORM_VALUES: dict[str, list[object]] = {
    "stream": [True, False, "x", 2],
    "stream_include_usage": [True, False, "x"],
    "max_completion_tokens": [0, 7, 2**53, 2**53 + 1, -1, "x"],
    "model": ["m1", "x" * 256, "x" * 257, ""],
    "x": ["", "x"],
}


@given(
    st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in FORM_VALUES.items()}
    )
)
def test_it_says_of_a_form_what_the_code_says(fields: dict[str, object]) -> None:
    """Values of a form are written as text: a string, or JSON (OpenAPI 3.1, Encoding Object)."""
    operation = OPERATIONS["/v1/audio/translations"]
    fits = jsonschema.Draft202012Validator(body_schema(operation)).is_valid(fields | {"file": "RIFF"})
    texts = [
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in fields.items()
    ]
    body = audio.form(*((name, text.encode()) for name, text in texts))
    if not texts:
        body = audio.form(("file", b"RIFF"))
    try:
        read_form_ask(body, audio.TYPE.encode(), operation)
    except InvalidRequest:
        assert not fits
    else:
        assert fits
