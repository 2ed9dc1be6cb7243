"""Retention: journals whose last line is older than `retention_days` are deleted, here and in the archive.

    here       a complete directory ─▶ told ─▶ renamed to a hidden name ─▶ its files and facts deleted
    archived   all that is archived ─▶ told ─▶ end.json ─▶ manifests, the last ones first ─▶ objects, anchors
    locked     stays, and is not tried: where the newest object of a directory is under object lock, all of it is

A directory is deleted as a whole or is there as a whole: what a crash leaves half deleted is hidden here, and is
not named by a manifest there; the next round goes on with it. Which ones they are is told first: a journal that is
gone, and nobody said so, would look like one that was taken away. What the counters of a deleted writer were stays in
the `gone` page (metering/pages/gone.py), without which nothing is deleted.
"""

import itertools
import pathlib
import re
import shutil
from collections.abc import Callable, Collection
from typing import NamedTuple

from metering.archive import facts
from metering.archive.archive import FACTS, JOURNAL, MANIFESTS, Archive, end_path, manifest_path
from metering.archive.objects import Objects
from metering.audit.anchors import ANCHORS
from metering.files import sync_directory
from metering.journal import segments
from metering.journal.journal import WRITER_PATTERN, directories
from metering.units import NS_PER_HOUR

Tell = Callable[[list[str]], None]
"""Told the writers whose journals are about to be deleted; where it raises, nothing is."""

NS_PER_DAY = 24 * NS_PER_HOUR
_DELETED = ".deleted"
_DELETED_PATTERN = re.compile(rf"\.({WRITER_PATTERN.pattern}){re.escape(_DELETED)}")


class Local(NamedTuple):
    """Where a state directory has its journals, and who makes its facts."""

    journals: pathlib.Path
    maker: facts.Maker


def delete_local(local: Local, older_than_ns: int, counted: Collection[str], tell: Tell) -> None:
    """Delete complete directories whose last line was made before `older_than_ns`.

    counted: writers that the `gone` page holds; others are left. Raises OSError, and what `tell` does; a repeat goes
    on from there.
    """
    old = []
    for directory in directories(local.journals):
        # The files' time first: it spares reading each directory's end in each round.
        paths = directory.segment_paths()
        touched_ns = max((segments.modified_ns(path) for _, path in paths), default=0)
        if touched_ns >= older_than_ns or directory.writer not in counted or not directory.complete:
            continue
        tail = directory.tail()
        if tail is not None and tail.at_ns < older_than_ns:
            old.append(directory.writer)
    if old:
        tell(old)
    for writer in old:
        (local.journals / writer).rename(local.journals / f".{writer}{_DELETED}")
    _finish_local(local)


def _finish_local(local: Local) -> None:
    """Delete what has been renamed: now, or before a crash."""
    hidden = [path for path in local.journals.glob(f".*{_DELETED}") if _DELETED_PATTERN.fullmatch(path.name)]
    if not hidden:
        return
    sync_directory(local.journals)
    for path in hidden:
        match = _DELETED_PATTERN.fullmatch(path.name)
        assert match is not None
        local.maker.remove_all(match[1])
        shutil.rmtree(path)


class Held(NamedTuple):
    """What stays though it is old: objects under lock. journals: whole ones; until_ns: the last of the locks ends."""

    journals: int
    anchors: int
    until_ns: int


def delete_archived(archive: Archive, older_than_ns: int, tell: Tell, now_ns: int) -> Held:
    """Delete directories of the archive whose last archived line was made before, and their anchors.

    Those of hosts that are no more count too: a directory that was never ended has had no line since.
    now_ns: wall clock, by which locks end. Raises ArchiveError, and what `tell` does; a repeat goes on from there.
    """
    left: set[str] = set()
    old: dict[str, list[int]] = {}
    locks = _Locks(archive.objects, now_ns)
    for writer in archive.writers():
        first_seqs = archive.first_seqs(writer)
        last_ns = _last_ns(archive, writer, first_seqs)
        if last_ns is None or last_ns >= older_than_ns:
            left.add(writer)
        elif locks.hold(f"{MANIFESTS}{writer}/"):
            left.add(writer)
            locks.journals += 1
        else:
            old[writer] = first_seqs
    if old:
        tell(list(old))
    for writer, first_seqs in old.items():
        archive.objects.delete(end_path(writer))
        for first_seq in reversed(first_seqs):
            archive.objects.delete(manifest_path(writer, first_seq))
    _sweep(archive, left, old.keys(), older_than_ns, locks)
    return Held(locks.journals, locks.anchors, locks.until_ns)


class _Locks:
    """Asks for locks, and counts what they hold."""

    def __init__(self, objects: Objects, now_ns: int) -> None:
        self._objects = objects
        self._now_ns = now_ns
        self.journals = self.anchors = self.until_ns = 0

    def hold(self, prefix: str) -> bool:
        """Is the newest object below it under lock? It is locked longest."""
        newest = max(self._objects.list(prefix), key=lambda one: one.modified_ns, default=None)
        until_ns = 0 if newest is None else self._objects.locked_until_ns(newest.path)
        if until_ns <= self._now_ns:
            return False
        self.until_ns = max(self.until_ns, until_ns)
        return True


def _last_ns(archive: Archive, writer: str, first_seqs: list[int]) -> int | None:
    """When the last archived line was made; None if that cannot be told."""
    end = archive.end(writer)
    if end is not None and end.last_ns is not None:
        return end.last_ns
    for first_seq in reversed(first_seqs):
        found = archive.manifest(writer, first_seq)
        if found is not None and found.last_ns is not None:
            return found.last_ns
    return None


def _sweep(
    archive: Archive, left: Collection[str], deleted: Collection[str], older_than_ns: int, locks: _Locks
) -> None:
    """Delete objects that no manifest can name: of writers just deleted, or of ones deleted before a crash.

    An object without a manifest may also be one that somebody is archiving right now: it is young. Anchors go last:
    they may be where the gateway can delete nothing.
    """
    held: dict[str, bool] = {}  # by writer: are its anchors locked?
    for one in itertools.chain.from_iterable(map(archive.objects.list, (JOURNAL, FACTS, ANCHORS))):
        match = WRITER_PATTERN.search(one.path)
        if match is None or match[0] in left:
            continue
        if match[0] in deleted or one.modified_ns < older_than_ns:
            if one.path.startswith(ANCHORS):
                writer = match[0]
                if writer not in held:
                    held[writer] = locks.hold(f"{ANCHORS}{writer}/")
                if held[writer]:
                    locks.anchors += 1
                    continue
            archive.objects.delete(one.path)
