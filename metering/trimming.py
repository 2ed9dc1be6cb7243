"""Trimming: what the archive holds may go from this disk, oldest first, where the journals take too much of it.

    manifest fetched ─▶ segment fetched and compared ─▶ archived.json synced ─▶ segment and its facts deleted

Nothing is deleted that was not seen in the archive just then, whole. A directory loses its front only, and keeps
its last segment. Where it begins then stands in `archived.json` (metering/segments.py), with the tree up to there.
"""

import heapq
import pathlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from metering import facts, files, segments
from metering.archive import Archive, Archiver, manifest_path, passed
from metering.chain import Segment
from metering.journal import Directory
from metering.objects import ArchiveError
from metering.segments import ARCHIVED, Archived, Blocks, is_sealed


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

    def trim(self, directories: Iterable[Directory], free_bytes: int, counted: Collection[str]) -> int:
        """Free as many bytes of these directories, or as many as can be. returns: how many it freed.

        counted: complete directories whose calls the `gone` page holds (metering/gone.py); others are left whole.
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
        paths = directory.segment_paths()[:-1]
        if not paths:
            return None
        first_seq, path = paths[0]
        if not is_sealed(path) or not self._archiver.has(directory.writer, first_seq):
            return None
        if directory.writer not in counted and directory.complete:
            return None
        return _Front(segments.modified_ns(path), directory.writer, first_seq, path, directory)

    def _delete(self, front: _Front) -> bool:
        """False: no line of it counts, so that no place is behind it; it stays."""
        writer = front.writer
        found = self._archive.manifest(writer, front.first_seq)
        if found is None:
            raise ArchiveError(f"{manifest_path(writer, front.first_seq)} is gone from the archive")
        if not found.lines:
            return False
        if self._archive.fetch(found.segment) != front.path.read_bytes():
            raise ArchiveError(f"{found.segment.path} in the archive is not what {front.path} is")
        passage = passed(found, Segment(front.first_seq, Blocks(front.path)))
        archived = Archived(frontier=passage.frontier, last_seq=passage.place.seq, leaf=passage.place.leaf)
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
