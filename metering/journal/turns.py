"""Turns of the journal: who waits for a line, and the lines of one write, chained. Pure."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import msgspec

from metering.audit.notary import Notary, Signed
from metering.journal import chain
from metering.record import Admitted, Checkpoint, Line, Refused, Tick


class Entry(Protocol):
    """Somebody who waits for a line to be written."""

    def line(self, seq: int, prev: str) -> Line:
        """Make the line for this place in the chain. Called once, at the flush; must not append."""

    def written(self) -> None:
        """The line is in the file. May append."""

    def failed(self, error: OSError) -> None:
        """The line is not in the file and never will be."""


class Note:
    """A line that nobody waits for. written: called once it is in the file."""

    def __init__(self, line: Callable[[int, str], Line], written: Callable[[], None] = lambda: None) -> None:
        self.line = line
        self._written = written

    def written(self) -> None:
        self._written()

    def failed(self, error: OSError) -> None:
        pass


class Checkpointing:
    """The checkpoint of all lines that are written when it is made. It must be the first line of its turn."""

    def __init__(
        self, notary: Notary, clock: Callable[[], int], on_written: Callable[[Signed], None]
    ) -> None:
        self._notary = notary
        self._clock = clock
        self._on_written = on_written
        self._signed: Signed | None = None

    def line(self, seq: int, prev: str) -> Line:
        assert seq == self._notary.size + 1
        at_ns = self._clock()
        self._signed = self._notary.checkpoint(at_ns)
        return Checkpoint(at_ns=at_ns, note=self._signed.note, prev=prev, seq=seq)

    def written(self) -> None:
        assert self._signed is not None
        self._on_written(self._signed)

    def failed(self, error: OSError) -> None:
        pass


class Turn(NamedTuple):
    """What one flush writes. lines: each with its seq and leaf; waiting: who is told; data: the lines' bytes.

    entries: for each of the lines, whose it is. Of `waiting` some may have no line: a refusal that found no room.
    hour: since 1970 (UTC); None: these are a segment's last lines.
    """

    lines: list[tuple[Line, int, str]]
    entries: list[Entry]
    waiting: list[Entry]
    data: bytes
    hour: int | None


class Essential(NamedTuple):
    """A turn cut down to what must be written. not_admitted: who is told so; left_out: kinds of the other lines."""

    turn: Turn
    not_admitted: list[Entry]
    left_out: list[str]


def essential(turn: Turn, seq: int, leaf: str) -> Essential:
    """What of a turn must be written though the disk is full: all but admissions, refusals and ticks.

    A call that is not admitted has not begun; a refused request was answered; a tick tells nothing new. The lines
    that stay are chained anew. seq, leaf: of the line before.
    """
    lines: list[tuple[Line, int, str]] = []
    entries: list[Entry] = []
    chunks: list[bytes] = []
    not_admitted: list[Entry] = []
    left_out: list[str] = []
    for (line, _, _), entry in zip(turn.lines, turn.entries, strict=True):
        if isinstance(line, Admitted):
            not_admitted.append(entry)
        elif isinstance(line, Refused | Tick):
            left_out.append(line.kind)
        else:
            placed = msgspec.structs.replace(line, prev=leaf, seq=seq + 1)
            data = chain.encode(placed)
            seq, leaf = seq + 1, chain.leaf(data[:-1])
            lines.append((placed, seq, leaf))
            entries.append(entry)
            chunks.append(data)
    waiting = without(turn.waiting, not_admitted)
    return Essential(Turn(lines, entries, waiting, b"".join(chunks), turn.hour), not_admitted, left_out)


def without(entries: Iterable[Entry], these: Iterable[Entry]) -> list[Entry]:
    """Those that are not among `these`, by identity."""
    ids = {id(entry) for entry in these}
    return [entry for entry in entries if id(entry) not in ids]
