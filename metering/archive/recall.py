"""Recalling a call from the archive: just the part of its writer's journal that shows it.

    number of the call ─▶ segment of its admission, by halving ─▶ on to its record ─▶ and the line behind it

What is put on disk is a writer's directory whose front is in the archive alone (archive/trimming.py), so whatever
reads those reads this. Its first segment comes too: the facts of the hosts stand there.
"""

import pathlib
from collections.abc import Iterator

import msgspec

from metering import files
from metering.archive.archive import Archive, ArchivedDirectory
from metering.archive.manifest import Manifest
from metering.audit import search
from metering.journal import chain
from metering.journal.chain import NotALine, Segment
from metering.journal.journal import SALVAGE, WRITER_PATTERN
from metering.journal.segments import ARCHIVED, Archived, sealed_name
from metering.record import Admitted, CallRecord

_ADMITTED = b'"kind":"admitted"'


def recall(archive: Archive, call_id: str, root: pathlib.Path) -> pathlib.Path | None:
    """Put what shows this call below `root`, which is then the root of one writer's journal.

    returns: that directory; None: the archive has nothing of this writer, or the id is none. Whether the call is in it
    is another question. Raises ArchiveError, OSError.
    """
    writer, _, number = call_id.rpartition("-")
    if not WRITER_PATTERN.fullmatch(writer) or not number.isdecimal():
        return None
    archived = archive.directory(writer)
    if not archived.first_seqs:
        return None
    path = root / writer
    path.mkdir(parents=True)
    at = _segment_of(archived, int(number))
    lost = archived.salvaged()
    is_lost = lost is not None and _record_in(lost, call_id)
    wanted = {0, at}
    if is_lost:
        wanted.add(len(archived.first_seqs) - 1)  # the salvage follows it
    for index, segment in enumerate(archived.segments()):
        if index < at or is_lost:
            continue
        wanted.add(index)
        if _record_in(segment, call_id):
            wanted.add(index + 1)
            break
    for index, first_seq in enumerate(archived.first_seqs):
        if index in wanted:
            (path / sealed_name(first_seq)).write_bytes(archived.fetch(first_seq))
    for beside in archived.end.beside if archived.end else ():
        if beside.path.endswith(f"/{SALVAGE}"):
            (path / SALVAGE).write_bytes(archive.fetch(beside))
    if at > 0:
        files.put(
            path / ARCHIVED,
            msgspec.json.encode(_before(archived.manifest(archived.first_seqs[at])), order="sorted"),
        )
    return path


def _before(one: Manifest) -> Archived:
    return Archived(frontier=one.frontier, last_seq=one.last_seq - one.lines, leaf=one.prev)


def _segment_of(archived: ArchivedDirectory, number: int) -> int:
    """Which segment has the admission of this call, if any has: calls are admitted in the order of their numbers."""
    found = archived.segments()
    low, high = (
        0,
        len(found),
    )  # the first segments up to `low` begin at or before it, those from `high` on behind it
    while high - low > 1:
        middle = (low + high) // 2
        first = next((n for one in found[middle:high] if (n := _first_number(one)) is not None), None)
        if first is not None and first <= number:
            low = middle
        else:
            high = middle
    return low


def _first_number(segment: Segment) -> int | None:
    """The number of the first call that was admitted in this segment; None: none was."""
    for line in _lines(segment):
        if _ADMITTED in line:
            admitted = _decoded(line)
            if isinstance(admitted, Admitted):
                return int(admitted.call_id.rpartition("-")[2])
    return None


def _record_in(segment: Segment, call_id: str) -> bool:
    """Does the call's record stand in this segment?"""
    needle = b'"call_id":%s' % msgspec.json.encode(call_id)
    data = b"".join(segment.blocks)
    return any(isinstance(_decoded(line), CallRecord) for line in search.lines_with(data, needle))


def _lines(segment: Segment) -> Iterator[bytes]:
    rest = b""
    for block in segment.blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _decoded(line: bytes) -> object:
    try:
        return chain.decode(line)
    except NotALine:
        return None
