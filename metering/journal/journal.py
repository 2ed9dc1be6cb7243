"""Writers' directories on disk: writing one, reading any, closing dead ones.

    <root>/                            <state_dir>/journal
      w3k7…q/                          one writer: one start of one process
        lock                           flock held for the writer's life
        ballast                        room for the records of open calls (metering/journal/ballast.py), while it lives
        0000000000000001.jsonl.zst     a segment; its name is the seq of its first line (metering/journal/segments.py)
        0000000000004711.jsonl
        salvage.jsonl                  the end, if the writer died: put there whole, by a rename
        end.note                       all of it signed (metering/audit/endnotes.py)

A directory is never appended to after its writer's end. Lines and chain: metering/journal/chain.py.
"""

import base64
import collections
import contextlib
import errno
import fcntl
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from metering.audit.merkle import Tree
from metering.files import sync_directory
from metering.journal import ballast, chain, salvage, segments
from metering.journal.ballast import Ballast
from metering.journal.chain import Chained, Place, Segment
from metering.journal.readable import Readable
from metering.journal.replay import NOTHING, Trimmed
from metering.journal.segments import Blocks, segment_name
from metering.ledger.ledger import Mark
from metering.record import Stop

WRITER_PATTERN = re.compile(r"w[a-z2-7]{16}")
WRITER_RANDOM_BYTES = 10
LOCK = "lock"
SALVAGE = "salvage.jsonl"

_SALVAGE_TMP = "salvage-", ".tmp"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Where there is no fdatasync (macOS), fsync does all that it does and more.
_fdatasync = getattr(os, "fdatasync", os.fsync)


def new_writer_id(random_bytes: bytes) -> str:
    """A writer's name from 10 random bytes: `w` and 16 base32 characters in lower case."""
    assert len(random_bytes) == WRITER_RANDOM_BYTES
    return "w" + base64.b32encode(random_bytes).decode().lower()


class DiskFull(OSError):
    """There is no room for these lines, and nothing of them in the file: they may be written once there is."""


class Journal:
    """One writer's directory, open for appending. One thread only, but for what `sync_work` returns.

    After any OSError but DiskFull the journal is dead: nothing more may be asked of it but `close`.
    """

    def __init__(self, path: pathlib.Path, lock_fd: int, *, segment_bytes_max: int, writers: int) -> None:
        """Use `create`."""
        self.path = path
        self.writer = path.name
        self.ballast = Ballast(path, writers)
        self.sync_before: Callable[[], None] | None = None  # what must be durable before the lines are
        self.bytes = 0  # of all segments, as they were written
        self.dead = False
        self._lock_fd = lock_fd
        self._segment_bytes_max = segment_bytes_max
        self._segment_bytes = 0
        self._first_seq = 1  # of the segment that is written
        self._full: dict[int, int] = {}  # the others: first seq → bytes as they were written
        self._hour: int | None = None
        self._ends = False  # the next write begins a segment
        self._fd = -1
        self._rotated_fds: list[int] = []  # full segments that are not durable yet
        self._new_segment = False

    @classmethod
    def create(
        cls, root: pathlib.Path, *, writer: str, segment_bytes_max: int, writers: int = 1
    ) -> "Journal":
        """Make the writer's directory with its lock held and its first segment, durably.

        The directory gets its name when all of that is there: nobody can find it unlocked and
        take it for a dead one. A crash before leaves a hidden directory that nobody reads.
        writers: so many share the disk (metering/journal/ballast.py).
        Raises OSError, FileExistsError if there is such a writer.
        """
        assert WRITER_PATTERN.fullmatch(writer), writer
        assert segment_bytes_max > 0
        _make_directories(root)
        path, hidden = root / writer, root / f".{writer}"
        if path.exists():
            raise FileExistsError(errno.EEXIST, "there is such a writer", str(path))
        hidden.mkdir()
        try:
            lock_fd = os.open(hidden / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        journal = cls(path, lock_fd, segment_bytes_max=segment_bytes_max, writers=writers)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            journal._fd = _create_segment(hidden, first_seq=1)
            sync_directory(hidden)
            hidden.rename(path)
            sync_directory(root)
        except OSError:
            journal.close()
            for leftover in (hidden, path):
                shutil.rmtree(leftover, ignore_errors=True)
            raise
        return journal

    def discard(self) -> None:
        """Remove the directory of a journal that has no durable line, as far as the disk lets it; close it first."""
        assert self.dead
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, data: bytes, first_seq: int, hour: int | None) -> None:
        """Append whole lines by one write().

        first_seq: of the first of these lines; hour: hours since 1970 (UTC), now. A new segment is
        begun for them if this one `is_full`; None: they are the last ones of this one. A turn is not cut:
        a segment is longer than its size by the rest of a turn.
        Raises DiskFull, also for a short write, and OSError; nothing of these lines is then left in the
        file, unless taking them back fails as well.
        """
        assert not self.dead
        assert data.endswith(b"\n")
        try:
            if hour is not None and self.is_full(hour):
                self._rotate(first_seq)
            if self._hour is None:
                self._hour = hour
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"short write: {written} of {len(data)} bytes")
        except OSError as error:
            # Those who wait for these lines will be told that they were not written.
            taken_back = self._take_back()
            if taken_back and error.errno in _FULL:
                raise DiskFull(*error.args) from error
            self.dead = True
            raise
        self._segment_bytes += written
        self.bytes += written

    def end_segment(self) -> None:
        """Let the next write begin a new segment, unless this one has no line yet."""
        self._ends = self._hour is not None

    def is_full(self, hour: int) -> bool:
        """Will a write at this hour begin a new segment? This one is at its size, of another hour, or to end."""
        if self._hour is None:
            return False
        if self._ends:
            return True
        if hour == self._hour:
            return self._segment_bytes >= self._segment_bytes_max
        # A clock that was set back begins a segment too, but not one that plays around the full hour.
        another_hour = hour > self._hour or hour < self._hour - 1
        return another_hour or self._segment_bytes >= self._segment_bytes_max

    def _take_back(self) -> bool:
        try:
            os.ftruncate(self._fd, self._segment_bytes)
        except OSError:
            return False
        return True

    def _rotate(self, first_seq: int) -> None:
        try:
            fd = _create_segment(self.path, first_seq)
        except OSError as error:
            if error.errno in _FULL:  # without room for a name the segment that there is grows on
                return
            raise
        self._full[self._first_seq], self._first_seq = self._segment_bytes, first_seq
        self._rotated_fds.append(self._fd)
        self._fd, self._segment_bytes, self._hour, self._new_segment = fd, 0, None, True
        self._ends = False

    def sync_work(self) -> Callable[[], None]:
        """What makes all lines written so far durable: to be called once, in any thread.

        Older segments come first, so no line is durable before the ones it is chained to. Only one
        piece of work may be under way; it raises OSError, and must then not be tried again: the
        kernel forgets pages that it could not write.
        """
        assert not self.dead
        rotated_fds, self._rotated_fds = self._rotated_fds, []
        new_segment, self._new_segment = self._new_segment, False
        fd, path, sync_before = self._fd, self.path, self.sync_before

        def work() -> None:
            if sync_before is not None:
                sync_before()
            try:
                for rotated_fd in rotated_fds:
                    _fdatasync(rotated_fd)
            finally:
                for rotated_fd in rotated_fds:
                    os.close(rotated_fd)
            if new_segment:
                sync_directory(path)
            _fdatasync(fd)

        return work

    def freed_bytes(self) -> int:
        """How much less than `bytes` the segments take, since they were sealed or are in the archive alone.

        In any thread. Raises OSError.
        """
        full = list(self._full.items())
        return sum(written - segments.size(self.path / segment_name(first)) for first, written in full)

    def close(self) -> None:
        """Close the files, give back the ballast, let go of the lock. Syncs nothing. Idempotent."""
        self.dead = True
        self.ballast.close()
        for fd in (*self._rotated_fds, self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._rotated_fds, self._fd, self._lock_fd = [], -1, -1


class Directory(Readable):
    """A writer's directory on disk as it can be read: of a live writer up to its last whole line."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.writer = path.name

    def __repr__(self) -> str:
        return f"Directory({self.writer})"

    @property
    def closed_by_salvage(self) -> bool:
        """Did the writer die, and somebody close its directory since?"""
        return (self.path / SALVAGE).exists()

    @property
    def complete(self) -> bool:
        """Will no line be added any more? So it is once the last one is a `stop`.

        Of a directory's last segment it is known without a look: it is sealed only then.
        """
        if self.closed_by_salvage:
            return True
        paths = self.segment_paths()
        if paths and segments.is_sealed(paths[-1][1]):
            return True
        tail = self.tail()
        return tail is not None and isinstance(tail.line, Stop)

    def tree_before(self) -> Tree:
        """The Merkle tree of the lines before those that are here; empty, if it was not trimmed.

        Raises ValueError: `archived.json` has a frontier that is none.
        """
        archived = segments.read_archived(self.path)
        if archived is None:
            return Tree()
        return Tree(archived.last_seq, [bytes.fromhex(node) for node in archived.frontier])

    def tail(self) -> Chained | None:
        """The last whole line, without reading all those before it; None if there is none.

        The chain is not verified, but where the directory's end is no line it is walked in full.
        """
        paths = [path for _, path in self.segment_paths()]
        if self.closed_by_salvage:
            paths.append(self.path / SALVAGE)
        for path in reversed(paths):
            line = segments.last_line(path)
            if line is None:
                continue
            try:
                found = chain.link(line)
            except chain.NotALine:
                break
            return Chained(line, chain.decode(line), found.at_ns, found.seq, chain.leaf(line))
        return next(iter(collections.deque(self.chained(), maxlen=1)), None)

    def file_of(self, seq: int) -> pathlib.Path:
        """The file that holds this seq, if the directory does."""
        salvaged = self.salvaged()
        if salvaged and salvaged.first_seq <= seq:
            return self.path / SALVAGE
        before = [path for first_seq, path in self.segment_paths() if first_seq <= seq]
        return before[-1] if before else self.path / segment_name(1)

    def segments(self) -> list[Segment]:
        """Segments in order, without the salvage; those that are archived and only wait to be deleted, too."""
        return [Segment(first_seq, Blocks(path)) for first_seq, path in self.segment_paths()]

    def segment_paths(self) -> list[tuple[int, pathlib.Path]]:
        """Files of the segments in order, each with the seq of its first line (metering/journal/segments.py)."""
        return segments.paths(self.path)

    def begin(self) -> Place:
        """Where it was trimmed, if it was; else its start."""
        archived = segments.read_archived(self.path)
        return Place(archived.last_seq, archived.leaf) if archived else chain.START

    @property
    def trimmed(self) -> Trimmed:
        """As Readable.trimmed, by `archived.json`."""
        archived = segments.read_archived(self.path)
        if archived is None:
            return NOTHING
        try:
            marks = {tenant: Mark.parse(text) for tenant, text in (archived.marks or {}).items()}
        except ValueError:
            return Trimmed(archived.last_seq, None)
        return Trimmed(archived.last_seq, None if archived.marks is None else marks)

    def salvaged(self) -> Segment | None:
        """The salvage's lines; None if there are none, or none that anything could continue into."""
        blocks = Blocks(self.path / SALVAGE)
        try:
            return Segment(chain.link(chain.first_line(blocks)).seq, blocks)
        except (FileNotFoundError, chain.NotALine):
            return None


def directories(root: pathlib.Path) -> list[Directory]:
    """All writers' directories under `root`, by name; none if there is no `root`."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    return [Directory(root / name) for name in names if WRITER_PATTERN.fullmatch(name)]


def tree_bytes(root: pathlib.Path, *, but: str) -> int:
    """Bytes of all files under `root` but those of the writer `but`, and but ballast."""
    total = 0
    for path, names, files in os.walk(root):
        if but in names:
            names.remove(but)
        for file in files:
            if file == ballast.NAME:
                continue
            with contextlib.suppress(FileNotFoundError):  # a temporary one, renamed meanwhile
                total += os.lstat(os.path.join(path, file)).st_size
    return total


class Salvaged(NamedTuple):
    """A directory that was closed: calls that were lost with its writer; bytes that were no lines."""

    directory: Directory
    lost: int
    torn_bytes: int


def salvage_dead(root: pathlib.Path) -> list[Salvaged]:
    """Close each directory under `root` whose writer is dead. Reads no live one; again is harmless.

    Dead: its lock is free, it has no salvage.jsonl, and its last line is no `stop`.
    Raises OSError; directories before that one are closed.
    """
    closed = (close_dead(directory) for directory in directories(root))
    return [one for one in closed if one is not None]


def close_dead(directory: Directory) -> Salvaged | None:
    """Close a directory if its writer is dead (see `salvage_dead`); None: it lives, or it is closed already.

    Only on the host that it lived on does its lock tell. Raises OSError.
    """
    if directory.closed_by_salvage:
        return None
    with lock_if_free(directory.path / LOCK) as locked:
        if not locked:
            return None
        (directory.path / ballast.NAME).unlink(missing_ok=True)  # room, if there is none, for the salvage
        return None if directory.complete else _close(directory)


def _close(directory: Directory) -> Salvaged:
    """Put salvage.jsonl into a directory whose lock is held."""
    for leftover in directory.path.glob("*".join(_SALVAGE_TMP)):
        leftover.unlink()
    found = directory.segments()
    begin = directory.begin()  # asked second: the front may be trimmed meanwhile
    here = [one for one in found if one.first_seq > begin.seq]
    closed = salvage.close(chain.walk(here, *begin), begin)
    # What it is chained to may still be only in memory, and is about to be billed.
    for _, path in directory.segment_paths():
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:  # it was sealed, durably
            _fdatasync(file.fileno())
    prefix, suffix = _SALVAGE_TMP
    fd, temporary = tempfile.mkstemp(suffix, prefix, directory.path)
    with open(fd, "wb") as out:
        out.write(closed.data)
        out.flush()
        os.fsync(fd)
    os.rename(temporary, directory.path / SALVAGE)
    sync_directory(directory.path)
    return Salvaged(directory, closed.lost, closed.torn_bytes)


@contextlib.contextmanager
def lock_if_free(path: pathlib.Path) -> Iterator[bool]:
    """Hold the lock of a writer's directory; False: its writer, or another caretaker, has it. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _create_segment(path: pathlib.Path, first_seq: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
    return os.open(path / segment_name(first_seq), flags, 0o644)


def _make_directories(path: pathlib.Path) -> None:
    """Make a directory and what is missing above it, durably."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)
