"""Anchors as they are named to commands: a file or a directory, an archive's, or those that a store has."""

import asyncio
import pathlib
import urllib.parse

from metering.archive.objects import ArchiveError, open_objects
from metering.audit import verify
from metering.audit.anchors import ANCHORS
from metering.audit.verdict import Anchor
from metering.audit.verify import VerifyError
from metering.ledger.store import Store, StoreUnavailable

_STORES = ("redis", "rediss", "unix")
_ARCHIVES = ("s3", "file")


def read(given: str) -> list[Anchor]:
    """Notes from where this names. Raises VerifyError, OSError."""
    scheme = urllib.parse.urlsplit(given).scheme
    if scheme in _STORES:
        found = _from_store(given)
    elif scheme in _ARCHIVES:
        found = _from_archive(given)
    else:
        return verify.read_anchors(pathlib.Path(given))
    if not found:
        raise VerifyError(f"there is no anchor in {given}")
    return [verify.anchor(note, source) for source, note in found]


def _from_store(url: str) -> list[tuple[str, bytes]]:
    async def ask() -> dict[str, str]:
        async with Store(url) as store:
            return await store.anchors()

    try:
        notes = asyncio.run(ask())
    except (StoreUnavailable, ValueError) as error:
        raise VerifyError(f"the store that --anchor names can't be asked: {error}") from None
    return [(f"wb:1:anchors {writer}", note.encode()) for writer, note in sorted(notes.items())]


def _from_archive(place: str) -> list[tuple[str, bytes]]:
    try:
        objects = open_objects(place)
        return [(one.path, objects.get(one.path) or b"") for one in objects.list(ANCHORS)]
    except ArchiveError as error:
        raise VerifyError(str(error)) from None
