"""What the directory's entries say: the settings of a tenant and of a key, as the configuration has them too. Pure."""

from typing import TypeVar

import msgspec

from backends.model import Name
from gateway.configuration.config import Key, Tenant
from metering.ledger.directory import Kind
from metering.record import Entry

KEY_ID_PATTERN = r"^[0-9a-f]{12}\Z"


class TenantSettings(Tenant, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant. Its keys are entries of their own. disabled: none of its keys opens anything."""

    disabled: bool = False


class KeySettings(Key, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of a tenant, which may be the configuration's. replaces: the id of the one that it was rotated from."""

    tenant: Name
    replaces: str | None = None


S = TypeVar("S", TenantSettings, KeySettings)


def read(entry: Entry, type_: type[S]) -> S | None:
    """What an entry says; None: it cannot be read here, which is as good as that it is not there."""
    try:
        return msgspec.json.decode(bytes(entry.data), type=type_)
    except msgspec.MsgspecError:
        return None


def entry(
    kind: Kind, name: str, settings: TenantSettings | KeySettings, before: Entry | None, now_ns: int
) -> Entry:
    """The version behind `before`; None: the first one."""
    return Entry(
        at_ns=now_ns if before is None else max(now_ns, before.at_ns),
        data=msgspec.Raw(msgspec.json.encode(settings, order="sorted")),
        kind=kind,
        name=name,
        revoked=before is not None and before.revoked,
        version=1 if before is None else before.version + 1,
    )
