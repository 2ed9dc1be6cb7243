"""Tenants and keys as the admin face shows them: never a key, nor its hash. Pure."""

import enum
from typing import Any, Literal

import msgspec

from gateway.api.auth import Barred
from gateway.configuration.config import Key, LimitSet, Scope, Tenant
from gateway.directory.directory import Directory, KnownKey
from gateway.directory.entries import KeySettings, TenantSettings
from metering.ledger.directory import Copy
from metering.periods import instant_text
from metering.record import Entry

Source = Literal["file", "directory"]


class State(enum.StrEnum):
    """What a key opens now."""

    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"
    DISABLED = "disabled"
    TENANT_DISABLED = "tenant_disabled"
    STALE = "stale"


class ShownKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A key. changed, version: null of one that stands in the configuration. key: of one that was made just now."""

    object: Literal["key"] = "key"
    id: str
    tenant: str
    state: State
    source: Source
    version: int | None
    changed: str | None
    name: str | None
    scopes: tuple[Scope, ...]
    project: str | None
    limits: LimitSet
    models: tuple[str, ...] | None
    endpoints: tuple[str, ...] | None
    networks: tuple[str, ...] | None
    expires: str | None
    disabled: bool
    replaces: str | None
    key: str | msgspec.UnsetType = msgspec.UNSET


def tenant(found: Tenant, here: Directory, entry: Entry | None) -> dict[str, Any]:
    """A tenant, with the number of its keys."""
    in_file = here.in_file(found.name)
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(found, keys=()))
    del fields["keys"]
    fields["disabled"] = isinstance(found, TenantSettings) and found.disabled
    about = {
        "object": "tenant",
        "source": "file" if in_file else "directory",
        "version": None if in_file or entry is None else entry.version,
        "changed": None if in_file or entry is None else instant_text(entry.at_ns),
        "keys": len(found.keys),
    }
    return about | fields


def key(identity: str, known: KnownKey, here: Directory, copy: Copy, now_ns: int) -> ShownKey:
    """A key, with what it opens now."""
    entry = None if known.in_file else copy.get("key", identity)
    settings: Key = known.key
    barred = here.barred(known, now_ns)
    return ShownKey(
        id=identity,
        tenant=known.tenant,
        state=_state(barred),
        source="file" if known.in_file else "directory",
        version=None if entry is None else entry.version,
        changed=None if entry is None else instant_text(entry.at_ns),
        name=settings.name,
        scopes=settings.scopes,
        project=settings.project,
        limits=settings.limits,
        models=settings.models,
        endpoints=settings.endpoints,
        networks=settings.networks,
        expires=settings.expires,
        disabled=settings.disabled,
        replaces=settings.replaces if isinstance(settings, KeySettings) else None,
    )


def _state(barred: Barred | None) -> State:
    return State.ACTIVE if barred is None else State[barred.name]
