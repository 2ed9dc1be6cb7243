"""The description of the API: true of the code that reads requests, and whole."""

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import ratelimit_headers
from gateway.api import errors, openapi, openapi_words
from gateway.api.errors import (
    ArchiveUnreadable,
    BackendsBusy,
    Conflict,
    GatewayError,
    GatewayUnreachable,
    HostNotAllowed,
    InvalidRequest,
    JournalFull,
    NoBackend,
    OriginNotAllowed,
    Overloaded,
    Shape,
    VersionDiffers,
)
from gateway.api.forms import read_form_ask
from gateway.api.operations import ALL_OPERATIONS, CANCEL, OPERATIONS, Operation
from gateway.api.wire import read_ask
from gateway.calls import heads
from gateway.calls.tally import Tally
from tests.support import audio
from tests.support.machine import facts, plan, target

DOCUMENT = openapi.document("1.2.3", ["m1"])


NOT_OF_A_PATH = {405, 431}  # another method is none of the path's, another head is found before it
NOT_OF_AN_OPERATION = (
    GatewayError, OriginNotAllowed, GatewayUnreachable, ArchiveUnreadable, Conflict, VersionDiffers, HostNotAllowed
)  # fmt: skip
FAMILY = [
    error for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, GatewayError) and error not in NOT_OF_AN_OPERATION
    and error.status not in NOT_OF_A_PATH
]  # fmt: skip
FAILURES = {int(error.status) for error in FAMILY}


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to."""
    *_, kind, name = part["$ref"].split("/")
    return dict(DOCUMENT["components"][kind][name])


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
    posted = {
        path: item["post"]
        for path, item in DOCUMENT["paths"].items()
        if "post" in item and not path.startswith(("/audit/", "/admin/"))
    }
    assert posted.keys() == OPERATIONS.keys() | {CANCEL.path}
    assert ALL_OPERATIONS.keys() <= DOCUMENT["paths"].keys()
    for operation in ALL_OPERATIONS.values():
        assert operation.method.lower() in DOCUMENT["paths"][operation.path]
    methods = [
        item[name] for item in DOCUMENT["paths"].values() for name in ("get", "post", "patch") if name in item
    ]
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
        assert answers.keys() == {"200", *map(str, FAILURES), "4XX"}


def test_people_are_told_of_every_operation_what_it_is() -> None:
    assert openapi_words.OPERATION_WORDS.keys() == {operation.name for operation in ALL_OPERATIONS.values()}
    for item in DOCUMENT["paths"].values():
        told = item.get("post") or item["get"]
        assert 1 <= len(told["summary"].split()) <= 9, told
        assert not told["summary"].endswith(".")
        assert len(told["description"].split()) >= 4, told
        assert told["description"].endswith(".")


@pytest.mark.parametrize("error", FAMILY, ids=lambda error: error.__name__)
def test_every_error_that_an_operation_can_have_is_under_its_status(error: type[GatewayError]) -> None:
    told = resolved(DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"][str(int(error.status))])
    assert error.code is None or f"`{error.code}`" in told["description"]
    anthropic = resolved(DOCUMENT["paths"]["/v1/messages"]["post"]["responses"][str(int(error.status))])
    assert anthropic["description"].endswith(f"Type: `{errors.anthropic_type(error.status)}`.")
    if error in (NoBackend, BackendsBusy, Overloaded, JournalFull):
        assert "retry-after" in told["headers"]


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_headers_are_those_that_are_sent(path: str) -> None:
    operation = OPERATIONS[path]
    known = msgspec.structs.replace(facts(keys=("min_p",)), operation=operation)
    tally = Tally(known, plan((target("a"),)))
    tally.target, tally.fallback, tally.spill = target("a"), "down", "full"
    assert tally.ignored() == ("min_p",)
    answers = DOCUMENT["paths"][path]["post"]["responses"]
    body = {"content-type", "content-length"}
    sent = {name.decode() for name, _ in heads.sized_head(200, known, tally, 1).headers}
    assert (sent - body) | set(ratelimit_headers.NAMES) == answers["200"]["headers"].keys()
    refused, _ = heads.error(NoBackend("no", retry_after_s=1), known)
    assert {name.decode() for name, _ in refused.headers} - body == resolved(answers["503"])["headers"].keys()


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    for kind in ("headers", "responses", "schemas"):
        names = set(re.findall(rf'"\$ref": "#/components/{kind}/([\w-]+)"', json.dumps(DOCUMENT)))
        assert names == DOCUMENT["components"][kind].keys()
    for schema in [*DOCUMENT["components"]["schemas"].values(), *map(body_schema, OPERATIONS.values())]:
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("shape", Shape)
def test_errors_are_as_it_says(shape: Shape) -> None:
    path = next(path for path, operation in OPERATIONS.items() if operation.errors is shape)
    told = resolved(DOCUMENT["paths"][path]["post"]["responses"]["4XX"])
    answer = told["content"]["application/json"]["schema"]
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
