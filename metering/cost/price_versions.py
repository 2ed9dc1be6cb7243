"""Imported prices where they are kept: a version for each import, put once and never changed.

    prices/000001.json ◀── previous ── prices/000002.json ◀── …           in the archive, else in the state directory

A version has what its import added; all of them together are the imported part of the price book. Each holds the
SHA-256 of the one before, and its number is free for one import alone: of two at once the second has to look again.
Where there is an archive, the state directory has a copy, for workers, which ask no archive.
"""

import hashlib
import pathlib
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from metering.archive.objects import ArchiveError, LocalObjects, Objects
from metering.cost.price_book import InstancePrice

PREFIX = "prices/"
_PATTERN = re.compile(rf"{PREFIX}([0-9]{{6}})\.json")


class PriceVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One import. file, file_sha256: what was imported; previous: SHA-256 (hex) of the version before, None: none."""

    added: tuple[InstancePrice, ...]
    file: str
    file_sha256: str
    imported_ns: int
    made_by: str
    number: int
    previous: str | None
    v: int = 1


_VERSIONS = msgspec.json.Decoder(PriceVersion)


class Stored(NamedTuple):
    """A version as it is kept. sha256: hex, of its bytes."""

    version: PriceVersion
    sha256: str


class PriceVersions:
    """The versions among these objects. Every method raises ArchiveError."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def all(self) -> list[Stored]:
        """All versions, the first one first, each checked against the next: a lost or changed one is an error."""
        found: list[Stored] = []
        for number, data in self._files():
            try:
                version = _VERSIONS.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ArchiveError(f"{path_of(number)} is no version of the price book: {error}") from error
            previous = found[-1].sha256 if found else None
            if (version.number, version.previous) != (len(found) + 1, previous):
                raise ArchiveError(
                    f"{path_of(number)} does not follow the version before; one is lost or was changed"
                )
            found.append(Stored(version, hashlib.sha256(data).hexdigest()))
        return found

    def prices(self) -> list[InstancePrice]:
        """What all imports have added, in their order."""
        return [price for stored in self.all() for price in stored.version.added]

    def put(self, version: PriceVersion) -> None:
        """Keep a version, durably. Raises AlreadyThere too: somebody else has imported meanwhile."""
        self._objects.put_new(path_of(version.number), encode(version))

    def _files(self) -> Iterator[tuple[int, bytes]]:
        for listed in self._objects.list(PREFIX):
            if match := _PATTERN.fullmatch(listed.path):
                data = self._objects.get(listed.path)
                if data is not None:
                    yield int(match[1]), data


def encode(version: PriceVersion) -> bytes:
    """A version's bytes: canonical JSON in one line."""
    return msgspec.json.encode(version, order="deterministic") + b"\n"


def path_of(number: int) -> str:
    """Where a version is."""
    return f"{PREFIX}{number:06d}.json"


def bring_level(archive: Objects, state_dir: pathlib.Path, level: Collection[str] = ()) -> set[str]:
    """Copy versions that only one of an archive and a state directory has to the other.

    level: paths that are known to be the same in both, and are not looked at. returns: all of which that is so now.
    Raises ArchiveError: also where both have another version of one number, for then neither is the whole.
    """
    here = LocalObjects(state_dir)
    kept = {
        one.path
        for objects in (archive, here)
        for one in objects.list(PREFIX)
        if _PATTERN.fullmatch(one.path)
    }
    for path in sorted(kept.difference(level)):
        there, local = archive.get(path), here.get(path)
        if there is not None and local is None:
            here.put_new(path, there)
        elif there is None and local is not None:
            archive.put_new(path, local)
        elif there != local:
            raise ArchiveError(
                f"{path} is one import in the archive and another under {state_dir}: put one of them aside and "
                "import its file again"
            )
    return kept
