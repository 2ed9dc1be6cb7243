"""Verifying the fronts that journals have in the archive alone (archive/trimming.py): a part a time, round and round.

    the manifest's frontier ─▶ lines of its segment ─▶ = the frontier of the next manifest, or of `archived.json` here

A front may be far larger than what a day has time for, so a look goes on where the last one ended, segment by segment,
until it has fetched as much as it may. It sees all but a call that stands in two segments: that takes a reading of
the whole journal at once (`audit verify --archive`).
"""

import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from metering import files
from metering.archive.archive import JOURNAL, Archive, ArchivedDirectory, manifest_path
from metering.archive.manifest import Manifest
from metering.archive.objects import ArchiveError, ArchiveUnavailable
from metering.audit import merkle, sources
from metering.audit.findings import Finding, What
from metering.audit.inspection import Front, Inspection
from metering.audit.notebook import Claim
from metering.audit.trust import Trust
from metering.journal.journal import Directory
from metering.journal.segments import sealed_name

FINDINGS_MAX = 50
"""Of one front: what is found in more places is the same thing."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How far a front has been gone through.

    next_seq: where the next segment begins; round_ns: when the last one was last read; None: it never was.
    findings: of the last reading of each segment.
    """

    findings: tuple[Finding, ...] = ()
    next_seq: int = 1
    round_ns: int | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the fronts came to.

    fronts: how many there are; segments, bytes, lines: what was read this time. oldest_ns: all of it was read at that
    time or later; None: something was never read. findings: those of earlier looks too, where nothing was read again
    since. unread: why the archive could not be read; "": it could.
    """

    bytes: int
    findings: tuple[Finding, ...]
    fronts: int
    lines: int
    oldest_ns: int | None
    segments: int
    unread: str


class _Read(NamedTuple):
    """A segment was read, or is not there. next_seq: where the next one begins; None: that was the front's last."""

    first_seq: int
    bytes: int
    lines: int
    findings: tuple[Finding, ...]
    next_seq: int | None


class Fronts:
    """Of one state directory. file: keeps how far they have been gone through. trust: None: there are no keys."""

    def __init__(self, file: pathlib.Path, archive: Archive, trust: Trust | None) -> None:
        self._file = file
        self._archive = archive
        self._trust = trust

    def look(self, directories: Iterable[Directory], now_ns: int, *, bytes_max: int) -> Look:
        """Go on: those first that were read longest ago, each to its end, until `bytes_max` are fetched.

        One segment at the least; each once. now_ns: wall clock. Raises OSError.
        """
        kept = self._kept()
        fronts = {one.writer: front for one in directories if (front := sources.front_of(one)).size}
        ways = {writer: kept.get(writer, Way()) for writer in fronts}
        read: list[_Read] = []
        unread = ""
        try:
            for writer in sorted(ways, key=lambda writer: (ways[writer].round_ns or 0, writer)):
                archived = self._archive.directory(writer)
                more = True
                while more and sum(one.bytes for one in read) < bytes_max:
                    read.append(self._read(archived, ways[writer].next_seq, fronts[writer]))
                    ways[writer] = _on(ways[writer], read[-1], writer, now_ns)
                    more = read[-1].next_seq is not None
        except ArchiveUnavailable as error:
            unread = str(error)
        files.put(self._file, msgspec.json.encode(ways, order="sorted") + b"\n", mode=0o644)
        rounds = [way.round_ns for way in ways.values() if way.round_ns is not None]
        return Look(
            bytes=sum(one.bytes for one in read),
            findings=tuple(finding for _, way in sorted(ways.items()) for finding in way.findings),
            fronts=len(ways),
            lines=sum(one.lines for one in read),
            oldest_ns=min(rounds, default=None) if len(rounds) == len(ways) else None,
            segments=len(read),
            unread=unread,
        )

    def _kept(self) -> Mapping[str, Way]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Way])
        except (FileNotFoundError, msgspec.MsgspecError):
            return {}  # all is read anew

    def _read(self, archived: ArchivedDirectory, next_seq: int, front: Front) -> _Read:
        """The next segment of a front. Raises ArchiveUnavailable."""
        first_seqs = [first_seq for first_seq in archived.first_seqs if next_seq <= first_seq <= front.size]
        if not first_seqs or first_seqs[0] != next_seq:
            return _missing(archived.writer, next_seq, first_seqs, front)
        behind = first_seqs[1] if len(first_seqs) > 1 else None
        try:
            found = archived.manifest(next_seq)
        except ArchiveUnavailable:
            raise
        except ArchiveError as error:
            file = manifest_path(archived.writer, next_seq)
            unreadable = _finding(What.ARCHIVE_DIFFERS, archived.writer, file, str(error))
            return _Read(next_seq, 0, 0, (unreadable,), behind)
        lines, findings = _inspected(archived, found, _claims(archived, found, behind, front), self._trust)
        due = None if behind is None else max(found.last_seq, next_seq) + 1
        return _Read(next_seq, found.segment.bytes, lines, findings, due)


def _missing(writer: str, next_seq: int, first_seqs: list[int], front: Front) -> _Read:
    """The segment that is due is not there. first_seqs: of those behind it."""
    behind = first_seqs[0] if first_seqs else None
    last_seq = front.size if behind is None else behind - 1
    says = f"seq {next_seq} to {last_seq} are neither here nor in the archive"
    finding = _finding(What.FRONT_MISSING, writer, manifest_path(writer, next_seq), says)
    return _Read(next_seq, 0, 0, (finding,), behind)


def _on(way: Way, read: _Read, writer: str, now_ns: int) -> Way:
    """Behind this segment. What was found of it before counts no more."""
    again = {manifest_path(writer, read.first_seq), _segment_path(writer, read.first_seq)}
    findings = [*(one for one in way.findings if one.file not in again), *read.findings]
    return Way(
        findings=tuple(findings[:FINDINGS_MAX]),
        next_seq=1 if read.next_seq is None else read.next_seq,
        round_ns=now_ns if read.next_seq is None else way.round_ns,
    )


def _claims(archived: ArchivedDirectory, one: Manifest, behind: int | None, front: Front) -> list[Claim]:
    """What is said of the lines up to the end of this segment. behind: the next one begins there; None: none does."""
    if behind is None:
        root = merkle.Tree(front.size, front.frontier).root()
        return [Claim(front.size, root, f"archived.json of {archived.writer}")]
    if behind != one.last_seq + 1:
        return []  # what is in between is missing
    try:
        before = _front_of(archived.manifest(behind))
    except ArchiveUnavailable:
        raise
    except (ArchiveError, ValueError):
        return []  # which will be found when it is that one's turn
    root = merkle.Tree(before.size, before.frontier).root()
    return [Claim(before.size, root, manifest_path(archived.writer, behind))]


def _inspected(
    archived: ArchivedDirectory, one: Manifest, claims: list[Claim], trust: Trust | None
) -> tuple[int, tuple[Finding, ...]]:
    """How many lines a segment has, and what is wrong with it. Raises ArchiveUnavailable."""
    writer, path = archived.writer, one.segment.path
    try:
        segment = next(segment for segment in archived.segments() if segment.first_seq == one.first_seq)
        inspection = Inspection(writer, path, trust, claims, _front_of(one))
        inspection.read(path, one.first_seq, segment.blocks)
    except ArchiveUnavailable:
        raise
    except (ArchiveError, ValueError) as error:
        return 0, (_finding(What.ARCHIVE_DIFFERS, writer, path, str(error)),)
    # As of one that lives: no stop ends it, and its calls may end in a later one.
    inspected = inspection.finish(live=True, end_note=None, end_note_file=path)
    return inspected.lines, tuple(found for found in inspected.findings if found.what is not What.LIVE)


def _front_of(one: Manifest) -> Front:
    """The lines before a segment, as its manifest says. Raises ValueError: that is no frontier."""
    frontier = tuple(bytes.fromhex(node) for node in one.frontier)
    return Front(merkle.Tree(one.last_seq - one.lines, frontier).size, one.prev, frontier)


def _segment_path(writer: str, first_seq: int) -> str:
    return f"{JOURNAL}{writer}/{sealed_name(first_seq)}"


def _finding(what: What, writer: str, file: str, says: str) -> Finding:
    return Finding(file=file, line=0, says=says, what=what, writer=writer)
