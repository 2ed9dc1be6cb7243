"""The content of calls as it is read: found by a call's record, here or in the archive, and held against it.

record ─▶ file, offset, bytes ─▶ a frame ─▶ is its SHA-256 that of the record? ─▶ is it this call's? ─▶ opened
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from metering.archive.objects import Objects
from metering.capture import frame
from metering.capture.frame import Frame, NotAFrame
from metering.capture.shelf import DIRECTORY, Shelf, Shelved, shelved
from metering.journal.events import CONTENT_DELETED
from metering.record import CallRecord, Capture, Event, Line
from metering.units import NS_PER_S

SLACK_NS = 10 * NS_PER_S
"""A record is written so long after its content, at most."""


class ContentError(Exception):
    """The content of a call can't be had; the message says why.

    * NotKept    its record says that none was kept
    * Gone       it is neither here nor in the archive
    * Altered    it is not what its record says
    """


class NotKept(ContentError):
    pass


class Gone(ContentError):
    pass


class Altered(ContentError):
    pass


class Contents:
    """Those of a state directory, and of its archive if there is one."""

    def __init__(self, shelf: Shelf, objects: Objects | None) -> None:
        self._shelf = shelf
        self._objects = objects
        self._fetched: tuple[Shelved, bytes] | None = None  # the last file of the archive

    def find(self, record: CallRecord) -> Frame:
        """The frame of a call, as its record says it is. Raises ContentError, ArchiveError, OSError."""
        kept = record.capture
        if isinstance(kept, msgspec.UnsetType):
            raise NotKept("its tenant had no capture when it was made")
        if kept.dropped is not None:
            raise NotKept(f"nothing was kept of it: {kept.dropped}")
        where = shelved(record.tenant, kept.file or "")
        if where is None or kept.offset is None or kept.bytes is None:
            raise Altered(f"its record names no file of content: {kept.file!r}")
        data = self._read(where, kept.offset, kept.bytes)
        if data is None:
            raise Gone(
                f"{DIRECTORY}/{where.below} is not here" + (", nor in the archive" * bool(self._objects))
            )
        return _checked(data, record, kept, where)

    def _read(self, where: Shelved, offset: int, length: int) -> bytes | None:
        try:
            with open(self._shelf.path(where), "rb") as file:
                file.seek(offset)
                return file.read(length)
        except FileNotFoundError:
            data = self._fetch(where)
            return None if data is None else data[offset : offset + length]

    def _fetch(self, where: Shelved) -> bytes | None:
        if self._fetched is not None and self._fetched[0] == where:
            return self._fetched[1]
        data = None if self._objects is None else self._objects.get(f"{DIRECTORY}/{where.below}")
        self._fetched = None if data is None else (where, data)
        return data


def _checked(data: bytes, record: CallRecord, kept: Capture, where: Shelved) -> Frame:
    place = f"{DIRECTORY}/{where.below}, at {kept.offset}"
    if len(data) != kept.bytes:
        raise Altered(
            f"{place}: {len(data)} bytes are there, and its record says {kept.bytes}: it was cut off"
        )
    if hashlib.sha256(data).hexdigest() != kept.sha256:
        raise Altered(f"{place}: these are not the bytes that its record has the digest of")
    try:
        found = frame.parse(data)
    except NotAFrame as error:
        raise Altered(f"{place}: {error}") from None
    header = found.header
    if (header.call_id, header.tenant, header.key) != (record.call_id, record.tenant, kept.key):
        raise Altered(f"{place}: it says of itself that it is of {header.call_id}, of {header.tenant}")
    return found


class Deletions:
    """What `event` lines tell of content that was deleted, by its age or since its tenant was to be forgotten."""

    def __init__(self) -> None:
        self._until_ns: dict[str, int] = {}  # by tenant: content of before may be gone

    def add(self, line: Line) -> None:
        """Take in a line of a journal."""
        if isinstance(line, Event) and line.topic == CONTENT_DELETED:
            tenant, until = line.data.get("tenant", ""), line.data.get("until_ns", "")
            if until.isdecimal():
                self._until_ns[tenant] = max(int(until), self._until_ns.get(tenant, 0))

    def explain(self, record: CallRecord) -> bool:
        """May the content of this call be gone?"""
        return record.finished_ns < self._until_ns.get(record.tenant, 0) + SLACK_NS


class Checked(NamedTuple):
    """What was found of the content that records say is kept. wrong: by call id, what contradicts its record."""

    kept: int
    dropped: int
    deleted: int
    wrong: list[tuple[str, str]]


def check(
    records: Callable[[], Iterable[Line]],
    contents: Contents,
    *,
    tenant: str | None = None,
    see: Callable[[CallRecord, Frame], None] = lambda _record, _frame: None,
) -> Checked:
    """Hold all content against its records. records: all lines of all journals, to be gone through twice.

    tenant: of this one alone. see: shown each frame; what it raises as ContentError contradicts too.
    Raises ArchiveError, OSError.
    """
    deletions = Deletions()
    for line in records():
        deletions.add(line)
    kept = dropped = deleted = 0
    wrong: list[tuple[str, str]] = []
    for record in _with_content(records(), tenant):
        try:
            see(record, contents.find(record))
        except NotKept:
            dropped += 1
        except Gone as error:
            if deletions.explain(record):
                deleted += 1
            else:
                wrong.append((record.call_id, f"{error}, and no event says that it was deleted"))
        except ContentError as error:
            wrong.append((record.call_id, str(error)))
        else:
            kept += 1
    return Checked(kept, dropped, deleted, wrong)


def _with_content(lines: Iterable[Line], tenant: str | None) -> Iterator[CallRecord]:
    for line in lines:
        if not isinstance(line, CallRecord) or isinstance(line.capture, msgspec.UnsetType):
            continue
        if tenant is None or line.tenant == tenant:
            yield line
