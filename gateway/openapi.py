"""What the API is, as an OpenAPI 3.1 document: made from the table of operations, so that it cannot differ. Pure.

It says what the gateway itself acts on and answers. Bodies pass as they came, so the rest of a request and what is in
an answer are the model server's to describe.
"""

from collections.abc import Sequence
from typing import Any

from backends.sized import PACKABLE
from gateway import wire
from gateway.errors import Shape
from gateway.operations import CANCEL, OPERATIONS, RETRIEVE, Operation

Json = dict[str, Any]

_ERRORS = {Shape.OPENAI: "Error", Shape.RESPONSES: "Error", Shape.ANTHROPIC: "AnthropicError"}


def document(version: str, models: Sequence[str]) -> Json:
    """version: of Weighbridge. models: ids of those that are served; they stand there as examples."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Weighbridge",
            "version": version,
            "description": "The APIs of OpenAI, Anthropic and vLLM, metered and recorded.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": {path: {"post": _operation(operation, models)} for path, operation in OPERATIONS.items()}
        | {kept.path: {kept.method.lower(): _kept(kept)} for kept in (RETRIEVE, CANCEL)}
        | _PAGES,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key, `wb-…`."},
                "apiKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "The same key.",
                },
            },
            "schemas": _SCHEMAS,
        },
    }


def _operation(operation: Operation, models: Sequence[str]) -> Json:
    described = {"application/json": {"schema": {"type": "object"}}}
    if operation.streams:
        described["text/event-stream"] = {"schema": {"type": "string"}}
    for media in PACKABLE.get(operation.answer, ()):
        described[media] = {"schema": {"type": "string"}}
    failed = _json(_ERRORS[operation.errors])
    return {
        "operationId": operation.path.strip("/").replace("/", "_"),
        "summary": operation.name,
        "requestBody": {
            "required": True,
            "content": {_media(operation): {"schema": _body(operation, models)}},
        },
        "responses": {
            "200": {"description": "The model server's answer, as it came.", "content": described},
            "4XX": failed | {"description": "The request is at fault, by the gateway or by the server."},
            "5XX": failed | {"description": "No server could answer; another try may help."},
        },
    }


def _media(operation: Operation) -> str:
    return "multipart/form-data" if operation.form else "application/json"


def _kept(operation: Operation) -> Json:
    failed = _json(_ERRORS[operation.errors])
    named = {
        "name": "response_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "operationId": operation.name.replace(".", "_"),
        "summary": operation.name,
        "parameters": [named],
        "responses": {
            "200": _ok(_json("Any")),
            "4XX": failed | {"description": "No such response of this tenant's, or it cannot be had so."},
            "5XX": failed | {"description": "The server that holds it could not answer."},
        },
    }


def _body(operation: Operation, models: Sequence[str]) -> Json:
    """What is acted on of a body; whatever else it has goes on."""
    name_length = {"minLength": 1, "maxLength": wire.MODEL_CHARACTERS_MAX}
    fields: Json = {"model": {"type": "string", **name_length, "examples": list(models)}}
    fields |= {name: _FIELDS.get(name, _LENGTH) for name in sorted(operation.acted_on - {"model"})}
    if operation.form:
        return _form(fields)
    return {"type": "object", "required": ["model"], "properties": fields, "additionalProperties": True}


def _form(fields: Json) -> Json:
    """The same as a form, which has no null; its file is what the server needs of it."""
    for name, field in fields.items():
        if isinstance(field["type"], list):
            fields[name] = field | {"type": field["type"][0]}
    fields["file"] = {"type": "string", "contentMediaType": "application/octet-stream"}
    return {
        "type": "object",
        "required": ["file", "model"],
        "properties": fields,
        "additionalProperties": True,
    }


_LENGTH: Json = {"type": ["integer", "null"], "minimum": wire.LENGTH_MIN, "maximum": wire.LENGTH_MAX}
_FLAG: Json = {"type": ["boolean", "null"]}
_FIELDS: dict[str, Json] = {
    "stream": _FLAG,
    "stream_options": {"type": ["object", "null"], "properties": {"include_usage": _FLAG}},
    "stream_include_usage": _FLAG,
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": wire.N_MAX},
    "background": {"enum": [False, None]},
    "previous_response_id": {"type": ["string", "null"]},
    "request_id": {"not": {}},
    "store": _FLAG,
}


def _json(schema: str) -> Json:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _text() -> Json:
    return {"content": {"text/plain": {"schema": {"type": "string"}}}}


def _page(name: str, summary: str, answers: dict[str, Json], *, is_open: bool = False) -> Json:
    described: Json = {"operationId": name, "summary": summary, "responses": answers}
    if is_open:
        described["security"] = []
    return {"get": described}


def _ok(content: Json) -> Json:
    return content | {"description": "The answer."}


_REFUSED = {"4XX": _json("Error") | {"description": "No key, not this key, or nothing of this name."}}

_PAGES: Json = {
    "/v1/models": _page("models", "All models", {"200": _ok(_json("Models")), **_REFUSED}),
    "/v1/models/{model}": {
        "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
        **_page("model", "One model, by its id or an alias", {"200": _ok(_json("Model")), **_REFUSED}),
    },
    "/openapi.json": _page("openapi", "This document", {"200": _ok(_json("Any")), **_REFUSED}),
    "/metrics": _page("metrics", "For Prometheus; needs the scope `operator`", {
        "200": _ok(_text()), **_REFUSED, "503": _text() | {"description": "A worker's page cannot be read now."}}),
    "/healthz": _page("healthz", "The process answers", {"200": _ok(_text())}, is_open=True),
    "/readyz": _page("readyz", "Some model can be served and recorded", {
        "200": _ok(_json("Any")), "503": _json("Any") | {"description": "None can; with the reasons."},
    }, is_open=True),
    "/version": _page("version", "Of Weighbridge", {"200": _ok(_json("Any"))}, is_open=True),
}  # fmt: skip


def _object(**fields: Json) -> Json:
    return {"type": "object", "required": list(fields), "properties": fields}


_STRING: Json = {"type": "string"}
_MAYBE: Json = {"type": ["string", "null"]}

_SCHEMAS: dict[str, Json] = {
    "Error": _object(
        error=_object(
            message=_STRING, type=_MAYBE, param=_MAYBE, code={"type": ["string", "integer", "null"]}
        )
    ),
    "AnthropicError": _object(type={"const": "error"}, error=_object(type=_STRING, message=_STRING)),
    "Model": _object(
        id=_STRING,
        object={"const": "model"},
        created={"type": "integer"},
        owned_by=_STRING,
        max_model_len={"type": ["integer", "null"]},
    ),
    "Models": _object(
        object={"const": "list"}, data={"type": "array", "items": {"$ref": "#/components/schemas/Model"}}
    ),
    "Any": {"type": "object"},
}
