"""Who is asking: an API key → tenant, project, scopes. From memory only. Pure.

Keys are known by their SHA-256. The key id, its first 12 hex digits, finds the entry and stands in
records and logs; the whole hash is then compared in constant time. Headers that were found to hold a good key are
kept in memory, and there only: what finds them again is a keyed hash of the interpreter's, which tells nothing.
"""

import enum
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable

import msgspec

from gateway.api.errors import DirectoryStale, KeyBarred, OutOfBounds, ScopeMissing, UnknownKey
from gateway.configuration.config import Key, Scope, Tenant

KEY_ID_DIGITS = 12
_KEY_ID_BYTES = KEY_ID_DIGITS // 2
_HASH_PREFIX = "sha256:"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

FOUND_MAX = 4096
"""Headers with a good key whose hash need not be taken again."""


class Barred(enum.Enum):
    """Why a known key opens nothing; the value is said to who has it."""

    REVOKED = "this API key was revoked"
    EXPIRED = "this API key has expired"
    DISABLED = "this API key is disabled"
    TENANT_DISABLED = "the tenant of this API key is disabled"
    STALE = "whether this API key still counts cannot be seen now; try again"


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may not do. barred: anything; endpoints, networks: anything else, anywhere else; None: no such bound.

    endpoints: names of operations; an endpoint that is none (a list of models, a face) has its scope alone.
    """

    barred: Barred | None = None
    endpoints: frozenset[str] | None = None
    networks: tuple[Network, ...] | None = None

    def check(self, endpoint: str | None, source: Callable[[], Address | None]) -> None:
        """Raises KeyBarred, DirectoryStale, OutOfBounds. source: where the request comes from; None: not known."""
        if self.barred is Barred.STALE:
            raise DirectoryStale(self.barred.value, retry_after_s=30)
        if self.barred is not None:
            raise KeyBarred(self.barred.value)
        if self.endpoints is not None and endpoint is not None and endpoint not in self.endpoints:
            raise OutOfBounds(f"this API key is not for {endpoint}")
        if self.networks is not None:
            address = source()
            if address is None or not any(address in network for network in self.networks):
                raise OutOfBounds("this API key is not for use from this address")


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call it is, and what the key may do. project: None: it has none. models: by id; None: any.

    guard: what is to be checked before anything is done; None: nothing.
    """

    tenant: str
    project: str | None
    key_id: str
    scopes: frozenset[Scope]
    tags: dict[str, str]
    models: frozenset[str] | None = None
    guard: Guard | None = None

    def require(self, scope: Scope) -> None:
        """Raises ScopeMissing if the key lacks `scope`."""
        if scope not in self.scopes:
            raise ScopeMissing(f"this API key does not have the scope {scope}")

    def may_ask(self, model: str) -> bool:
        """May calls of this model (its id) be made with the key?"""
        return self.models is None or model in self.models


def principal_of(tenant: Tenant, key: Key, barred: Barred | None = None) -> Principal:
    """Who has this key of this tenant."""
    guard = None
    if barred is not None or key.endpoints is not None or key.networks is not None:
        networks = None if key.networks is None else tuple(map(ipaddress.ip_network, key.networks))
        endpoints = None if key.endpoints is None else frozenset(key.endpoints)
        guard = Guard(barred=barred, endpoints=endpoints, networks=networks)
    project = key.project or (tenant.projects[0] if tenant.projects else None)
    return Principal(
        tenant=tenant.name,
        project=project,
        key_id=key_id(key.hash),
        scopes=frozenset(key.scopes),
        tags=tenant.tags,
        models=None if key.models is None else frozenset(key.models),
        guard=guard,
    )


def hash_of(key: str) -> str:
    """ "sha256:<64 hex>" of a key: what the configuration holds."""
    return _HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


def key_id(key_hash: str) -> str:
    """The id of a key, from its hash as the configuration holds it."""
    return key_hash.removeprefix(_HASH_PREFIX)[:KEY_ID_DIGITS]


class Keys:
    """All keys that are known, by their ids, which are unique. They may be changed at any time."""

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        """tenants: whose keys are known from the start."""
        self._entries: dict[bytes, tuple[bytes, Principal]] = {}  # by the key id, as bytes
        self._found: dict[bytes, Principal] = {}  # by a whole `Authorization` header
        for tenant in tenants:
            for key in tenant.keys:
                self.put(key.hash, principal_of(tenant, key))

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key_hash: str, principal: Principal) -> None:
        """From now on who has this key is `principal`."""
        digest = bytes.fromhex(key_hash.removeprefix(_HASH_PREFIX))
        self._entries[digest[:_KEY_ID_BYTES]] = digest, principal
        self._found.clear()

    def drop(self, key_id: str) -> None:
        """From now on this key is not known."""
        self._entries.pop(bytes.fromhex(key_id), None)
        self._found.clear()

    def principal(self, authorization: bytes | None, api_key: bytes | None = None) -> Principal:
        """Who sent these headers: the values of `Authorization` and of `x-api-key`, as Anthropic's clients send it.

        None: there was none. Raises UnknownKey if both are absent, if the first is no bearer key, if they hold
        different keys, or if the key is not known here.
        """
        if authorization is not None and api_key is None:
            principal = self._found.get(authorization)
            if principal is None:
                principal = self._find(authorization, None)
                if len(self._found) >= FOUND_MAX:
                    self._found.clear()
                self._found[authorization] = principal
            return principal
        return self._find(authorization, api_key)

    def _find(self, authorization: bytes | None, api_key: bytes | None) -> Principal:
        if authorization is not None:
            scheme, _, key = authorization.strip().partition(b" ")
            key = key.strip()
            if scheme.lower() != b"bearer" or not key:
                raise UnknownKey("the Authorization header is not of the form `Bearer <key>`")
            if api_key is not None and not hmac.compare_digest(api_key.strip(), key):
                raise UnknownKey("the headers Authorization and x-api-key hold different keys")
        elif api_key is not None:
            key = api_key.strip()
        else:
            raise UnknownKey("no API key: send it as `Authorization: Bearer <key>`, or as `x-api-key`")
        digest = hashlib.sha256(key).digest()
        entry = self._entries.get(digest[:_KEY_ID_BYTES])
        if entry is None or not hmac.compare_digest(entry[0], digest):
            raise UnknownKey("this API key is not known here")
        return entry[1]
