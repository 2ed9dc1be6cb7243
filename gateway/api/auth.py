"""Who is asking: an API key → tenant, project, scopes. From memory only. Pure.

Keys are known by their SHA-256. The key id, its first 12 hex digits, finds the entry and stands in
records and logs; the whole hash is then compared in constant time. Headers that were found to hold a good key are
kept in memory, and there only: what finds them again is a keyed hash of the interpreter's, which tells nothing.
"""

import hashlib
import hmac
from collections.abc import Iterable

import msgspec

from gateway.api.errors import ScopeMissing, UnknownKey
from gateway.configuration.config import Scope, Tenant

KEY_ID_DIGITS = 12
_KEY_ID_BYTES = KEY_ID_DIGITS // 2
_HASH_PREFIX = "sha256:"

FOUND_MAX = 4096
"""Headers with a good key whose hash need not be taken again."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call it is, and what the key may do. project: the tenant's first; None: it has none."""

    tenant: str
    project: str | None
    key_id: str
    scopes: frozenset[Scope]
    tags: dict[str, str]

    def require(self, scope: Scope) -> None:
        """Raises ScopeMissing if the key lacks `scope`."""
        if scope not in self.scopes:
            raise ScopeMissing(f"this API key does not have the scope {scope}")


def hash_of(key: str) -> str:
    """ "sha256:<64 hex>" of a key: what the configuration holds."""
    return _HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


def key_id(key_hash: str) -> str:
    """The id of a key, from its hash as the configuration holds it."""
    return key_hash.removeprefix(_HASH_PREFIX)[:KEY_ID_DIGITS]


class Keys:
    """All keys of all tenants; key ids are unique (the configuration's check sees to it)."""

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._entries: dict[bytes, tuple[bytes, Principal]] = {}  # by the key id, as bytes
        self._found: dict[bytes, Principal] = {}  # by a whole `Authorization` header
        for tenant in tenants:
            for key in tenant.keys:
                principal = Principal(
                    tenant=tenant.name,
                    project=tenant.projects[0] if tenant.projects else None,
                    key_id=key_id(key.hash),
                    scopes=frozenset(key.scopes),
                    tags=tenant.tags,
                )
                digest = bytes.fromhex(key.hash.removeprefix(_HASH_PREFIX))
                assert digest[:_KEY_ID_BYTES] not in self._entries
                self._entries[digest[:_KEY_ID_BYTES]] = (digest, principal)

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
