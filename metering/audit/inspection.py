"""Reading one writer's journal to see whether it is whole: chain, tree, signatures, one record a call. Pure.

    segments, salvage.jsonl ──▶ chain: seq and prev of each line ──▶ leaves ──▶ tree
    checkpoint lines, end.note ────────────── size and root they sign ────────▶ = ?
    claims of others (anchors, `start.ended`, manifests) ── size and root ────▶ = ?

Each line is read once, hashed once and put into the tree once; what is kept is the tree's frontier, the open calls
and a bit for each call, so a journal of any length is read in little memory. After the first line that does not
continue the chain nothing counts; of the lines behind it only the notes are looked at: they say what has been there.
"""

import enum
import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from metering.audit import merkle
from metering.audit.callbook import CallBook
from metering.audit.findings import Finding, Findings, Place, Verdict, What
from metering.audit.notebook import Claim, NoteBook
from metering.audit.trust import Trust
from metering.journal import chain
from metering.record import Admitted, CallRecord, Checkpoint, Event, Line, Outcome, Refused, Start, Stop


class State(enum.StrEnum):
    """How a journal ends."""

    CLOSED = "closed"  # by its writer
    SALVAGED = "salvaged"  # by who found it dead
    OPEN = "open"  # its writer lives
    DEAD = "dead"  # and nobody has closed it


class Front(NamedTuple):
    """Lines that are not here: how many, the last one's leaf, and the frontier of the tree of all of them."""

    size: int
    leaf: str
    frontier: tuple[bytes, ...]


NO_FRONT = Front(0, chain.ZEROS, ())


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one journal.

    lines: those that the chain holds, without `starts_after` before them that are not here. calls: admissions;
    records: of calls; lost: of them, by the salvage. signed_size, stolen_size: so many lines, from the first, are
    signed by a key that counts; by one that was stolen later. met: claims that were found to be true. root: of all.
    retired: writers whose journals were deleted by their age, as its `event` lines tell.
    named_keys: vkeys that its `event` lines name as new ones, where a key that counts has signed those lines.
    torn_bytes: behind the last line, less trailing NULs. unknown: lines of kinds, or versions, not known here.
    """

    calls: int
    checkpoints: int
    findings: tuple[Finding, ...]
    findings_left_out: int
    first_ns: int | None
    last_ns: int | None
    lines: int
    lost: int
    met: tuple[Claim, ...]
    named_keys: tuple[str, ...]
    records: int
    refused: int
    retired: tuple[str, ...]
    root: bytes
    signed_size: int
    start: Start | None
    starts_after: int
    state: State
    stolen_size: int
    torn_bytes: int
    unknown: int
    verdict: Verdict
    writer: str

    @property
    def size(self) -> int:
        """Lines from the very first."""
        return self.starts_after + self.lines


class _Break(NamedTuple):
    """Where the chain ends before the files do. whole: what stands there is a line, if not the right one."""

    place: Place
    what: What
    says: str
    whole: bool


class Inspection:
    """One writer's journal, file by file, in order.

    where: of its directory, for a person. trust: the keys; None: there are none, and signatures can't be looked at.
    claims: from elsewhere, on this writer. lossy: it is a copy in which lines may be missing, which proves nothing.
    """

    def __init__(
        self,
        writer: str,
        where: str,
        trust: Trust | None,
        claims: Iterable[Claim] = (),
        front: Front = NO_FRONT,
        *,
        lossy: bool = False,
    ) -> None:
        self._writer = writer
        self._front = front
        self._findings = Findings(writer)
        self._calls = CallBook(writer, self._findings, front=front.size > 0)
        self._notes = NoteBook(writer, trust, claims, self._findings, front_size=front.size)
        self._seq, self._leaf = front.size, front.leaf
        self._tree = merkle.Tree(front.size, front.frontier)
        self._lossy = lossy
        self._break: _Break | None = None
        self._behind = 0  # whole lines after the break
        self._torn_bytes = 0
        self._place = Place(where)  # of the last line of the chain
        self._start: Start | None = None
        self._stop: Stop | None = None
        self._stop_seq = 0
        self._salvaged = False
        self._lost = self._refused = self._unknown = 0
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._retired: list[str] = []
        self._named_keys: list[tuple[int, str]] = []  # the line's seq, the vkey

    def find(self, what: What, place: Place, says: str) -> None:
        """Something is amiss that only who reads the files can know."""
        self._findings.add(what, place, says)

    def read(self, file: str, first_seq: int, blocks: Iterable[bytes]) -> None:
        """The next segment. first_seq: what its name says of its first line; blocks: its bytes, cut anywhere."""
        if self._break is None and first_seq != self._seq + 1:
            self._break = _gap(Place(file), self._seq, first_seq)
        rest, number = b"", 0
        for block in blocks:
            *lines, rest = (rest + block).split(b"\n")
            taken = 0
            if self._break is None:
                taken = self._take(lines, file, number)
                if taken < len(lines):
                    place = Place(file, number + taken + 1)
                    self._break = _diagnosis(place, self._seq, self._leaf, lines[taken:])
            self._pass_over(lines[taken:], file, number + taken)
            number += len(lines)
        if kept := rest.rstrip(b"\0"):
            self._torn_bytes += len(kept)
            if self._break is None:
                self._break = _Break(
                    Place(file, number + 1), What.NOT_CLOSED, "the line is not finished", whole=False
                )

    def read_salvage(self, file: str, data: bytes) -> None:
        """salvage.jsonl, the last file. It continues the last good line; what segments hold behind that is torn."""
        first = _link(data.partition(b"\n")[0])
        first_seq = self._seq + 1 if first is None else first.seq
        if self._break is not None and first_seq == self._seq + 1:
            self._tell_torn_lines(self._break)
            self._break, self._behind = None, 0
        self._salvaged = True
        self.read(file, first_seq, (data,))

    def _tell_torn_lines(self, torn: _Break) -> None:
        """A crash leaves half a line. Whole ones that were left out too are what a disk, or a person, has cut off."""
        if torn.whole or self._behind:
            lines = "1 whole line is" if self._behind == 1 else f"{self._behind} whole lines are"
            says = f"{torn.says}; from here on {lines} in the torn tail, which the closing left out"
            self._findings.add(What.TORN_LINES, torn.place, says)

    def finish(
        self,
        *,
        live: bool,
        end_note: str | None,
        end_note_file: str,
        unclosed: str = "its writer died, and nobody has closed it",
    ) -> Inspected:
        """All files have been read.

        live: its writer holds the lock. end_note: what it holds; None: there is none. unclosed: what it means if
        there is no stop.
        """
        at_end = Place(end_note_file)
        self._notes.compare(self._seq, self._tree.root(), self._place)
        self._notes.end(self._seq, self._place)
        if end_note is not None:
            self._notes.check(end_note, self._seq, self._tree.root(), at_end)
        self._check_chain(live)
        if self._stop is None:
            self._check_open(live, unclosed)
        elif self._stop_seq != self._seq:
            says = f"there are lines behind the stop (seq {self._stop_seq})"
            self._findings.add(What.OUT_OF_PLACE, self._place, says)
        else:
            self._calls.close()
            if end_note is None and not live:
                self._findings.add(What.NO_END_NOTE, at_end, "it is closed, and no end.note signs all of it")
        return self._inspected(live)

    def _take(self, lines: Sequence[bytes], file: str, before: int) -> int:
        """Take lines from the front as long as they continue the chain; returns how many. before: lines of the file."""
        sha256, typed, calls, notes = hashlib.sha256, chain.typed, self._calls, self._notes
        seq, prev, at_ns = self._seq, self._leaf, self._last_ns
        leaves: list[bytes] = []
        next_size = notes.next_size
        number = before
        for data in lines:
            try:
                line = typed(data)
            except chain.NotALine:
                break
            if line.seq != seq + 1 or line.prev != prev:
                break
            if seq == next_size:
                self._grow(seq, prev, leaves)
                notes.compare(seq, self._tree.root(), Place(file, number))
                next_size = notes.next_size
            number += 1
            if type(line) is CallRecord:  # a struct's `isinstance` takes 0.1 µs where it does not hold
                calls.record(line.call_id, file, number)
                if line.outcome is Outcome.LOST:
                    self._lost += 1
            elif type(line) is Admitted:
                calls.admit(line.call_id, file, number)
            else:
                self._grow(seq, prev, leaves)
                self._take_other(line, Place(file, number))
            leaf = sha256(b"\x00" + data).digest()
            leaves.append(leaf)
            seq, prev, at_ns = seq + 1, leaf.hex(), line.at_ns
            if self._first_ns is None:
                self._first_ns = at_ns
                if seq == 1 and not isinstance(line, Start) and not self._closes_nothing(line):
                    self._findings.add(What.OUT_OF_PLACE, Place(file, number), "the first line is no start")
        self._grow(seq, prev, leaves)
        self._last_ns = at_ns
        if number > before:
            self._place = Place(file, number)
        return number - before

    def _closes_nothing(self, line: Line | chain.Link) -> bool:
        """Is this the salvage of a directory whose writer died, or had no room, before its first line?"""
        return self._salvaged and isinstance(line, Stop) and line.reason == "salvaged"

    def _grow(self, seq: int, prev: str, leaves: list[bytes]) -> None:
        """Put these leaves, which end in the line `seq`, into the tree."""
        self._tree.extend(leaves)
        leaves.clear()
        self._seq, self._leaf = seq, prev

    def _take_other(self, line: Line | chain.Link, place: Place) -> None:
        """A line of a rarer kind, not yet in the tree."""
        match line:
            case Checkpoint(note=note):
                self._notes.check(note, self._seq, self._tree.root(), place)
            case Start(writer=writer):
                if self._seq != 0:
                    self._findings.add(
                        What.OUT_OF_PLACE, place, f"a start line (seq {line.seq}) that is not the first"
                    )
                elif writer != self._writer:
                    self._findings.add(
                        What.WRONG_WRITER, place, f"this is the journal of another writer, {writer}"
                    )
                self._start = self._start or line
            case Stop():
                self._stop, self._stop_seq = self._stop or line, self._stop_seq or line.seq
            case Refused():
                self._refused += line.count
            case Event(topic="key", data={"what": "new", "vkey": vkey}):
                self._named_keys.append((self._seq + 1, vkey))
            case Event(topic="retention", data=data):
                self._retired.extend(data.get("writers", "").split(", "))
            case chain.Link():
                self._unknown += 1

    def _pass_over(self, lines: Sequence[bytes], file: str, before: int) -> None:
        """Lines behind the break: they count for nothing, but a note among them may prove what was there."""
        for number, data in enumerate(lines, start=before + 1):
            self._torn_bytes += len(data) + 1
            try:
                line = chain.typed(data)
            except chain.NotALine:
                continue
            self._behind += 1
            if isinstance(line, Checkpoint) and not self._lossy:
                self._notes.check_behind(line.note, self._seq, Place(file, number))

    def _check_chain(self, live: bool) -> None:
        """Is there anything that does not continue the chain, and may not be there?"""
        if self._break is None:
            return
        place, what, says, whole = self._break
        if self._lossy and what is What.LINES_MISSING:
            what = What.COPY_HAS_GAPS
        if self._stop is not None:
            self._findings.add(What.OUT_OF_PLACE, place, f"something stands behind the stop: {says}")
        elif whole or self._behind or self._salvaged:
            what = What.NOT_A_LINE if what is What.NOT_CLOSED else what
            lines = "1 line counts" if self._behind == 1 else f"{self._behind} lines count"
            behind = f"; from here on {lines} for nothing" if self._behind else ""
            self._findings.add(what, place, says + behind)
        elif not live:
            self._findings.add(What.NOT_CLOSED, place, f"a torn tail of {self._torn_bytes} bytes: {says}")

    def _check_open(self, live: bool, unclosed: str) -> None:
        """There is no stop."""
        open_calls = f"{self._calls.open} calls are open" if self._calls.open else "no call is open"
        if live:
            says = f"its writer lives: looked at up to seq {self._seq}, where {open_calls}"
            self._findings.add(What.LIVE, self._place, says)
        elif self._break is None:
            says = f"it has no stop: {unclosed}; {open_calls} at seq {self._seq}"
            self._findings.add(What.NOT_CLOSED, self._place, says)

    def _inspected(self, live: bool) -> Inspected:
        closed = State.SALVAGED if self._stop and self._stop.reason == "salvaged" else State.CLOSED
        unclosed = State.OPEN if live else State.DEAD
        return Inspected(
            calls=self._calls.calls,
            checkpoints=self._notes.checkpoints,
            findings=tuple(self._findings.named),
            findings_left_out=self._findings.left_out,
            first_ns=self._first_ns,
            last_ns=self._last_ns,
            lines=self._seq - self._front.size,
            lost=self._lost,
            met=tuple(self._notes.met),
            named_keys=tuple(vkey for seq, vkey in self._named_keys if seq <= self._notes.signed_size),
            records=self._calls.records,
            refused=self._refused,
            retired=tuple(self._retired),
            root=self._tree.root(),
            signed_size=self._notes.signed_size,
            start=self._start,
            starts_after=self._front.size,
            state=closed if self._stop else unclosed,
            stolen_size=self._notes.stolen_size,
            torn_bytes=self._torn_bytes,
            unknown=self._unknown,
            verdict=self._findings.verdict,
            writer=self._writer,
        )


def _gap(place: Place, seq: int, first_seq: int) -> _Break:
    if first_seq > seq + 1:
        says = f"{_missing(seq + 1, first_seq - 1)} missing before this file"
        return _Break(place, What.LINES_MISSING, says, whole=True)
    says = f"by its name it begins with seq {first_seq}, which is there already; seq {seq + 1} is due"
    return _Break(place, What.LINE_REPEATED, says, whole=True)


def _missing(first: int, last: int) -> str:
    return f"seq {first} is" if first == last else f"seq {first} to {last} are"


def _diagnosis(place: Place, seq: int, leaf: str, lines: Sequence[bytes]) -> _Break:
    """What is wrong with the first of these lines, which does not continue the line `seq` of this leaf."""
    fault = ""
    try:
        link: chain.Link | None = chain.link(lines[0])
    except chain.NotALine as error:
        fault, link = str(error), _link(lines[0])
    if link is None:
        return _Break(place, What.NOT_A_LINE, "this is no line of a journal", whole=False)
    if link.seq > seq + 1:
        says = f"{_missing(seq + 1, link.seq - 1)} missing before it"
        return _Break(place, What.LINES_MISSING, says, whole=True)
    if link.seq <= seq:
        says = f"seq {link.seq} stands here again; seq {seq + 1} is due"
        return _Break(place, What.LINE_REPEATED, says, whole=True)
    if link.prev == leaf:
        return _Break(place, What.NOT_A_LINE, f"seq {link.seq} is no {link.kind} line: {fault}", whole=True)
    # Its successor says whether this line is what it was; if so, the one before is not.
    behind = _link(lines[1]) if len(lines) > 1 else None
    held = behind is not None and behind.prev == chain.leaf(lines[0])
    altered = f"seq {seq}" if held else f"one of seq {seq} and {link.seq}"
    says = (
        f"seq {link.seq} does not continue the line before, whose leaf its prev is not: {altered} was altered"
    )
    return _Break(place, What.CHAIN_BROKEN, says, whole=True)


def _link(line: bytes) -> chain.Link | None:
    try:
        return msgspec.json.decode(line, type=chain.Link)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
