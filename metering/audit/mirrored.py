"""Copies of journal lines that went through a log collector (`journal.mirror: stdout`), sorted out by writer. Pure.

Lines of several writers stand in one file, among others that are none. A line says whose it is by its `prev`: it
follows the last line of its writer. After a gap a writer is known again by a call's id. What a collector has delivered
twice is passed over.
"""

from typing import NamedTuple

from metering.journal import chain
from metering.record import Admitted, CallRecord, Line, Start


class _End(NamedTuple):
    seq: int
    leaf: str


class Sorter:
    """Says of lines, in the order of the file, whose they are."""

    def __init__(self) -> None:
        self._ends: dict[str, _End] = {}  # by writer: its last line so far
        self._by_leaf: dict[str, str] = {}

    def writer_of(self, data: bytes) -> str | None:
        """The writer of a line, without its newline. None: it is no line, or one that was there, or nobody's."""
        try:
            line = chain.typed(data)
        except chain.NotALine:
            return None
        writer = self._writer(line)
        end = self._ends.get(writer or "")
        if writer is None or (end is not None and line.seq <= end.seq):
            return None
        if end is not None:
            self._by_leaf.pop(end.leaf, None)
        leaf = chain.leaf(data)
        self._ends[writer] = _End(line.seq, leaf)
        self._by_leaf[leaf] = writer
        return writer

    def _writer(self, line: Line | chain.Link) -> str | None:
        if isinstance(line, Start):
            return line.writer
        if line.prev in self._by_leaf:
            return self._by_leaf[line.prev]
        if isinstance(line, Admitted | CallRecord):
            writer = line.call_id.rpartition("-")[0]
            return writer if writer in self._ends else None
        return None
