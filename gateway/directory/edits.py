"""Changes of the directory that are asked for: what they make of its entries, and why they cannot be made. Pure.

A body is laid over what there is, name by name (RFC 7396): null takes a setting back to its default, a limit or a tag
that is an object is replaced as a whole. What comes of it is held to the rules of the configuration, and every mistake
is named.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.api.auth import key_id
from gateway.api.errors import Conflict, InvalidRequest, NotFound, VersionDiffers, shown
from gateway.configuration.config_shape import Shape
from gateway.configuration.config_tree import tree
from gateway.configuration.tenants_check import check_key, check_tenant
from gateway.directory import entries
from gateway.directory.directory import Directory
from gateway.directory.entries import KeySettings, TenantSettings
from metering.ledger.directory import Copy
from metering.periods import instant_text, parse_instant
from metering.record import Entry
from metering.units import NS_PER_S

ENTRY_BYTES_MAX = 12 * 1024
"""It stands in one line of the journal, which is bounded (record.RECORD_BYTES_MAX)."""
OVERLAP_S_MAX = 366 * 86_400
OVERLAP_S_DEFAULT = 86_400

Body = Mapping[str, Any]
"""A JSON object as it came: which names it has is what matters."""
_NOT_OF_A_TENANT = frozenset({"capture", "keys"})
"""Whether content is kept says the configuration alone: no key that somebody finds can switch that on."""
_NOT_OF_A_KEY = frozenset({"hash", "replaces"})


class Here(NamedTuple):
    """What a change is held against. models: ids of those that are served here; now_ns: wall clock."""

    compiled: Directory
    copy: Copy
    models: Collection[str]
    now_ns: int


Edit = Callable[[Here], list[Entry]]
"""Makes new versions of entries, in the order in which they are told. Raises GatewayError: nothing is changed."""


def create_tenant(body: Body) -> Edit:
    """A tenant that there is not."""

    def edit(here: Here) -> list[Entry]:
        settings = _tenant_settings({}, body, here)
        if here.compiled.tenant(settings.name) is not None:
            raise Conflict(f"there is a tenant {settings.name} already", param="name")
        return [_tenant_entry(settings, here)]

    return edit


def set_tenant(name: str, body: Body, version: int | None) -> Edit:
    """Other settings. version: that the asker has seen; None: whichever it is."""

    def edit(here: Here) -> list[Entry]:
        before, settings = _tenant(name, version, here)
        if body.get("name", name) != name:
            raise InvalidRequest("a tenant keeps its name: it stands in records", param="name")
        return [
            _changed(before, _tenant_entry(_tenant_settings(msgspec.to_builtins(settings), body, here), here))
        ]

    return edit


def create_key(body: Body, key_hash: str) -> Edit:
    """A key of a tenant. key_hash: of the new key, as the configuration has it."""

    def edit(here: Here) -> list[Entry]:
        _no(body, _NOT_OF_A_KEY)
        settings = _key_settings({"hash": key_hash}, body, here)
        if settings.expires is not None and parse_instant(settings.expires) <= here.now_ns:
            raise InvalidRequest("expires is past: the key would open nothing", param="expires")
        return [_key_entry(settings, here)]

    return edit


def set_key(identity: str, body: Body, version: int | None) -> Edit:
    """Other settings, likewise."""

    def edit(here: Here) -> list[Entry]:
        before, settings = _key(identity, version, here)
        _no(body, _NOT_OF_A_KEY)
        if body.get("tenant", settings.tenant) != settings.tenant:
            raise InvalidRequest("a key keeps its tenant: make another one", param="tenant")
        return [_changed(before, _key_entry(_key_settings(msgspec.to_builtins(settings), body, here), here))]

    return edit


def rotate_key(identity: str, key_hash: str, overlap_s: int, version: int | None) -> Edit:
    """A new key with the same settings; the old one expires after the overlap, if not before."""

    def edit(here: Here) -> list[Entry]:
        _, settings = _key(identity, version, here)
        fresh = msgspec.structs.replace(settings, hash=key_hash, replaces=identity, disabled=False)
        ends_ns = here.now_ns + overlap_s * NS_PER_S
        expires = settings.expires
        if expires is None or parse_instant(expires) > ends_ns:
            expires = instant_text(ends_ns)
        return [
            _key_entry(fresh, here),
            _key_entry(msgspec.structs.replace(settings, expires=expires), here),
        ]

    return edit


def revoke_key(identity: str, version: int | None) -> Edit:
    """For ever."""

    def edit(here: Here) -> list[Entry]:
        _, settings = _key(identity, version, here)
        return [msgspec.structs.replace(_key_entry(settings, here), revoked=True)]

    return edit


# -- what there is


def _tenant(name: str, version: int | None, here: Here) -> tuple[Entry, TenantSettings]:
    if here.compiled.in_file(name):
        raise Conflict(
            f"the tenant {name} stands in the configuration file, and is changed there", param="name"
        )
    entry = here.copy.get("tenant", name)
    settings = None if entry is None else entries.read(entry, TenantSettings)
    if entry is None or settings is None:
        raise NotFound(f"there is no tenant {shown(name)}")
    _same_version(entry, version)
    return entry, settings


def _key(identity: str, version: int | None, here: Here) -> tuple[Entry, KeySettings]:
    known = here.compiled.known_key(identity)
    if known is not None and known.in_file:
        message = f"the key {identity} stands in the configuration file, and is changed there"
        raise Conflict(message, param="key_id")
    entry = here.copy.get("key", identity)
    settings = None if entry is None else entries.read(entry, KeySettings)
    if entry is None or settings is None:
        raise NotFound(f"there is no key {shown(identity)}")
    _same_version(entry, version)
    if entry.revoked:
        raise Conflict("this key was revoked, which is for ever")
    return entry, settings


def _same_version(entry: Entry, version: int | None) -> None:
    if version is not None and version != entry.version:
        raise VersionDiffers(f"it has version {entry.version} by now, and not {version}: look again")


# -- what comes of it


def _tenant_settings(before: dict[str, Any], body: Body, here: Here) -> TenantSettings:
    _no(body, _NOT_OF_A_TENANT)
    mistakes = Mistakes()
    settings = mistakes.read(_laid(before, body), TenantSettings)
    check_tenant("", settings, here.models, mistakes.add)
    mistakes.raise_any()
    return settings


def _key_settings(before: dict[str, Any], body: Body, here: Here) -> KeySettings:
    mistakes = Mistakes()
    settings = mistakes.read(_laid(before, body), KeySettings)
    tenant = here.compiled.tenant(settings.tenant)
    if tenant is None:
        mistakes.add("tenant", f"there is no tenant {settings.tenant}")
    else:
        check_key("", settings, tenant, here.models, mistakes.add)
    mistakes.raise_any()
    return settings


class Mistakes:
    """Those that are found in settings, to be named all at once, in the words of a configuration's."""

    def __init__(self) -> None:
        self._shape = Shape(a_list="a list")

    def read(self, fields: dict[str, Any], type_: type[entries.S]) -> entries.S:
        """Settings as they were sent. Where something is wrong a default stands, and the mistake is kept."""
        return self._shape.read(tree(fields, "the body"), type_)

    def add(self, path: str, message: str) -> None:
        """One more of them."""
        self._shape.report(path.lstrip("."), message)

    def raise_any(self) -> None:
        """Raises InvalidRequest, which names them."""
        found = sorted(self._shape.mistakes)
        if found:
            words = "; ".join(f"{mistake.path}: {mistake.message}" for mistake in found)
            raise InvalidRequest(words, param=found[0].path)


def _laid(before: dict[str, Any], body: Body) -> dict[str, Any]:
    after = {**before, **body}
    return {name: value for name, value in after.items() if value is not None}


def _no(body: Body, names: frozenset[str]) -> None:
    for name in sorted(names & body.keys()):
        raise InvalidRequest(f"{name} cannot be set here", param=name)


def _tenant_entry(settings: TenantSettings, here: Here) -> Entry:
    before = here.copy.get("tenant", settings.name)
    return _bounded(entries.entry("tenant", settings.name, settings, before, here.now_ns))


def _key_entry(settings: KeySettings, here: Here) -> Entry:
    identity = key_id(settings.hash)
    return _bounded(entries.entry("key", identity, settings, here.copy.get("key", identity), here.now_ns))


def _bounded(entry: Entry) -> Entry:
    if len(bytes(entry.data)) > ENTRY_BYTES_MAX:
        raise InvalidRequest(f"this is longer than an entry may be: {ENTRY_BYTES_MAX:,} bytes of JSON")
    return entry


def _changed(before: Entry, after: Entry) -> Entry:
    """Nothing asked for is nothing changed."""
    return before if before.data == after.data else after
