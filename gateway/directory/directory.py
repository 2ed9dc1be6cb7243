"""The compiled directory: the configuration's tenants and keys, and those that were made at run time. Pure.

    configuration ─┐
                   ├─▶ tenants ─▶ who has which key (Keys) ─▶ calls, faces
    entries ───────┘       └────▶ limits, digests, the ledger's upkeep

Where both have one name the configuration's counts, and the directory's is as good as not there. A key of the directory
may be of a tenant of the configuration. Only what a change is about is compiled again.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from gateway.api.auth import Barred, Keys, key_id, principal_of
from gateway.configuration.config import Key, Tenant
from gateway.directory.entries import KeySettings, TenantSettings, read
from metering.periods import parse_instant
from metering.record import Entry


class KnownKey(NamedTuple):
    """A key and whose it is. in_file: the configuration has it; revoked: for ever."""

    tenant: str
    key: Key
    in_file: bool
    revoked: bool

    def expires_ns(self) -> int | None:
        """When it ends; None: never. What is no time is long past: such a key opens nothing."""
        if self.key.expires is None:
            return None
        try:
            return parse_instant(self.key.expires)
        except ValueError:
            return 0


class Directory:
    """Of one worker. keys: kept as the directory has them. on_change: told the names of tenants that changed.

    What changes is a tenant, or which keys it has and what they say.
    """

    def __init__(self, tenants: Iterable[Tenant], keys: Keys, now_ns: int) -> None:
        """tenants: the configuration's. now_ns: wall clock."""
        self.keys = keys
        self.on_change: list[Callable[[Collection[str]], None]] = []
        self._file = {tenant.name: tenant for tenant in tenants}
        self._settings: dict[str, TenantSettings] = {}
        self._known: dict[str, KnownKey] = {}
        self._of: dict[str, dict[str, None]] = {}  # ids of the keys of each tenant, in order
        self._ends: list[tuple[int, str]] = []  # a heap: when keys expire
        self._stale = False
        for tenant in self._file.values():
            for key in tenant.keys:
                self._put_key(key_id(key.hash), KnownKey(tenant.name, key, in_file=True, revoked=False))
        self._compile(self._known, now_ns)

    # -- what is known

    def tenants(self) -> Iterator[Tenant]:
        """All, each with all of its keys that were not revoked."""
        for name in {**self._file, **self._settings}:
            tenant = self.tenant(name)
            assert tenant is not None
            yield tenant

    def tenant(self, name: str) -> Tenant | None:
        """A tenant with all of its keys that were not revoked; None: there is none of this name."""
        found = self._file.get(name) or self._settings.get(name)
        if found is None:
            return None
        known = (self._known[one] for one in self._of.get(name, ()))
        return msgspec.structs.replace(found, keys=tuple(one.key for one in known if not one.revoked))

    def in_file(self, name: str) -> bool:
        """Is this tenant the configuration's?"""
        return name in self._file

    def names(self) -> list[str]:
        """Of all tenants, sorted."""
        return sorted({**self._file, **self._settings})

    def twice(self) -> list[str]:
        """Names of tenants that the configuration has and the directory too; the former count."""
        return sorted(self._file.keys() & self._settings.keys())

    def known_keys(self, tenant: str | None = None) -> list[tuple[str, KnownKey]]:
        """Keys with their ids, sorted by these: of a tenant, or all."""
        if tenant is None:
            return sorted(self._known.items())
        return sorted((one, self._known[one]) for one in self._of.get(tenant, ()))

    def known_key(self, identity: str) -> KnownKey | None:
        """The key of this id; None: there is none."""
        return self._known.get(identity)

    def barred(self, known: KnownKey, now_ns: int) -> Barred | None:
        """Why a key opens nothing now; None: it opens what it may."""
        settings = self._settings.get(known.tenant)
        ends_ns = known.expires_ns()
        if known.revoked:
            return Barred.REVOKED
        if known.key.disabled:
            return Barred.DISABLED
        if ends_ns is not None and ends_ns <= now_ns:
            return Barred.EXPIRED
        if known.tenant not in self._file and settings is not None and settings.disabled:
            return Barred.TENANT_DISABLED
        if self._stale and not known.in_file:
            return Barred.STALE
        return None

    # -- what changes it

    def take(self, entries: Iterable[Entry], now_ns: int) -> None:
        """These entries are another now. now_ns: wall clock."""
        changed: dict[str, None] = {}
        touched: dict[str, None] = {}
        for entry in entries:
            if entry.kind == "tenant":
                self._take_tenant(entry)
                changed[entry.name] = None
                touched |= self._of.get(entry.name, {})
            else:
                for tenant in self._take_key(entry):
                    changed[tenant] = None
                touched[entry.name] = None
        self._compile(touched, now_ns)
        self._told(changed)

    def pass_time(self, now_ns: int) -> None:
        """So late it is now: keys that have expired meanwhile open nothing any more."""
        due: dict[str, None] = {}
        while self._ends and self._ends[0][0] <= now_ns:
            due[heapq.heappop(self._ends)[1]] = None
        self._compile(due, now_ns)

    def set_stale(self, stale: bool, now_ns: int) -> None:
        """Whether the directory could not be compared with the store for so long that its keys open nothing."""
        if stale != self._stale:
            self._stale = stale
            self._compile([one for one, known in self._known.items() if not known.in_file], now_ns)

    def _take_tenant(self, entry: Entry) -> None:
        settings = read(entry, TenantSettings)
        if settings is None or entry.revoked or settings.name != entry.name:
            self._settings.pop(entry.name, None)
        else:
            self._settings[entry.name] = settings

    def _take_key(self, entry: Entry) -> Iterator[str]:
        """Yields whose key it was, and whose it is."""
        before = self._known.get(entry.name)
        if before is not None and before.in_file:
            return
        if before is not None:
            yield before.tenant
            del self._known[entry.name], self._of[before.tenant][entry.name]
        settings = read(entry, KeySettings)
        if settings is not None and key_id(settings.hash) == entry.name:
            self._put_key(
                entry.name, KnownKey(settings.tenant, settings, in_file=False, revoked=entry.revoked)
            )
            yield settings.tenant

    def _put_key(self, identity: str, known: KnownKey) -> None:
        self._known[identity] = known
        self._of.setdefault(known.tenant, {})[identity] = None
        ends_ns = known.expires_ns()
        if ends_ns is not None:
            heapq.heappush(self._ends, (ends_ns, identity))

    def _compile(self, identities: Iterable[str], now_ns: int) -> None:
        for identity in identities:
            known = self._known.get(identity)
            tenant = None
            if known is not None:
                tenant = self._file.get(known.tenant) or self._settings.get(known.tenant)
            if known is None or tenant is None:
                self.keys.drop(identity)
            else:
                self.keys.put(known.key.hash, principal_of(tenant, known.key, self.barred(known, now_ns)))

    def _told(self, changed: Collection[str]) -> None:
        if changed:
            for told in self.on_change:
                told(changed)
