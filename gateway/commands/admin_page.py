"""Tenants and keys as `weighbridge tenants` and `weighbridge keys` show them. Pure."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]
"""A tenant or a key as the admin face shows it (deploy/reference/api.md)."""

_TENANTS = ("tenant", "source", "version", "state", "keys", "projects")
_KEYS = ("key_id", "tenant", "state", "source", "version", "scopes", "name", "expires")
_NOT_AMONG_A_TENANTS = frozenset({"object", "name", "source", "version", "disabled", "keys", "projects"})
_AMONG_A_KEYS = frozenset({"project", "models", "endpoints", "networks", "limits", "replaces", "changed"})


def tenants(found: Iterable[Json]) -> str:
    """A line each."""
    return _columns(_TENANTS, map(_tenant_row, found))


def keys(found: Iterable[Json]) -> str:
    """A line each."""
    return _columns(_KEYS, map(_key_row, found))


def tenant(found: Json) -> str:
    """One, with its settings."""
    return tenants([found]) + _settings(found, found.keys() - _NOT_AMONG_A_TENANTS)


def key(found: Json) -> str:
    """One, with its settings; the key itself first, where it was made just now."""
    made = f"key: {found['key']}\n" if "key" in found else ""
    return made + keys([found]) + _settings(found, _AMONG_A_KEYS)


def lines(found: Iterable[Json]) -> str:
    """A JSON object a line."""
    return "".join(f"{json.dumps(one)}\n" for one in found)


def _tenant_row(found: Json) -> tuple[str, ...]:
    state = "disabled" if found["disabled"] else "active"
    return (
        found["name"],
        found["source"],
        _text(found["version"]),
        state,
        str(found["keys"]),
        _text(found["projects"]),
    )


def _key_row(found: Json) -> tuple[str, ...]:
    about = (found["id"], found["tenant"], found["state"], found["source"])
    return (*about, *(_text(found[name]) for name in ("version", "scopes", "name", "expires")))


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else "" if value is None else str(value)


def _settings(found: Json, names: Collection[str]) -> str:
    """A line for each setting that says something; what says nothing within it is left out."""
    shown = []
    for name in sorted(names):
        value = found[name]
        if isinstance(value, dict):
            value = {inner: one for inner, one in value.items() if one not in (None, [], {})}
        if value not in (None, {}, []):
            shown.append(f"{name}: {value if isinstance(value, str) else json.dumps(value)}\n")
    return "".join(shown)


def _columns(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in table
    )
