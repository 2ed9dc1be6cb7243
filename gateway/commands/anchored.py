"""Anchors as they are named to commands: a file or a directory, an archive's, or those that a store has."""

import asyncio
import pathlib
import urllib.parse
from collections.abc import Iterable
from http import HTTPStatus

from gateway.commands.commands import say
from metering.archive.objects import FILE_SCHEME, S3_SCHEME, ArchiveError, bucket_of, open_objects
from metering.archive.s3 import Bucket, Refused
from metering.audit import verify, versions
from metering.audit.anchors import ANCHORS
from metering.audit.verdict import Anchor
from metering.audit.verify import VerifyError
from metering.audit.versions import Read
from metering.ledger.store import Store, StoreUnavailable

_STORES = ("redis", "rediss", "unix")
_NO_VERSIONS = (HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


def read(given: str) -> Read:
    """Notes from where this names, and what is amiss there. Raises VerifyError, OSError."""
    scheme = urllib.parse.urlsplit(given).scheme
    if scheme in _STORES:
        found = Read([verify.anchor(note, source) for source, note in _from_store(given)], [])
    elif scheme == S3_SCHEME:
        found = _from_bucket(given)
    elif scheme == FILE_SCHEME:
        found = Read(_from_archive(given), [])
    else:
        found = Read(verify.read_anchors(pathlib.Path(given)), [])
    if not found.anchors and not found.findings:
        raise VerifyError(f"there is no anchor in {given}")
    return found


def read_all(given: Iterable[str]) -> Read:
    """Of several places together. Raises VerifyError, OSError."""
    found = Read([], [])
    for one in given:
        more = read(one)
        found.anchors.extend(more.anchors)
        found.findings.extend(more.findings)
    return found


def _from_store(url: str) -> list[tuple[str, bytes]]:
    async def ask() -> dict[str, str]:
        async with Store(url) as store:
            return await store.anchors()

    try:
        notes = asyncio.run(ask())
    except (StoreUnavailable, ValueError) as error:
        raise VerifyError(f"the store that --anchor names can't be asked: {error}") from None
    return [(f"wb:1:anchors {writer}", note.encode()) for writer, note in sorted(notes.items())]


def _from_bucket(place: str) -> Read:
    """By all versions; of a bucket whose versions may not be listed, by what is read there now."""
    bucket = Bucket(*bucket_of(place), None, None)
    try:
        return versions.read(bucket)
    except Refused as error:
        if error.status not in _NO_VERSIONS:
            raise VerifyError(str(error)) from None
        say(f"{bucket}: its versions can't be listed ({error.code or error.status}), so an anchor that was "
            "overwritten or hidden there is not seen")  # fmt: skip
    except ArchiveError as error:
        raise VerifyError(str(error)) from None
    return Read(_from_archive(place), [])


def _from_archive(place: str) -> list[Anchor]:
    try:
        objects = open_objects(place)
        found = [(one.path, objects.get(one.path) or b"") for one in objects.list(ANCHORS)]
    except ArchiveError as error:
        raise VerifyError(str(error)) from None
    return [verify.anchor(note, path) for path, note in found]
