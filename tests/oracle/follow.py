"""Journals followed as they grow: each line is read once, and its place in the chain is checked.

When a directory is closed by a salvage it is read once more as a whole (tests/oracle/journal.py), and what had been
read of it must still be there.
"""

import collections
import pathlib

from tests.oracle import files, journal, ledger
from tests.oracle.counters import Ceiling
from tests.oracle.journal import Line, Writer
from tests.oracle.ledger import Ledger


class _Directory:
    """One writer's. done: no line will come any more."""

    def __init__(self, path: pathlib.Path) -> None:
        self.writer = Writer(path.name)
        self.done = False
        self._path = path
        self._offsets: collections.Counter[str] = collections.Counter()
        self._sealed: set[str] = set()  # of which all has been read

    def more(self) -> Writer:
        """The lines that have come since."""
        before = self.writer
        seen = len(before.lines)
        if (self._path / journal.SALVAGE).exists():
            self.writer = journal.read_one(self._path)
            if self.writer.leaves[:seen] != before.leaves[:seen]:
                self.writer.fault("what had been read is not there any more")
        else:
            self._follow()
        self.done = self.writer.closed
        return Writer(self.writer.name, self.writer.lines[seen:], self.writer.leaves[seen:])

    def _follow(self) -> None:
        for path in files.segments(self._path):
            name = path.name.removesuffix(".zst")
            if path.name in self._sealed:
                continue
            if name == journal.SALVAGE:  # it has come just now
                return
            if int(name[:16]) > len(self.writer.lines) + 1:
                return
            data = files.read(path, self._offsets[name])
            self._offsets[name] += len(data) - len(journal.take(self.writer, data))
            if path.name != name:
                self._sealed.add(path.name)


class Follower:
    """All directories under `root`, as of the last `update`.

    ceiling: what counters may show at most. open_calls: admitted and without a record, of all writers.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.ceiling = Ceiling()
        self._root = root
        self._directories: dict[str, _Directory] = {}
        self._balances: collections.Counter[str] = collections.Counter()
        self._marks: dict[str, str] = {}

    @property
    def writers(self) -> list[Writer]:
        return [one.writer for one in self._directories.values()]

    @property
    def ledger(self) -> Ledger:
        """What a store holds in which all of this is folded."""
        return Ledger({name: value for name, value in self._balances.items() if value}, dict(self._marks))

    def open_calls(self) -> set[str]:
        """Call ids that have an `admitted` line and no record."""
        return {call_id for writer in self.writers for call_id in _open(writer.lines)}

    def update(self) -> None:
        """Take in the lines that have come since."""
        for path in journal.directories(self._root):
            one = self._directories.setdefault(path.name, _Directory(path))
            if not one.done:
                self._add(one.more())

    def _add(self, more: Writer) -> None:
        found = ledger.recompute([more])
        self._balances.update(found.balances)
        self._marks |= found.marks
        self.ceiling.add(more.lines)


def _open(lines: list[Line]) -> set[str]:
    admitted = {line["call_id"] for line in lines if line["kind"] == "admitted"}
    return admitted - {line["call_id"] for line in lines if line["kind"] == "call"}
