"""What there is of one journal to be verified: here, in the archive, or its front there and the rest here."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from metering.archive import archive
from metering.archive.archive import ArchivedDirectory
from metering.archive.manifest import Object
from metering.archive.objects import ArchiveError
from metering.audit import checkpoint, merkle
from metering.audit.checkpoint import NotANote
from metering.audit.endnotes import END_NOTE
from metering.audit.inspection import NO_FRONT, Front
from metering.audit.mirrored import Sorter
from metering.audit.notebook import Claim
from metering.journal import segments
from metering.journal.chain import Segment
from metering.journal.journal import LOCK, SALVAGE, Directory
from metering.journal.segments import Blocks

_DIED = "its writer died, and nobody has closed it"
_COPIED_IN_PART = (
    "this copy ends before it, as one does of a writer that lives, or that was closed by another"
)
_IN_PART = "the archive has only a part of it so far"


class File(NamedTuple):
    """A segment: its name, for a person; the seq of its first line by its name; its bytes."""

    name: str
    first_seq: int
    blocks: Iterable[bytes]

    @property
    def damaged(self) -> bool:
        """Could it not be unpacked, when it was read last?"""
        return isinstance(self.blocks, Blocks) and self.blocks.damaged


class Beside(NamedTuple):
    """A file that stands beside the segments. data: None: it is not there."""

    name: str
    data: bytes | None


class Source(NamedTuple):
    """One journal, ready to be read. path: its directory, or where it is in the archive.

    live: its writer holds the lock. front: lines that are not here. unclosed: what it means if it has no stop.
    lossy: it is a copy in which lines may be missing.
    """

    writer: str
    path: str
    live: bool
    end_note: Beside
    salvage: Beside
    front: Front
    files: list[File]
    unclosed: str
    lossy: bool = False

    def segments(self) -> list[Segment]:
        """The segments, to be walked."""
        return [Segment(file.first_seq, file.blocks) for file in self.files]


def of_directory(directory: Directory, archived: ArchivedDirectory | None) -> Source:
    """A directory; its front from the archive, if it was trimmed and the archive has it from the first line on.

    Raises OSError.
    """
    # In this order: what a writer that ends meanwhile adds is then behind what we ask for, never before it.
    live = is_live(directory.path)
    end_note, salvage = (_beside(directory.path / name) for name in (END_NOTE, SALVAGE))
    front = front_of(directory)
    paths = [(first_seq, path) for first_seq, path in directory.segment_paths() if first_seq > front.size]
    files = [File(str(path), first_seq, Blocks(path)) for first_seq, path in paths]
    if front.size and archived is not None and archived.manifests and archived.manifests[0].first_seq == 1:
        here = files[0].first_seq if files else front.size + 1
        files = [file for file in _archived_files(archived) if file.first_seq < here] + files
        front = NO_FRONT
    return Source(directory.writer, str(directory.path), live, end_note, salvage, front, files, _DIED)


def of_archive(archived: ArchivedDirectory) -> Source:
    """A journal that only the archive has. Raises ArchiveError."""
    end_note, salvage = (_archived_beside(archived, name) for name in (END_NOTE, SALVAGE))
    path = f"{archive.JOURNAL}{archived.writer}"
    files = _archived_files(archived)
    return Source(archived.writer, path, False, end_note, salvage, NO_FRONT, files, _IN_PART)


def of_mirror(mirror: pathlib.Path, writer: str, lines: pathlib.Path) -> Source:
    """The lines of one writer from a file of many. lines: they alone, as `split` has left them."""
    name = f"{mirror} ({writer})"
    file = File(name, 1, Blocks(lines))
    nothing = Beside(name, None)
    return Source(writer, name, False, nothing, nothing, NO_FRONT, [file], _COPIED_IN_PART, lossy=True)


def split(mirror: pathlib.Path, into: pathlib.Path) -> dict[str, pathlib.Path]:
    """Write the lines of each writer, from a file of many, to a file of its own below `into`. Raises OSError."""
    sorter = Sorter()
    paths: dict[str, pathlib.Path] = {}
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for line in stack.enter_context(mirror.open("rb")):
            writer = sorter.writer_of(line.removesuffix(b"\n")) if line.endswith(b"\n") else None
            if writer is None:
                continue
            if writer not in files:
                paths[writer] = into / writer
                files[writer] = stack.enter_context(paths[writer].open("wb"))
            files[writer].write(line)
    return paths


def archive_claims(archived: ArchivedDirectory) -> Iterator[Claim]:
    """What the archive says of a journal: by its manifests, and by the end.note that it has. Raises ArchiveError.

    They are no anchors: nobody has signed a manifest.
    """
    for one in archived.manifests:
        size = one.last_seq - one.lines
        try:
            root = merkle.Tree(size, [bytes.fromhex(node) for node in one.frontier]).root()
        except ValueError:
            root = b""  # no root of anything: it differs from all of them
        source = f"the manifest {archive.manifest_path(archived.writer, one.first_seq)}"
        yield Claim(size, root, source, archived.writer)
    note = _archived_beside(archived, END_NOTE)
    if note.data is not None:
        try:
            head = checkpoint.parse(note.data.decode()).head
        except (NotANote, UnicodeDecodeError) as error:
            raise ArchiveError(f"{note.name} is no note: {error}") from None
        yield Claim(head.size, head.root, f"the archived {note.name}", archived.writer)


def front_claim(directory: Directory) -> Iterator[Claim]:
    """What a trimmed directory says of its own front."""
    if (front := front_of(directory)).size:
        root = merkle.Tree(front.size, front.frontier).root()
        yield Claim(front.size, root, str(directory.path / segments.ARCHIVED), directory.writer)


def front_of(directory: Directory) -> Front:
    """What is in the archive alone."""
    archived = segments.read_archived(directory.path)
    if archived is None or len(archived.frontier) != archived.last_seq.bit_count():
        return NO_FRONT  # one that says nothing explains no missing lines
    try:
        frontier = tuple(bytes.fromhex(node) for node in archived.frontier)
    except ValueError:
        return NO_FRONT
    return Front(archived.last_seq, archived.leaf, frontier)


def is_live(path: pathlib.Path) -> bool:
    """Does a writer hold the lock? Asked for a moment with a shared lock, on a file opened for reading only."""
    try:
        fd = os.open(path / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False  # a copy without it
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _beside(path: pathlib.Path) -> Beside:
    try:
        return Beside(str(path), path.read_bytes())
    except FileNotFoundError:
        return Beside(str(path), None)


def _archived_beside(archived: ArchivedDirectory, name: str) -> Beside:
    """Raises ArchiveError."""
    path = f"{archive.JOURNAL}{archived.writer}/{name}"
    found: Object | None = next((one for one in archived.beside if one.path == path), None)
    return Beside(path, None if found is None else archived.fetch_beside(found))


def _archived_files(archived: ArchivedDirectory) -> list[File]:
    return [
        File(one.segment.path, one.first_seq, segment.blocks)
        for one, segment in zip(archived.manifests, archived.segments(), strict=True)
    ]
