"""Digests of prompts and answers, where a tenant wants them: HMAC-SHA-256 with a key of the tenant's own.

    <state_dir>/keys/tenants/<tenant>.key     32 random bytes, 0600

Who has the text and the key can show that a record is of this text; who has no key can't even try texts out. Once the
key is deleted the digests that were made with it say nothing to anybody.
"""

import contextlib
import errno
import hashlib
import hmac
import logging
import os
import pathlib
import secrets
from collections.abc import Iterable
from typing import Protocol

from metering import files
from metering.logs import log

DIRECTORY = pathlib.Path("keys") / "tenants"
KEY_BYTES = 32
_ID_DIGITS = 8
_SUFFIX = ".key"

logger = logging.getLogger("weighbridge.digests")


class Running(Protocol):
    """A digest under way, as hmac gives it."""

    def update(self, data: bytes, /) -> None:
        """Take in the next bytes."""

    def copy(self) -> "Running":
        """One that goes on from here."""

    def hexdigest(self) -> str:
        """Of all so far."""


class DigestKey:
    """A tenant's key. id: names it in records, and tells nothing of it: the front of its SHA-256."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self.id = hashlib.sha256(key).hexdigest()[:_ID_DIGITS]
        self._key = key

    def begin(self) -> Running:
        """A digest of nothing yet."""
        return hmac.new(self._key, digestmod=hashlib.sha256)

    def of(self, data: bytes) -> str:
        """The digest of all of this, as a record has it."""
        running = self.begin()
        running.update(data)
        return shown(running)


def shown(running: Running) -> str:
    """A digest as a record has it."""
    return f"hmac-sha256:{running.hexdigest()}"


def path_of(state_dir: pathlib.Path, tenant: str) -> pathlib.Path:
    """Where a tenant's key is. tenant: a name, so it is no path."""
    return state_dir / DIRECTORY / f"{tenant}{_SUFFIX}"


def ensure(state_dir: pathlib.Path, tenants: Iterable[str]) -> None:
    """Make the keys of these tenants that are not there; of several who do so at once all get one. Raises OSError."""
    for tenant in tenants:
        path = path_of(state_dir, tenant)
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = files.part_of(path)
            files.put(made, secrets.token_bytes(KEY_BYTES))
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(made, path)
            finally:
                made.unlink()
            files.sync_directory(path.parent)


def load(state_dir: pathlib.Path, tenant: str) -> DigestKey | None:
    """A tenant's key; None: it has none. Raises OSError: it cannot be read, or is none."""
    path = path_of(state_dir, tenant)
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(key) != KEY_BYTES:
        raise OSError(errno.EINVAL, "this is no key of digests", str(path))
    return DigestKey(key)


def forget(state_dir: pathlib.Path, tenant: str) -> None:
    """Delete a tenant's key, durably. Raises OSError."""
    path = path_of(state_dir, tenant)
    path.unlink()
    files.sync_directory(path.parent)


class TenantKeys:
    """The keys of the tenants that want digests, as a worker has them. A key that is deleted is forgotten here too."""

    def __init__(self, state_dir: pathlib.Path, tenants: Iterable[str]) -> None:
        self._state_dir = state_dir
        self._stamps: dict[str, tuple[int, int] | None] = dict.fromkeys(tenants)
        self._keys: dict[str, DigestKey] = {}

    @property
    def wanted(self) -> bool:
        """Does any tenant want digests?"""
        return bool(self._stamps)

    def want(self, tenant: str, *, is_wanted: bool) -> None:
        """Whether this tenant wants digests is decided anew. Raises OSError: a key cannot be made."""
        if is_wanted and tenant not in self._stamps:
            ensure(self._state_dir, [tenant])
            self._stamps[tenant] = None
            self.refresh()
        elif not is_wanted:
            self._stamps.pop(tenant, None)
            self._keys.pop(tenant, None)

    def get(self, tenant: str) -> DigestKey | None:
        """The tenant's key; None: no digests are made."""
        return self._keys.get(tenant)

    def refresh(self) -> None:
        """Look at the files, to be called each second. One that cannot be read is as good as deleted, and said."""
        for tenant, before in self._stamps.items():
            stamp = self._stamp(tenant)
            if stamp == before:
                continue
            self._stamps[tenant] = stamp
            self._keys.pop(tenant, None)
            try:
                key = load(self._state_dir, tenant)
            except OSError as error:
                log(logger, logging.ERROR, "key of digests not readable", tenant=tenant, error=error.strerror)
                continue
            if key is not None:
                self._keys[tenant] = key

    def _stamp(self, tenant: str) -> tuple[int, int] | None:
        try:
            found = os.stat(path_of(self._state_dir, tenant))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
