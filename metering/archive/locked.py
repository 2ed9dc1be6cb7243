"""Objects of a bucket with object lock: once put, nobody may change or delete them before their day, not even we.

    put       with mode and day of the lock, If-None-Match, and the digest that S3 asks of locked objects
    delete    of all versions, once the lock of the newest has ended; before, nothing is tried
    check     what the bucket itself says: versions and locks must be on

An overwritten or deleted object of such a bucket still has its first version: metering/audit/versions.py finds it.
"""

import base64
import hashlib
import pathlib
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Literal, NamedTuple

from metering.archive.objects import AlreadyThere, ArchiveError, BucketObjects, Listed
from metering.archive.s3 import Bucket, Refused
from metering.periods import instant_text
from metering.units import NS_PER_HOUR

NS_PER_DAY = 24 * NS_PER_HOUR
EVIDENCE = ("anchors/", "journal/", "manifests/", "close/")
"""What an auditor relies on. Facts can be made anew from it; content must be erasable."""
_LOOKS = re.compile(r"close/(looks|\d+/now)/")
"""Into the running hour: deleted when the hour is closed (metering/cost/closes.py)."""


class Lock(NamedTuple):
    """How objects are locked. days: from when they are put; what: which of them."""

    mode: Literal["governance", "compliance"]
    days: int
    what: Literal["anchors", "all"]

    def covers(self, path: str) -> bool:
        """Is an object of this path locked?"""
        covered = EVIDENCE if self.what == "all" else EVIDENCE[:1]
        return path.startswith(covered) and not _LOOKS.match(path)


class LockedObjects:
    """As BucketObjects, some of them under lock. clock: wall clock in nanoseconds since 1970 (UTC)."""

    def __init__(
        self, objects: BucketObjects, bucket: Bucket, lock: Lock, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._objects = objects
        self._bucket = bucket
        self._lock = lock
        self._clock = clock

    def put_new(self, path: str, data: bytes) -> None:
        """As Objects.put_new."""
        # S3 asks for a digest with every object that it locks: a bucket may do so by default.
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        headers = {"content-md5": digest, "if-none-match": "*"}
        if self._lock.covers(path):
            headers |= {
                "x-amz-object-lock-mode": self._lock.mode.upper(),
                "x-amz-object-lock-retain-until-date": instant_text(self._until_ns()),
            }
        try:
            self._bucket.put(path, data, headers)
        except Refused as error:
            if error.status == HTTPStatus.PRECONDITION_FAILED:
                raise AlreadyThere(f"{self._bucket}/{path} is there already") from None
            raise

    def put_file(self, path: str, file: pathlib.Path) -> None:
        """As Objects.put_file; what is locked is put whole."""
        if self._lock.covers(path):
            self.put_new(path, file.read_bytes())
        else:
            self._objects.put_file(path, file)

    def _until_ns(self) -> int:
        return self._clock() + self._lock.days * NS_PER_DAY

    def get(self, path: str) -> bytes | None:
        """As Objects.get."""
        return self._objects.get(path)

    def list(self, prefix: str) -> list[Listed]:
        """As Objects.list."""
        return self._objects.list(prefix)

    def clear_leftovers(self) -> None:
        """As Objects.clear_leftovers."""

    def locked_until_ns(self, path: str, /) -> int:
        """As Objects.locked_until_ns: by what the bucket says of it."""
        return self._bucket.locked_until_ns(path)

    def delete(self, path: str) -> None:
        """As Objects.delete: each version of it, for a mark of deletion would hide it and delete nothing."""
        for version in list(self._bucket.versions(path)):
            if version.path == path:
                self._bucket.delete_version(version)

    def check(self) -> None:
        """Raises ArchiveError: the bucket is not set up to lock anything; it says what is missing."""
        setup = self._bucket.setup()
        missing = [
            name
            for name, there in (("versioning", setup.versioned), ("object lock", setup.locks))
            if not there
        ]
        if missing:
            raise ArchiveError(
                f"{self._bucket} has no {' and no '.join(missing)}: what journal.archive_lock asks for cannot be kept; "
                "switch it on for the bucket, or name another one"
            )
