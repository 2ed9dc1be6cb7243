"""Retention: journals whose last line is older than `retention_days` are deleted, here and in the archive.

    here       a complete directory ─▶ renamed to a hidden name ─▶ its files and facts deleted
    archived   end.json ─▶ manifests, the last ones first ─▶ objects that no manifest names

A directory is deleted as a whole or is there as a whole: what a crash leaves half deleted is hidden here, and is
not named by a manifest there; the next round goes on with it. What the counters of a deleted writer were stays in
the `gone` page (metering/gone.py), without which nothing is deleted.
"""

import pathlib
import re
import shutil
from collections.abc import Collection
from typing import NamedTuple

from metering import facts, segments
from metering.archive import FACTS, JOURNAL, Archive, end_path, manifest_path
from metering.files import sync_directory
from metering.journal import WRITER_PATTERN, directories
from metering.units import NS_PER_HOUR

NS_PER_DAY = 24 * NS_PER_HOUR
_DELETED = ".deleted"
_DELETED_PATTERN = re.compile(rf"\.({WRITER_PATTERN.pattern}){re.escape(_DELETED)}")


class Local(NamedTuple):
    """Where a state directory has its journals, and who makes its facts."""

    journals: pathlib.Path
    maker: facts.Maker


def delete_local(local: Local, older_than_ns: int, counted: Collection[str]) -> list[str]:
    """Delete complete directories whose last line was made before `older_than_ns`. returns: their writers.

    counted: writers that the `gone` page holds; others are left. Raises OSError; a repeat goes on from there.
    """
    deleted = []
    for directory in directories(local.journals):
        # The files' time first: it spares reading each directory's end in each round.
        paths = directory.segment_paths()
        touched_ns = max((segments.modified_ns(path) for _, path in paths), default=0)
        if touched_ns >= older_than_ns or directory.writer not in counted or not directory.complete:
            continue
        tail = directory.tail()
        if tail is not None and tail.at_ns < older_than_ns:
            directory.path.rename(local.journals / f".{directory.writer}{_DELETED}")
            deleted.append(directory.writer)
    _finish_local(local)
    return deleted


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


def delete_archived(archive: Archive, older_than_ns: int) -> list[str]:
    """Delete directories of the archive whose last archived line was made before. returns: their writers.

    Those of hosts that are no more count too: a directory that was never ended has had no line since.
    Raises ArchiveError; a repeat goes on from there.
    """
    left, deleted = set(), []
    for writer in archive.writers():
        first_seqs = archive.first_seqs(writer)
        last_ns = _last_ns(archive, writer, first_seqs)
        if last_ns is None or last_ns >= older_than_ns:
            left.add(writer)
            continue
        archive.objects.delete(end_path(writer))
        for first_seq in reversed(first_seqs):
            archive.objects.delete(manifest_path(writer, first_seq))
        deleted.append(writer)
    _sweep(archive, left, set(deleted), older_than_ns)
    return deleted


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


def _sweep(archive: Archive, left: set[str], deleted: set[str], older_than_ns: int) -> None:
    """Delete objects that no manifest can name: of writers just deleted, or of ones deleted before a crash.

    An object without a manifest may also be one that somebody is archiving right now: it is young.
    """
    for one in archive.objects.list(JOURNAL) + archive.objects.list(FACTS):
        match = WRITER_PATTERN.search(one.path)
        if match is None or match[0] in left:
            continue
        if match[0] in deleted or one.modified_ns < older_than_ns:
            archive.objects.delete(one.path)
