"""What the API is, as an OpenAPI 3.1 document: made from the table of operations, so that it cannot differ. Pure.

It says what the gateway itself acts on and answers. Bodies pass as they came, so the rest of a request and what is in
an answer are the model server's to describe.
"""

from collections.abc import Sequence
from typing import Any

from backends.sized import PACKABLE
from gateway.api import openapi_admin, openapi_words, wire
from gateway.api.errors import Shape
from gateway.api.operations import CANCEL, OPERATIONS, RETRIEVE, Operation

Json = dict[str, Any]


def document(version: str, models: Sequence[str]) -> Json:
    """version: of Weighbridge. models: ids of those that are served; they stand there as examples."""
    paths = {path: {"post": _operation(operation, models)} for path, operation in OPERATIONS.items()}
    paths |= {kept.path: {kept.method.lower(): _kept(kept)} for kept in (RETRIEVE, CANCEL)}
    return _document(version, paths | _PAGES | _AUDIT | _FINANCE | openapi_admin.PATHS)


def admin_document(version: str) -> Json:
    """The part of it that operators need."""
    return _document(version, openapi_admin.PATHS)


def _document(version: str, paths: Json) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Weighbridge",
            "version": version,
            "description": "The APIs of OpenAI, Anthropic and vLLM, metered and recorded. Bodies pass as they came: "
            "here stands what the gateway itself acts on and answers, the rest is the model server's.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
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
            "headers": openapi_words.header_components(),
            "responses": openapi_words.response_components(),
            "schemas": _SCHEMAS | openapi_admin.SCHEMAS,
        },
    }


def _operation(operation: Operation, models: Sequence[str]) -> Json:
    described = {"application/json": {"schema": {"type": "object"}}}
    if operation.streams:
        described["text/event-stream"] = {"schema": {"type": "string"}}
    for media in PACKABLE.get(operation.answer, ()):
        described[media] = {"schema": {"type": "string"}}
    words = openapi_words.OPERATION_WORDS[operation.name]
    return {
        "operationId": operation.path.strip("/").replace("/", "_"),
        "summary": words.summary,
        "description": words.description,
        "requestBody": {
            "required": True,
            "content": {_media(operation): {"schema": _body(operation, models)}},
        },
        "responses": {
            "200": {
                "description": "The model server's answer, as it came.",
                "headers": openapi_words.served_headers(operation.errors),
                "content": described,
            },
            **openapi_words.failures(operation.errors),
        },
    }


def _media(operation: Operation) -> str:
    return "multipart/form-data" if operation.form else "application/json"


def _kept(operation: Operation) -> Json:
    words = openapi_words.OPERATION_WORDS[operation.name]
    named = {
        "name": "response_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "operationId": operation.name.replace(".", "_"),
        "summary": words.summary,
        "description": words.description,
        "parameters": [named],
        "responses": {
            "200": _ok(_json("Any")) | {"headers": openapi_words.served_headers(operation.errors)},
            **openapi_words.failures_without_body(operation.errors),
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
    "cache_salt": {"type": ["string", "null"]},
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


def _page(name: str, summary: str, description: str, answers: Json, *, is_open: bool = False) -> Json:
    """answers: those that are not refusals, which only a page that is not open has."""
    described: Json = {"operationId": name, "summary": summary, "description": description}
    if is_open:
        return {"get": described | {"security": [], "responses": answers}}
    return {"get": described | {"responses": answers | openapi_words.refusals()}}


def _ok(content: Json) -> Json:
    return content | {"description": "The answer."}


_PAGES: Json = {
    "/v1/models": _page(
        "models",
        "List the models",
        "Each by its id; aliases are understood, not listed.",
        {"200": _ok(_json("Models"))},
    ),
    "/v1/models/{model}": {
        "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
        **_page(
            "model", "Show a model", "By its id or an alias.",
            {"200": _ok(_json("Model")), "404": openapi_words.failures(Shape.OPENAI)["404"]},
        ),
    },
    "/v1/usage": _page(
        "usage", "Show the key's limits and spending",
        "What is left of each limit now, and what was spent today and this month (UTC), by model.",
        {"200": _ok(_json("Any"))},
    ),
    "/openapi.json": _page(
        "openapi", "This document", "Made of what is served now.", {"200": _ok(_json("Any"))}
    ),
    "/metrics": _page(
        "metrics", "Metrics of all workers",
        "In Prometheus' or OpenMetrics' text format; the key needs the scope `operator`.",
        {"200": _ok(_text()), "503": _text() | {"description": "A worker's page cannot be read now."}},
    ),
    "/healthz": _page(
        "healthz", "Is the process alive", "It answers, and nothing more is said by that.",
        {"200": _ok(_text())}, is_open=True,
    ),
    "/readyz": _page(
        "readyz", "Can calls be served",
        "By model, with the state of each backend and what stands in the way of the others.",
        {"200": _ok(_json("Any")), "503": _json("Any") | {"description": "No model can be served and recorded."}},
        is_open=True,
    ),
    "/version": _page(
        "version", "The release", "Of Weighbridge, not of a model's server.", {"200": _ok(_json("Any"))}, is_open=True
    ),
}  # fmt: skip


def _parameter(name: str, words: str, where: str = "query") -> Json:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": words,
        "schema": {"type": "string", "minLength": 1},
    }


_AUDIT_CALL = _parameter("call_id", "As in the header `x-weighbridge-call-id`.", "path")
_FACE_ERRORS: Json = {
    status: openapi_words.failures(Shape.OPENAI)[status] for status in ("400", "404", "500", "503")
}


def _look(name: str, summary: str, description: str, *parameters: Json, files: Sequence[str] = ()) -> Json:
    """A page of a face with a scope of its own, each look at which is an event. files: media types of what it sends."""
    content: Json = _json("Any")
    if files:
        content = {"content": {kind: {"schema": {"type": "string"}} for kind in files}}
    page = _page(name, summary, description, {"200": _ok(content)} | _FACE_ERRORS)
    return page | ({"parameters": list(parameters)} if parameters else {})


_AUDIT: Json = {
    "/audit/v1/calls/{call_id}": _look(
        "audit_call", "Show the record of a call",
        "With its admission, the host's facts and its place in the chain; of this gateway or of one that it asks.",
        _AUDIT_CALL,
    ),
    "/audit/v1/calls/{call_id}/proof": _look(
        "audit_proof", "Prove the record of a call",
        "Its lines, and what shows that they are in the journal that was signed; check_proof.py checks it.",
        _AUDIT_CALL,
    ),
    "/audit/v1/checkpoints": _look(
        "audit_checkpoints", "List the newest signed checkpoints", "One of each writer, to be kept elsewhere.",
        _parameter("writer", "Of this writer alone."),
    ),
    "/audit/v1/changes": _look(
        "audit_changes", "List what happened besides calls",
        "Event lines by time, a page at a time; `next` is the `after` of the next page.",
        _parameter("from", "A date or an RFC 3339 time; that moment is in."),
        _parameter("to", "The same; that moment is out."),
        _parameter("topic", "Of this topic alone."),
        _parameter("after", "What `next` of the page before says."),
        _parameter("count", "So many at most."),
    ),
    "/audit/v1/keys": _look(
        "audit_keys", "List the keys that sign", "Each as a vkey, with the time for which it was good."
    ),
    "/audit/v1/verify": _look(
        "audit_verify", "Show the last verification", "When it was, its verdict and what it found."
    ) | {"post": _page(
        "audit_verify_again", "Have all journals verified", "Soon, by the gateway's clerk process.",
        {"200": _ok(_json("Any"))} | _FACE_ERRORS,
    )["get"]},
}  # fmt: skip


_FROM = _parameter("from", "The first hour: a date, or an RFC 3339 time on a full hour.")
_TO = _parameter("to", "The hour after the last one, likewise.")
_TZ = _parameter("tz", "Whose days dates are, as in Europe/Berlin; UTC by default.")
_PERIOD = (_FROM, _TO, _TZ)
_MONTH = _parameter("month", "As in 2026-11.")
_EXPORT = (
    _parameter("form", "`focus-split`, `focus-chargeback`, `csv` or `json`.", "path"),
    *_PERIOD,
    _parameter("focus_version", "Of FOCUS: 1.2, 1.3 or 1.4."),
    _parameter("chargeback", "Of focus-chargeback: `rate-card` or `allocated`; by default as configured."),
    _parameter("omit_unpriced", "Of FOCUS, `true`: leave out what has no price."),
)

_FINANCE: Json = {
    "/finance/v1/summary": _look(
        "finance_summary", "Sum closed hours", "By kind of row and the dimensions asked for; exact decimal strings.",
        *_PERIOD, _parameter("by", "Names with commas between them: tenant, cost_centre, project, model, day, …"),
    ),
    "/finance/v1/rows": _look(
        "finance_rows", "List the rows of closed hours",
        "A page at a time; `next` is the `cursor` of the next page, which has the revisions that the first page had.",
        *_PERIOD, _parameter("cursor", "What `next` of the page before says."), _parameter("limit", "So many at most."),
    ),
    "/finance/v1/exports/{form}": _look(
        "finance_export", "Download an export", "Sent while it is made; whole only if it ends as HTTP says.",
        *_EXPORT, files=("text/csv", "application/x-ndjson"),
    ),
    "/finance/v1/exports/{form}/manifest": _look(
        "finance_export_manifest", "Show the manifest of an export", "With the digest and the sums of the file.",
        *_EXPORT,
    ),
    "/finance/v1/hours": _look(
        "finance_hours", "List closed hours", "What each revision says of itself: totals, ratios, what is missing.",
        *_PERIOD,
    ),
    "/finance/v1/months": _look(
        "finance_months", "List months", "The state of each, by whom, and with which bills."
    ),
    "/finance/v1/prices": _look(
        "finance_prices", "Show the price book", "What an hour of each instance type costs, and what says so.",
        _parameter("at", "A date or an RFC 3339 time; now by default."),
    ),
    "/finance/v1/waterfall": _look(
        "finance_waterfall", "Show where a month's money went", "Of each pool, from what was billed to what came in.",
        _MONTH,
    ),
    "/finance/v1/report": _look(
        "finance_report", "Show a tenant's month", "Beside the one before, with the effects of usage and of price.",
        _MONTH, _parameter("tenant", "Whose."),
    ),
    "/finance/v1/statements/{tenant}": _look(
        "finance_statement", "Download a tenant's statement", "A month as one HTML file, to be printed and handed on.",
        _parameter("tenant", "Whose.", "path"), _MONTH, files=("text/html",),
    ),
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
