"""`audit export`: the lines of a period as they stand in the journals, with their places. One object a line:

    {"leaf":"<SHA-256(0x00 || line)>","line":{…the very bytes…},"seq":17,"writer":"wq2l…"}

In the order of writers and seq, so the same journals give the same bytes. A line's moment is its `at_ns`, of a
record that of its end, as in the ledger. Beside it a manifest says what is in it and which notes sign it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from metering.journal.chain import Broken, Chained
from metering.journal.readable import Readable
from metering.record import Admitted, CallRecord, Checkpoint, Refused, Stop
from metering.units import NS_PER_HOUR

MANIFEST_SUFFIX = ".manifest.json"
_OF_TENANTS = Admitted | CallRecord | Refused


def placed(writer: str, chained: Chained) -> bytes:
    """A line with its place, as the file has it."""
    place = chained.leaf.encode(), chained.data, chained.seq, writer.encode()
    return b'{"leaf":"%s","line":%s,"seq":%d,"writer":"%s"}\n' % place


class Wanted(NamedTuple):
    """Which lines. hours: since 1970 (UTC); tenant: None: of all tenants, and the lines that have none."""

    hours: range
    tenant: str | None

    def takes(self, chained: Chained) -> bool:
        """Is this line one of them?"""
        line = chained.line
        if self.tenant is not None and not (isinstance(line, _OF_TENANTS) and line.tenant == self.tenant):
            return False
        at_ns = line.finished_ns if isinstance(line, CallRecord) else chained.at_ns
        return at_ns // NS_PER_HOUR in self.hours


class Part(msgspec.Struct, kw_only=True):
    """What an export has of one journal. note: the first one that signs all of it; None: none does yet."""

    first_seq: int
    last_seq: int
    lines: int = 0
    note: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside an export. kinds: lines of each; sha256: of the export's bytes, hex; writers: by name."""

    from_hour: str
    kinds: Mapping[str, int]
    lines: int
    sha256: str
    tenant: str | None
    to_hour: str
    v: int = 1
    vkeys: tuple[str, ...]
    writers: Mapping[str, Part]


class LineExport:
    """Gathers lines, in passing: what of them goes into the file, and what the manifest will say of it."""

    def __init__(self, wanted: Wanted, on_broken: Callable[[Broken], None] = lambda _: None) -> None:
        """on_broken: told of each journal that was altered after it was closed: what is behind that is left out."""
        self.lines = 0
        self.kinds: dict[str, int] = {}
        self.writers: dict[str, Part] = {}
        self._wanted = wanted
        self._on_broken = on_broken
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of all that was given out so far, hex."""
        return self._sha256.hexdigest()

    def of(self, directories: Iterable[Readable]) -> Iterator[bytes]:
        """The lines of these journals, each with its newline. Raises OSError."""
        for directory in sorted(directories, key=lambda one: one.writer):
            closed = directory.complete  # asked before it is read: a live one may get its `stop` meanwhile
            end: Chained | None = None
            for end in directory.chained():
                if isinstance(end.line, Checkpoint):
                    self._signed(directory.writer, end.line.note)
                if self._wanted.takes(end):
                    yield self._take(directory.writer, end)
            if closed and not (end and isinstance(end.line, Stop)):
                self._on_broken(Broken(directory.writer, end.seq if end else 0))

    def end(self, notes: Mapping[str, str]) -> None:
        """All lines were given out. notes: the end.note of each journal that has one."""
        for writer, note in notes.items():
            self._signed(writer, note)

    def _take(self, writer: str, chained: Chained) -> bytes:
        part = self.writers.setdefault(writer, Part(first_seq=chained.seq, last_seq=chained.seq))
        part.lines += 1
        part.last_seq, part.note = chained.seq, None  # a note before this line does not sign it
        kind = chained.line.kind if chained.line else "unknown"
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.lines += 1
        written = placed(writer, chained)
        self._sha256.update(written)
        return written

    def _signed(self, writer: str, note: str) -> None:
        part = self.writers.get(writer)
        if part is not None and part.note is None:
            part.note = note
