"""What the verification of a journal can find, and what follows from it. Pure."""

import enum
from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class Verdict(enum.StrEnum):
    """Of a journal, or of all that were looked at: the worst of its findings."""

    WHOLE = "whole"  # from the first line to the stop, signed, nothing amiss
    INCOMPLETE = "incomplete"  # nothing contradicts, and something is not here
    TAMPERED = "tampered"  # something contradicts: altered, dropped, moved, added, or damaged


class What(enum.StrEnum):
    """The kinds of findings (deploy/reference/audit.md says each)."""

    # tampered
    NOT_A_LINE = "not_a_line"
    CHAIN_BROKEN = "chain_broken"
    LINES_MISSING = "lines_missing"
    LINE_REPEATED = "line_repeated"
    OUT_OF_PLACE = "out_of_place"
    WRONG_WRITER = "wrong_writer"
    NOTE_UNREADABLE = "note_unreadable"
    NOT_SIGNED = "not_signed"
    SIZE_DIFFERS = "size_differs"
    ROOT_DIFFERS = "root_differs"
    TOO_FEW_LINES = "too_few_lines"
    ADMISSION_DOUBLED = "admission_doubled"
    RECORD_DOUBLED = "record_doubled"
    RECORD_WITHOUT_ADMISSION = "record_without_admission"
    ADMISSION_WITHOUT_RECORD = "admission_without_record"
    SALVAGE_DIFFERS = "salvage_differs"
    SEAL_DAMAGED = "seal_damaged"
    PACK_DIFFERS = "pack_differs"
    ARCHIVE_DIFFERS = "archive_differs"
    ANCHOR_REPLACED = "anchor_replaced"
    ANCHOR_HIDDEN = "anchor_hidden"
    # incomplete
    LIVE = "live"
    NOT_CLOSED = "not_closed"
    NO_END_NOTE = "no_end_note"
    NO_KEYS = "no_keys"
    STOLEN_KEY = "stolen_key"
    FRONT_MISSING = "front_missing"
    COPY_HAS_GAPS = "copy_has_gaps"
    TORN_LINES = "torn_lines"
    DIRECTORY_MISSING = "directory_missing"

    @property
    def verdict(self) -> Verdict:
        """What one finding of this kind makes of the whole."""
        return Verdict.INCOMPLETE if self in _INCOMPLETE else Verdict.TAMPERED


_INCOMPLETE = frozenset(
    {
        What.LIVE, What.NOT_CLOSED, What.NO_END_NOTE, What.NO_KEYS, What.STOLEN_KEY, What.FRONT_MISSING,
        What.DIRECTORY_MISSING, What.COPY_HAS_GAPS, What.TORN_LINES,
    }
)  # fmt: skip


class Place(NamedTuple):
    """A line in a file, from 1; 0: the file as a whole. Of a sealed segment the line as it unpacks."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or missing: where, and in words what. writer: None: none in particular."""

    file: str
    line: int
    says: str
    what: What
    writer: str | None = None

    def __str__(self) -> str:
        return f"{Place(self.file, self.line)}: {self.says}"


_BADNESS = {Verdict.WHOLE: 0, Verdict.INCOMPLETE: 1, Verdict.TAMPERED: 2}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of these; whole if there are none."""
    return max(verdicts, key=_BADNESS.__getitem__, default=Verdict.WHOLE)


FINDINGS_MAX = 100
"""So many findings of one journal are named; of the others it is said how many there are."""


class Findings:
    """The findings of one journal, in the order in which they were found, bounded."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self.named: list[Finding] = []
        self.left_out = 0
        self.verdict = Verdict.WHOLE

    def add(self, what: What, place: Place, says: str) -> None:
        """One more; one that makes the verdict worse is always named."""
        verdict = worst((self.verdict, what.verdict))
        if len(self.named) >= FINDINGS_MAX and verdict is self.verdict:
            self.left_out += 1
            return
        self.verdict = verdict
        self.named.append(
            Finding(file=place.file, line=place.line, says=says, what=what, writer=self._writer)
        )
