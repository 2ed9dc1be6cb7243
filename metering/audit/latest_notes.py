"""The newest checkpoint of each journal of a state directory: of an ended one its end's note, else the last line.

Where none is left here of a journal whose front is in the archive, or one is asked for that is there alone, that is
looked at: no more than the last ARCHIVED_MAX segments, for there is a checkpoint each 1,000 lines.

To be kept elsewhere: only what its owner cannot reach any more proves that nothing was rewritten since.
"""

import base64
import contextlib
import pathlib
from collections.abc import Iterator

import msgspec

from metering.archive.archive import Archive, ArchivedDirectory
from metering.audit import checkpoint, search
from metering.audit.checkpoint import NotANote
from metering.audit.endnotes import END_NOTE
from metering.journal import chain, segments
from metering.journal.journal import WRITER_PATTERN, Directory, directories
from metering.record import Checkpoint

ARCHIVED_MAX = 3


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """A journal's newest note, and what it says. ended: it is the end's, and no line will be added.

    note: None: nothing has been signed yet, or nothing that could be read; then size is 0 and the others are None.
    """

    at_ns: int | None = None
    ended: bool
    note: str | None = None
    root: str | None = None
    size: int = 0
    writer: str


def latest(root: pathlib.Path, writer: str | None = None, archive: Archive | None = None) -> list[Latest]:
    """Of each writer that is here, or of one, by name. root: <state_dir>/journal. Signatures are not checked.

    archive: None: it is not asked. Raises OSError, ArchiveError.
    """
    if writer is None:
        return [_latest(one.writer, _notes(one, archive)) for one in directories(root)]
    if not WRITER_PATTERN.fullmatch(writer):  # a name from outside: one that is no writer's must lead nowhere
        return []
    if (root / writer).is_dir():
        return [_latest(writer, _notes(Directory(root / writer), archive))]
    archived = archive.directory(writer) if archive is not None else None
    return [_latest(writer, _archived_notes(archived))] if archived and archived.first_seqs else []


def _latest(writer: str, notes: Iterator[tuple[bool, str]]) -> Latest:
    for ended, text in notes:
        try:
            head = checkpoint.parse(text).head
        except NotANote:
            continue
        return Latest(
            at_ns=head.at_ns,
            ended=ended,
            note=text,
            root=base64.b64encode(head.root).decode(),
            size=head.size,
            writer=writer,
        )
    return Latest(ended=False, writer=writer)


def _notes(directory: Directory, archive: Archive | None) -> Iterator[tuple[bool, str]]:
    """Notes as text, the newest first; with each: is it the end's?"""
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        yield True, (directory.path / END_NOTE).read_text("utf-8")
    for _, path in reversed(directory.segment_paths()):
        yield from _last_note(segments.read(path))
    if archive is not None and directory.starts_after:
        yield from _archived_notes(archive.directory(directory.writer), directory.starts_after)


def _archived_notes(archived: ArchivedDirectory, last_seq: int | None = None) -> Iterator[tuple[bool, str]]:
    """The same of the archive's; last_seq: of segments that begin up to there; None: of all, and the end's note."""
    if last_seq is None:
        for one in archived.beside:
            if one.path.endswith(f"/{END_NOTE}"):
                yield True, archived.fetch_beside(one).decode(errors="replace")
    before = [one for one in archived.segments() if last_seq is None or one.first_seq <= last_seq]
    for segment in reversed(before[-ARCHIVED_MAX:]):
        yield from _last_note(b"".join(segment.blocks))


def _last_note(data: bytes) -> Iterator[tuple[bool, str]]:
    """That of the last checkpoint of these lines, if they have one."""
    line = search.last_line_with(data, search.CHECKPOINT)
    if line is None:
        return
    try:
        found = chain.decode(line)
    except chain.NotALine:
        return
    if isinstance(found, Checkpoint):
        yield False, found.note
