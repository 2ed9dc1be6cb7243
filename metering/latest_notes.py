"""The newest checkpoint of each journal of a state directory: of an ended one its end's note, else the last line.

To be kept elsewhere: only what its owner cannot reach any more proves that nothing was rewritten since.
"""

import base64
import pathlib
from collections.abc import Iterator

import msgspec

from metering import chain, checkpoint, search, segments
from metering.checkpoint import NotANote
from metering.endnotes import END_NOTE
from metering.journal import WRITER_PATTERN, Directory, directories
from metering.record import Checkpoint


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


def latest(root: pathlib.Path, writer: str | None = None) -> list[Latest]:
    """Of each writer, or of one, by name. root: <state_dir>/journal. Signatures are not checked. Raises OSError."""
    if writer is not None:
        # A name from outside: one that is no writer's must lead nowhere.
        there = WRITER_PATTERN.fullmatch(writer) and (root / writer).is_dir()
        return [_latest(Directory(root / writer))] if there else []
    return list(map(_latest, directories(root)))


def _latest(directory: Directory) -> Latest:
    for ended, text in _notes(directory):
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
            writer=directory.writer,
        )
    return Latest(ended=False, writer=directory.writer)


def _notes(directory: Directory) -> Iterator[tuple[bool, str]]:
    """Notes as text, the newest first; with each: is it the end's?"""
    try:
        yield True, (directory.path / END_NOTE).read_text("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    for _, path in reversed(directory.segment_paths()):
        line = search.last_line_with(segments.read(path), search.CHECKPOINT)
        if line is None:
            continue
        try:
            found = chain.decode(line)
        except chain.NotALine:
            continue
        if isinstance(found, Checkpoint):
            yield False, found.note
