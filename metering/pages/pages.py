"""A worker's metrics page: its cells in a file that others can read, and that outlives it.

The file `<state_dir>/pages/<writer>.page` is mapped by its worker; after a kill -9 the kernel still
has it. Numbers are little-endian, sizes in bytes:

    +--------+-----------------------------------------------------------------+
    | file   | magic 8 | shapes 16 | writer 24 | defs room 8 | cells room 8    |
    +--------+-----------------------------------------------------------------+
    | head 0 | crc 4 | defs crc 4 | turn 8 | seq 8 | defs 8 | cells 8 | leaf 32 |
    | head 1 | the same                                                        |
    +--------+-----------------------------------------------------------------+
    | defs   | a JSON line ["<family>",["<label value>",...]] for each series  |
    +--------+-----------------------------------------------------------------+
    | half 0 | signed 64-bit cells, the series one behind the other            |
    | half 1 | the same                                                        |
    +--------+-----------------------------------------------------------------+

Turns are published to the two halves in alternation, each with the journal's seq and leaf that it
stands for. A half counts only if `crc` is right (CRC-32 of the rest of its head and of its cells),
so neither a kill in mid-write nor the order in which a processor shows its stores can make a torn
half look whole. Series are only ever added: their definitions grow behind the ones that a half
counts on (`defs` long, checked by `defs crc`). When the room is used up a new file with twice as
much is made beside the old one, whole, and renamed over it.

A live worker holds flock on its page: that is how others know whose gauges still hold.
"""

import fcntl
import mmap
import os
import pathlib
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from metering.journal.journal import WRITER_PATTERN
from metering.pages import families
from metering.pages.families import Families, Gauges, Series, Totals
from metering.record import Line

SUFFIX = ".page"
_TEMPORARY_SUFFIX = ".tmp"
DEFS_ROOM = 64 * 1024
CELLS_ROOM = 4096

_MAGIC = b"WBPAGE1\n"
_FILE = struct.Struct("<8s16s24sQQ")
_HEAD = struct.Struct("<IIQQQQ32s")
_HEAD_TAIL = struct.Struct("<IQQQQ32s")  # all of it but its first field
_HEAD_BYTES = _HEAD.size
_HEADS = (_FILE.size, _FILE.size + _HEAD.size)
_DEFS = _FILE.size + 2 * _HEAD.size
_CRC_BYTES = 4  # the head's first field, which is not part of what it checks
_READS_MAX = 1_000


class PageError(Exception):
    """A page that cannot be read; the message says which and why."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A page as it stood after one turn: all lines up to `seq`, whose leaf is `leaf`, are in `totals`."""

    writer: str
    seq: int
    leaf: str
    totals: Totals
    live: bool


class Page:
    """The page of this process, as a fold of its journal: `fold` each line, `turn` after each flush.

    on_stuck: called when the page could not grow (a full disk), and not again until it could. The page
    then stays as it was: it is behind its journal, never wrong, and each turn tries again.
    """

    def __init__(
        self,
        pages_dir: pathlib.Path,
        writer: str,
        *,
        on_stuck: Callable[[OSError], None],
        defs_room: int = DEFS_ROOM,
        cells_room: int = CELLS_ROOM,
    ) -> None:
        """Make the page and take its lock. Raises OSError."""
        self._families = Families()
        self._cells = self._families.cells
        self.gauges = Gauges(self._cells)
        self.exceeded = self._families.exceeded
        self.unwritten = self._families.unwritten
        self.captured = self._families.captured
        self.not_mirrored = self._families.not_mirrored
        self._dir = pages_dir
        self._writer = writer
        self._on_stuck = on_stuck
        self._stuck = False
        self._seq = 0
        self._leaf = "0" * 64
        self._counted = True  # something, since it was last shown: at first, that it lives
        self._turn = 0
        self._defs = bytearray()
        self._defs_crc = 0
        self._defined = 0
        pages_dir.mkdir(parents=True, exist_ok=True)
        self._file = _File.create(pages_dir, writer, defs_room, cells_room)
        self._publish_both()
        self._file.rename()

    def fold(self, line: Line, seq: int, leaf: str) -> None:
        """Count a line that is in the journal. Others see it after `turn`."""
        assert seq > self._seq
        if line.kind == "call":
            self._families.count(line)
        else:
            self._families.observe(line)
        self._seq, self._leaf = seq, leaf
        self._counted = True

    def turn(self, seq: int, leaf: str) -> None:
        """A flush is over: all lines up to the one at `seq` have been folded. Show them, if any counts."""
        assert seq >= self._seq
        self._seq, self._leaf = seq, leaf
        if self._counted:
            self._counted = False
            self.publish()

    def publish(self) -> None:
        """Show the cells as they are now, gauges among them."""
        if len(self._cells.series) > self._defined:
            self._define()
        if self._file.has_room(len(self._defs), len(self._cells.values)) or self._grow():
            self._publish()

    def close(self) -> None:
        """Let go of the page, idempotent. The file stays until its journal is retired (metering/pages/gone.py)."""
        self._file.close()

    def _define(self) -> None:
        """Encode the series that appeared since the last turn."""
        series = self._cells.series
        for one in series[self._defined :]:
            line = msgspec.json.encode(one) + b"\n"
            self._defs += line
            self._defs_crc = zlib.crc32(line, self._defs_crc)
        self._defined = len(series)

    def _publish(self) -> None:
        self._turn += 1
        self._file.write_defs(self._defs)
        cells = self._cells.values
        tail = _HEAD_TAIL.pack(
            self._defs_crc,
            self._turn,
            self._seq,
            len(self._defs),
            len(cells),
            bytes.fromhex(self._leaf),
        )
        self._file.write_half(self._turn & 1, tail, cells.tobytes())

    def _publish_both(self) -> None:
        self._publish()
        self._publish()

    def _grow(self) -> bool:
        """Go on in a file with more room. returns: False if none could be made."""
        old = self._file
        defs_room, cells_room = old.defs_room, old.cells_room
        while len(self._defs) > defs_room:
            defs_room *= 2
        while len(self._cells.values) > cells_room:
            cells_room *= 2
        try:
            self._file = _File.create(self._dir, self._writer, defs_room, cells_room)
            self._publish_both()
            self._file.rename()
        except OSError as error:
            if self._file is not old:
                self._file.close()
                self._file = old
            if not self._stuck:
                self._stuck = True
                self._on_stuck(error)
            return False
        self._stuck = False
        old.close()
        return True


class _File:
    """A mapped page file: where the parts lie, and nothing of what they mean."""

    def __init__(
        self, path: pathlib.Path, temporary: pathlib.Path, fd: int, defs_room: int, cells_room: int
    ) -> None:
        self.defs_room = defs_room
        self.cells_room = cells_room
        self._path = path
        self._temporary = temporary
        self._fd = fd
        self._map = mmap.mmap(fd, _size(defs_room, cells_room))
        self._halves = [_half(half, defs_room, cells_room) for half in (0, 1)]
        self._defs_written = 0

    @classmethod
    def create(cls, pages_dir: pathlib.Path, writer: str, defs_room: int, cells_room: int) -> "_File":
        """A locked file under a temporary name, its blocks reserved. Raises OSError."""
        path = path_of(pages_dir, writer)
        temporary = path.with_suffix(_TEMPORARY_SUFFIX)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A store into a mapped hole on a full disk is a SIGBUS: the blocks are taken here, or not at all.
            os.posix_fallocate(fd, 0, _size(defs_room, cells_room))
            os.pwrite(
                fd, _FILE.pack(_MAGIC, families.shapes().encode(), writer.encode(), defs_room, cells_room), 0
            )
            return cls(path, temporary, fd, defs_room, cells_room)
        except OSError:
            os.close(fd)
            temporary.unlink()
            raise

    def has_room(self, defs: int, cells: int) -> bool:
        return defs <= self.defs_room and cells <= self.cells_room

    def write_defs(self, defs: bytearray) -> None:
        """Append what is new of `defs`; what readers already count on is not touched."""
        if len(defs) > self._defs_written:
            start, end = _DEFS + self._defs_written, _DEFS + len(defs)
            self._map[start:end] = defs[self._defs_written :]
            self._defs_written = len(defs)

    def write_half(self, half: int, head_tail: bytes, cells: bytes) -> None:
        crc = zlib.crc32(cells, zlib.crc32(head_tail))
        start, head = self._halves[half], _HEADS[half]
        self._map[start : start + len(cells)] = cells
        self._map[head : head + _HEAD_BYTES] = crc.to_bytes(_CRC_BYTES, "little") + head_tail

    def rename(self) -> None:
        """Put the file where others look for it."""
        self._temporary.rename(self._path)

    def close(self) -> None:
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)
            self._fd = -1


def path_of(pages_dir: pathlib.Path, writer: str) -> pathlib.Path:
    return pages_dir / f"{writer}{SUFFIX}"


def files(pages_dir: pathlib.Path) -> list[pathlib.Path]:
    """The pages of all writers, and what a kill left of half-made ones; their stems are the writers."""
    found = [*pages_dir.glob(f"*{SUFFIX}"), *pages_dir.glob(f"*{_TEMPORARY_SUFFIX}")]
    return sorted(path for path in found if WRITER_PATTERN.fullmatch(path.stem))


def is_live(path: pathlib.Path) -> bool:
    """Does a process hold this page file? Raises FileNotFoundError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return _is_locked(fd)
    finally:
        os.close(fd)


def read(path: pathlib.Path) -> Reading:
    """Read a page of any process, as it stood after its last turn or a later one.

    Raises FileNotFoundError if there is none, PageError if it is damaged or of another layout.
    """
    for _ in range(_READS_MAX):
        fd = os.open(path, os.O_RDONLY)
        try:
            live = _is_locked(fd)
            # Whoever goes on in a larger file lets go of the old one too; he is not dead.
            if live or os.path.samestat(os.fstat(fd), path.stat()):
                return _read(fd, path, live)
        finally:
            os.close(fd)
    raise PageError(f"{path.name}: it was replaced in {_READS_MAX} reads")


def _read(fd: int, path: pathlib.Path, live: bool) -> Reading:
    before = b""
    for _ in range(_READS_MAX):
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        best, torn = _newest(data)
        # Beside a torn half, the whole one may be older than a half that was shown before: its writer may
        # have gone on between our looks at the two. Only if nothing moved is it the newest there is.
        if best is not None and (not torn or data == before):
            return _reading(path, data, best, live)
        if data == before:
            raise PageError(f"{path.name}: no half is whole")
        before = data
    raise PageError(f"{path.name}: it changed in {_READS_MAX} reads")


class _Half(NamedTuple):
    """A half whose checks hold."""

    turn: int
    seq: int
    leaf: str
    defs: bytes
    cells: memoryview


def _newest(data: bytes) -> tuple[_Half | None, bool]:
    """The whole half of the latest turn, if any, and whether the other one is torn."""
    if len(data) < _DEFS or not data.startswith(_MAGIC):
        return None, True
    halves = [_check(data, half) for half in (0, 1)]
    whole = [half for half in halves if half is not None]
    return max(whole, key=lambda half: half.turn, default=None), None in halves


def _check(data: bytes, half: int) -> _Half | None:
    *_, defs_room, cells_room = _FILE.unpack_from(data)
    if len(data) != _size(defs_room, cells_room):
        return None
    head = _HEADS[half]
    crc, defs_crc, turn, seq, defs, cells, leaf = _HEAD.unpack_from(data, head)
    if defs > defs_room or cells > cells_room:
        return None
    start = _half(half, defs_room, cells_room)
    view = memoryview(data)
    found = view[start : start + 8 * cells]
    if zlib.crc32(found, zlib.crc32(view[head + _CRC_BYTES : head + _HEAD.size])) != crc:
        return None
    definitions = data[_DEFS : _DEFS + defs]
    if zlib.crc32(definitions) != defs_crc:
        return None
    return _Half(turn, seq, leaf.hex(), definitions, found.cast("q"))


def _reading(path: pathlib.Path, data: bytes, half: _Half, live: bool) -> Reading:
    _, shapes, writer, *_ = _FILE.unpack_from(data)
    if shapes.decode("ascii", "replace") != families.shapes():
        raise PageError(f"{path.name}: its families are laid out otherwise")
    series = msgspec.json.decode(b"[%s]" % half.defs[:-1].replace(b"\n", b","), type=list[Series])
    return Reading(
        writer=writer.rstrip(b"\0").decode(),
        seq=half.seq,
        leaf=half.leaf,
        totals=families.totals_of(series, half.cells),
        live=live,
    )


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _half(half: int, defs_room: int, cells_room: int) -> int:
    return _DEFS + defs_room + half * 8 * cells_room


def _size(defs_room: int, cells_room: int) -> int:
    return _DEFS + defs_room + 2 * 8 * cells_room
