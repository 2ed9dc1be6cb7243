"""What keeps tenants apart in a model server's prefix cache: each one's `cache_salt`. Pure.

A server answers sooner where it has seen a prompt's beginning before; who can measure that can guess at the prompts of
others. vLLM mixes a request's `cache_salt` into what it remembers by (from 0.9 on), so two salts never share. Ours is

    HMAC-SHA-256(key of this gateway, tenant)                  if the client gives none
    HMAC-SHA-256(key of this gateway, tenant NUL its salt)     if it does, to keep its own users apart

so that no client can name another tenant's, whatever it sends. One tenant alone has nobody to be kept apart from.
"""

import base64
import hashlib
import hmac
from collections.abc import Collection

KEY_BYTES = 32
_DIGEST_BYTES = 24
"""Of the 32: enough not to be met by chance, and the text of them needs no padding."""


class Salts:
    """Salts of the tenants, made with one key. tenants: names of all there are."""

    def __init__(self, key: bytes, tenants: Collection[str] = ()) -> None:
        assert len(key) == KEY_BYTES
        self._key = key
        self._plain: dict[str, bytes] = {}
        self._apart = False
        self.use(tenants)

    def use(self, tenants: Collection[str]) -> None:
        """Tenants have come or gone."""
        self._apart = len(tenants) > 1
        self._plain.clear()

    def of(self, tenant: str, given: str | None) -> bytes | None:
        """The `cache_salt` of a call, as JSON; None: as the client has it. given: what that is."""
        if not self._apart:
            return None
        if given is not None:
            return self._made(b"%b\0%b" % (tenant.encode(), given.encode("utf-8", "surrogatepass")))
        salt = self._plain.get(tenant)
        if salt is None:
            salt = self._plain[tenant] = self._made(tenant.encode())
        return salt

    def _made(self, of: bytes) -> bytes:
        digest = hmac.digest(self._key, of, hashlib.sha256)
        return b'"%b"' % base64.urlsafe_b64encode(digest[:_DIGEST_BYTES])
