"""Trimming: what the archive holds may go from this disk, oldest first, where the journals take too much of it.

    manifest fetched ─▶ segment fetched and compared ─▶ archived.json synced ─▶ segment and its facts deleted

Nothing is deleted that was not seen in the archive just then, whole. A directory loses its front only, and keeps
its last segment. Where it begins then stands in `archived.json` (journal/segments.py), with the tree up to there.
One that lines may still be added to keeps its last two, and each call's admission until its record is there: whoever
may have to close it needs them (metering/journal/salvage.py).
"""

import heapq
import pathlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from metering import files
from metering.archive import facts
from metering.archive.archive import Archive, Archiver, manifest_path, passed
from metering.archive.objects import ArchiveError
from metering.journal import segments
from metering.journal.chain import Segment
from metering.journal.journal import Directory
from metering.journal.segments import ARCHIVED, Archived, Blocks, is_sealed
from metering.ledger import ledger
from metering.record import Admitted, CallRecord


class _Front(NamedTuple):
    """The first segment of a directory; ordered by age."""

    modified_ns: int
    writer: str
    first_seq: int
    path: pathlib.Path
    directory: Directory

    def __lt__(self, other: tuple[object, ...]) -> bool:
        return self[:3] < other[:3]


class Trimmer:
    """Deletes the front of directories. One caller at a time."""

    def __init__(self, archive: Archive, archiver: Archiver, maker: facts.Maker) -> None:
        self._archive = archive
        self._archiver = archiver
        self._maker = maker
        self._open: dict[
            str, tuple[int, int]
        ] = {}  # writer → its front, and up to where its records were looked for

    def trim(self, directories: Iterable[Directory], free_bytes: int, counted: Collection[str]) -> int:
        """Free as many bytes of these directories, or as many as can be. returns: how many it freed.

        counted: complete directories whose calls the `gone` page holds (metering/pages/gone.py); others are left whole.
        Raises ArchiveError, OSError: what was deleted until then is archived.
        """
        fronts: list[_Front] = []
        for directory in directories:
            self._finish(directory)
            if (front := self._front(directory, counted)) is not None:
                heapq.heappush(fronts, front)
        freed = 0
        while fronts and freed < free_bytes:
            front = heapq.heappop(fronts)
            taken = segments.size(front.path)
            if not self._delete(front):
                continue
            freed += taken
            if (front_then := self._front(front.directory, counted)) is not None:
                heapq.heappush(fronts, front_then)
        return freed

    def _front(self, directory: Directory, counted: Collection[str]) -> _Front | None:
        complete = directory.complete
        # The last one of a writer that was killed may have no line that counts.
        paths = directory.segment_paths()[: -1 if complete else -2]
        if not paths:
            return None
        first_seq, path = paths[0]
        if not is_sealed(path) or not self._archiver.has(directory.writer, first_seq):
            return None
        if complete and directory.writer not in counted:
            return None
        return _Front(segments.modified_ns(path), directory.writer, first_seq, path, directory)

    def _delete(self, front: _Front) -> bool:
        """False: it stays, for no line of it counts, so that no place is behind it, or one of its calls may be open."""
        writer = front.writer
        found = self._archive.manifest(writer, front.first_seq)
        if found is None:
            raise ArchiveError(f"{manifest_path(writer, front.first_seq)} is gone from the archive")
        if not found.lines or self._may_be_open(front.directory, front.first_seq, found.last_seq):
            return False
        if self._archive.fetch(found.segment) != front.path.read_bytes():
            raise ArchiveError(f"{found.segment.path} in the archive is not what {front.path} is")
        passage = passed(found, Segment(front.first_seq, Blocks(front.path)))
        archived = Archived(
            frontier=passage.frontier,
            last_seq=passage.place.seq,
            leaf=passage.place.leaf,
            marks=_marks(front.directory, front.first_seq, found.last_seq),
        )
        files.put(front.directory.path / ARCHIVED, msgspec.json.encode(archived, order="sorted"), mode=0o644)
        self._finish(front.directory)
        return True

    def _finish(self, directory: Directory) -> None:
        """Delete what `archived.json` says is not needed here: of now, or of before a crash."""
        after = directory.starts_after
        for first_seq, path in directory.segment_paths():
            if first_seq <= after:
                path.unlink()
                self._maker.remove(facts.name(directory.writer, first_seq))

    def _may_be_open(self, directory: Directory, first_seq: int, last_seq: int) -> bool:
        """May a call that was admitted in these lines have no durable record yet? None was open before them."""
        if directory.complete:
            return False
        # What is not sealed may still be lost by a power cut.
        plain = (first for first, path in directory.segment_paths() if not is_sealed(path))
        looked = first_seq, next(plain, first_seq)
        if self._open.get(directory.writer) == looked:  # nothing was sealed since
            return True
        is_open = _is_open(directory, first_seq, last_seq, looked[1])
        if is_open:
            self._open[directory.writer] = looked
        else:
            self._open.pop(directory.writer, None)
        return is_open


def _is_open(directory: Directory, first_seq: int, last_seq: int, before_seq: int) -> bool:
    """Has a call that was admitted in first_seq to last_seq no record below `before_seq`?"""
    open_calls: set[str] = set()
    for line, seq, _ in directory.records(first_seq - 1):
        if seq >= before_seq:
            break
        if isinstance(line, Admitted) and seq <= last_seq:
            open_calls.add(line.call_id)
        elif isinstance(line, CallRecord):
            open_calls.discard(line.call_id)
        if seq >= last_seq and not open_calls:
            return False
    return True


def _marks(directory: Directory, first_seq: int, last_seq: int) -> dict[str, str] | None:
    """Of each tenant's last record up to `last_seq`: by these lines, and by what is known of those before."""
    before = segments.read_archived(directory.path)
    if before is not None and before.marks is None:
        return None
    marks = dict(before.marks or {}) if before is not None else {}
    for billed, seq, leaf in directory.billed(first_seq - 1):
        if seq > last_seq:
            break
        assert billed.tenant is not None
        marks[billed.tenant] = str(ledger.mark(seq, leaf))
    return marks
