"""The admin face in /openapi.json: its paths, and the settings of tenants and keys as its bodies have them. Pure."""

from typing import Any

import msgspec

from gateway.api import openapi_words
from gateway.api.errors import Shape
from gateway.directory.edits import OVERLAP_S_DEFAULT, OVERLAP_S_MAX
from gateway.directory.entries import KeySettings, TenantSettings

Json = dict[str, Any]
PREFIX = "/admin/v1"


def _components() -> dict[str, Json]:
    """Schemas of all settings, by the names of their types."""
    _, found = msgspec.json.schema_components(
        [TenantSettings, KeySettings], ref_template="#/components/schemas/{name}"
    )
    components: dict[str, Json] = {name: _portable(schema) for name, schema in found.items()}
    tenant, key = components.pop("TenantSettings"), components.pop("KeySettings")
    del components["Key"], components["Capture"]
    for name in ("keys", "capture"):
        del tenant["properties"][name]
    for name in ("hash", "replaces"):
        del key["properties"][name]
    key["required"].remove("hash")
    return components | {
        "NewTenant": tenant | {"title": "NewTenant", "description": "A tenant."},
        "NewKey": key | {"title": "NewKey", "description": "A key of a tenant."},
        "TenantChange": _change(tenant, "TenantChange", "name"),
        "KeyChange": _change(key, "KeyChange", "tenant"),
        "Rotation": {
            "type": "object",
            "properties": {
                "overlap_s": {
                    "type": "integer", "minimum": 0, "maximum": OVERLAP_S_MAX, "default": OVERLAP_S_DEFAULT,
                    "description": "For how many seconds the old key goes on.",
                }
            },
            "additionalProperties": False,
        },
        "Tenant": _shown("tenant"),
        "ApiKey": _shown("key"),
    }  # fmt: skip


def _portable(schema: Any) -> Any:
    """Without what only Python has: its end of a pattern, and tuples."""
    match schema:
        case dict():
            return {
                name: value.replace(r"\Z", "$") if name == "pattern" else _portable(value)
                for name, value in schema.items()
            }
        case list() | tuple():
            return [_portable(item) for item in schema]
    return schema


def _change(settings: Json, title: str, kept: str) -> Json:
    """Any of the settings; null takes one back to its default."""
    properties = {
        name: {"anyOf": [schema, {"type": "null"}]}
        for name, schema in settings["properties"].items()
        if name != kept
    }
    words = "Settings to be changed; null takes one back to its default."
    return {
        "title": title,
        "description": words,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _shown(kind: str) -> Json:
    fields: Json = {
        "object": {"const": kind},
        "source": {"enum": ["file", "directory"]},
        "version": {"type": ["integer", "null"]},
        "changed": {"type": ["string", "null"]},
    }
    if kind == "key":
        fields |= {"id": {"type": "string"}, "tenant": {"type": "string"}, "state": {"type": "string"}}
    else:
        fields |= {"name": {"type": "string"}, "keys": {"type": "integer"}}
    return {"type": "object", "required": sorted(fields), "properties": fields}


def _ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _content(schema: Json) -> Json:
    return {"content": {"application/json": {"schema": schema}}}


def _list(schema: str) -> Json:
    return {
        "type": "object",
        "required": ["object", "data", "next"],
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": _ref(schema)},
            "next": {"type": ["string", "null"]},
        },
    }


_ERRORS = openapi_words.failures(Shape.OPENAI)
_OF_A_LOOK = ("400", "404", "429", "500", "503")
_OF_A_CHANGE = (*_OF_A_LOOK, "413")
_OWN: Json = {
    "409": _content(_ref("Error")) | {"description": "It stands in the file, is there already, or was revoked."},
    "412": _content(_ref("Error")) | {"description": "It has another version by now than `If-Match` says."},
}  # fmt: skip
_IF_MATCH: Json = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": 'The version that was seen, as in "3"; without it the newest is changed.',
    "schema": {"type": "string"},
}


def _parameter(name: str, words: str, where: str = "query") -> Json:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": words,
        "schema": {"type": "string", "minLength": 1},
    }


def _look(name: str, summary: str, description: str, answer: Json, *parameters: Json) -> Json:
    answers = {"200": _content(answer) | {"description": "The answer."}}
    answers |= {status: _ERRORS[status] for status in _OF_A_LOOK} | openapi_words.refusals()
    page: Json = {"operationId": name, "summary": summary, "description": description, "responses": answers}
    return page | ({"parameters": list(parameters)} if parameters else {})


def _change_of(
    name: str,
    summary: str,
    description: str,
    answer: str,
    body: str | None = None,
    *,
    made: bool = False,
    new: bool = False,
) -> Json:
    """made: the answer is of a thing that was made, 201. new: there is no version of it yet."""
    answers = {"201" if made else "200": _content(_ref(answer)) | {"description": "As it is now."}}
    answers |= {status: _ERRORS[status] for status in _OF_A_CHANGE} | _OWN | openapi_words.refusals()
    page: Json = {"operationId": name, "summary": summary, "description": description, "responses": answers}
    if not new:
        page["parameters"] = [_IF_MATCH]
    if body is not None:
        page["requestBody"] = _content(_ref(body)) | {"required": body != "Rotation"}
    return page


_CURSOR = _parameter("cursor", "What `next` of the page before says.")
_LIMIT = _parameter("limit", "So many at most; 100 by default, 1000 at the most.")
_NAME = {"parameters": [_parameter("name", "Of the tenant.", "path")]}
_KEY = {"parameters": [_parameter("key_id", "12 hex digits, as records have it.", "path")]}

_STAYS = "What is not named stays; null takes back to the default."

PATHS: Json = {
    f"{PREFIX}/tenants": {
        "get": _look(
            "admin_tenants", "List the tenants", "By name, a page at a time; those of the file too.",
            _list("Tenant"), _CURSOR, _LIMIT,
        ),
        "post": _change_of(
            "admin_tenant_create", "Make a tenant", "It can call as soon as it has a key.",
            "Tenant", "NewTenant", made=True, new=True,
        ),
    },
    f"{PREFIX}/tenants/{{name}}": _NAME | {
        "get": _look("admin_tenant", "Show a tenant", "With its settings and its version.", _ref("Tenant")),
        "patch": _change_of("admin_tenant_set", "Change a tenant", _STAYS, "Tenant", "TenantChange"),
    },
    f"{PREFIX}/tenants/{{name}}/disable": _NAME | {
        "post": _change_of(
            "admin_tenant_disable", "Disable a tenant", "None of its keys opens anything then.", "Tenant"
        ),
    },
    f"{PREFIX}/tenants/{{name}}/enable": _NAME | {
        "post": _change_of(
            "admin_tenant_enable", "Enable a tenant", "Its keys open what they did before.", "Tenant"
        ),
    },
    f"{PREFIX}/keys": {
        "get": _look(
            "admin_keys", "List the keys", "By their ids, a page at a time; never the keys themselves.",
            _list("ApiKey"), _CURSOR, _LIMIT, _parameter("tenant", "Of this tenant alone."),
        ),
        "post": _change_of(
            "admin_key_create", "Make a key", "It is in this answer, as `key`, and never shown again.",
            "ApiKey", "NewKey", made=True, new=True,
        ),
    },
    f"{PREFIX}/keys/{{key_id}}": _KEY | {
        "get": _look(
            "admin_key", "Show a key", "What it may do, and whether it opens anything now.", _ref("ApiKey")
        ),
        "patch": _change_of("admin_key_set", "Change a key", _STAYS, "ApiKey", "KeyChange"),
    },
    f"{PREFIX}/keys/{{key_id}}/disable": _KEY | {
        "post": _change_of(
            "admin_key_disable", "Disable a key", "It opens nothing until it is enabled.", "ApiKey"
        ),
    },
    f"{PREFIX}/keys/{{key_id}}/enable": _KEY | {
        "post": _change_of("admin_key_enable", "Enable a key", "It opens again what it did before.", "ApiKey"),
    },
    f"{PREFIX}/keys/{{key_id}}/rotate": _KEY | {
        "post": _change_of(
            "admin_key_rotate", "Replace a key",
            "The new one is in this answer; the old one goes on for the overlap.",
            "ApiKey", "Rotation", made=True,
        ),
    },
    f"{PREFIX}/keys/{{key_id}}/revoke": _KEY | {
        "post": _change_of(
            "admin_key_revoke", "Revoke a key", "For ever, on all gateways within a second.", "ApiKey"
        ),
    },
    f"{PREFIX}/openapi.json": {
        "get": _look(
            "admin_openapi", "These paths as a document", "The part of /openapi.json for operators.",
            {"type": "object"},
        ),
    },
}  # fmt: skip

SCHEMAS: dict[str, Json] = _components()
