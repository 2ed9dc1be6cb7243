"""The newest checkpoint of each journal, sent to where its owner cannot change it any more.

    a writer's checkpoint ─▶ durable ─▶ at most each ANCHOR_S, and at its end ─┬─▶ the log, a line `journal checkpoint`
                                                                               └─▶ the store, `wb:1:anchors`
    the notes in its directory ─▶ at most each ARCHIVE_S, and at its end ─▶ the archive, `anchors/<writer>/<size>.note`

Only what is durable is sent: an anchor must never prove lines that a power cut has taken, for then an honest
journal looks like one that was cut off.
"""

import base64
import contextlib
import functools
import logging
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from metering.archive.objects import AlreadyThere, Objects
from metering.audit import checkpoint, endnotes, latest_notes
from metering.audit.checkpoint import NotANote
from metering.audit.endnotes import END_NOTE
from metering.audit.notary import Signed
from metering.journal.journal import Directory, directories
from metering.journal.segments import is_sealed
from metering.ledger.epochs import NO_EPOCH
from metering.ledger.store import Store
from metering.logs import log

ANCHOR_S = 10.0
ARCHIVE_S = 60.0
ANCHORS = "anchors/"

_PATH_PATTERN = re.compile(r"anchors/([^/]+)/([0-9]+)\.note")
# Where there is no fdatasync (macOS), fsync does all that it does and more.
_fdatasync = getattr(os, "fdatasync", os.fsync)

logger = logging.getLogger("weighbridge.anchors")


def log_checkpoint(signed: Signed) -> None:
    """The anchor in the log: all of the note, for who collects it elsewhere."""
    log(
        logger, logging.INFO, checkpoint.LOGGED_AS,
        writer=signed.head.writer, size=signed.head.size, root=base64.b64encode(signed.head.root).decode(),
        key=signed.key_id, note=signed.note,
    )  # fmt: skip


class Anchors:
    """Of one writer. All on the loop's thread.

    sinks: called with each checkpoint that is sent; they must not wait. clock_s: monotonic.
    """

    def __init__(self, sinks: Sequence[Callable[[Signed], None]], clock_s: Callable[[], float]) -> None:
        self._sinks = tuple(sinks)
        self._clock_s = clock_s
        self._synced_seq = 0
        self._written: list[Signed] = []  # not durable yet
        self._newest: Signed | None = None  # durable and not sent yet
        self._due_s = 0.0

    def checkpointed(self, signed: Signed) -> None:
        """A checkpoint was written, perhaps to memory only."""
        self._written.append(signed)
        self.synced(self._synced_seq)

    def synced(self, seq: int) -> None:
        """Lines up to `seq` are durable."""
        self._synced_seq = seq
        while self._written and self._written[0].head.size <= seq:
            self._newest = self._written.pop(0)

    def look(self) -> None:
        """Send the newest one, if there is one and it is time."""
        if self._newest is not None and self._clock_s() >= self._due_s:
            self.send()

    def send(self) -> None:
        """Send it now: at the end, or when it is time."""
        if self._newest is None:
            return
        signed, self._newest = self._newest, None
        self._due_s = self._clock_s() + ANCHOR_S
        for sink in self._sinks:
            sink(signed)


class StoredAnchors:
    """Has the store keep the last note of each journal that has ended: once in each of its lives."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, int] = {}  # by writer: when its last note was signed
        self._epoch = NO_EPOCH

    async def put(
        self, directories: Sequence[Directory], epoch: str, *, older_than_ns: int | None = None
    ) -> None:
        """Put those that are not there yet in this epoch. Raises StoreUnavailable, OSError.

        older_than_ns: of journals that are not here any more, those that were signed before were deleted by their age,
        and their anchors go. Of one that disappeared earlier the anchor stays: it is what tells of it.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._kept.clear()
        notes: dict[str, str] = {}
        signed_ns: dict[str, int] = {}
        for directory in directories:
            if directory.writer not in self._kept:
                with contextlib.suppress(NotANote):  # whoever verifies it will say so
                    if (note := endnotes.text(directory.path)) is not None:
                        signed_ns[directory.writer] = checkpoint.parse(note).head.at_ns
                        notes[directory.writer] = note
        await self._store.put_anchors(notes)
        self._kept |= signed_ns
        if older_than_ns is not None:
            here = {directory.writer for directory in directories}
            old = [name for name, at_ns in self._kept.items() if name not in here and at_ns < older_than_ns]
            await self._store.drop_anchors(old)
            for name in old:
                del self._kept[name]


class _Kept(NamedTuple):
    """What the archive has of one writer. size: lines that its largest anchor proves; ended: it is the end's.

    again_s: when to look again.
    """

    size: int
    ended: bool
    again_s: float


class ArchivedAnchors:
    """Puts notes into the archive; one caller at a time. root: <state_dir>/journal; clock_s: monotonic."""

    def __init__(self, objects: Objects, root: pathlib.Path, clock_s: Callable[[], float]) -> None:
        self._objects = objects
        self._root = root
        self._clock_s = clock_s
        self._kept: dict[str, _Kept] | None = None  # by writer; None: the archive was not asked yet

    def due(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """The writers whose newest note may not be there yet, each with what puts it there.

        Raises OSError, ArchiveError; so does what puts it there.
        """
        if self._kept is None:
            self._kept = self._listed()
        for directory in directories(self._root):
            kept = self._kept.get(directory.writer)
            if kept is None or (
                not kept.ended and (self._clock_s() >= kept.again_s or _has_ended(directory))
            ):
                yield directory.writer, functools.partial(self._put, directory, self._kept)

    def _listed(self) -> dict[str, _Kept]:
        found: dict[str, _Kept] = {}
        for one in self._objects.list(ANCHORS):
            if match := _PATH_PATTERN.fullmatch(one.path):
                writer, size = match[1], int(match[2])
                if writer not in found or size > found[writer].size:
                    found[writer] = _Kept(size, ended=False, again_s=0.0)
        return found

    def _put(self, directory: Directory, kept: dict[str, _Kept]) -> None:
        writer = directory.writer
        found = latest_notes.latest(self._root, writer)
        if not found or (note := found[0].note) is None:
            kept[writer] = _Kept(0, ended=False, again_s=self._clock_s() + ARCHIVE_S)
            return
        one = found[0]
        if writer not in kept or one.size > kept[writer].size:
            _make_durable(directory)
            try:
                self._objects.put_new(f"{ANCHORS}{writer}/{one.size}.note", note.encode())
            except AlreadyThere:
                pass  # an earlier process has put it, or one beside this one
        kept[writer] = _Kept(one.size, one.ended, self._clock_s() + ARCHIVE_S)


def _has_ended(directory: Directory) -> bool:
    return (directory.path / END_NOTE).exists()


def _make_durable(directory: Directory) -> None:
    if _has_ended(directory):  # all before its note is
        return
    for _, path in directory.segment_paths():
        if not is_sealed(path):
            with open(path, "rb") as file:
                _fdatasync(file.fileno())
