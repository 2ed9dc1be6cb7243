"""What the ledger must hold by journals that still grow: each line is read once.

The whole chain is checked by tests/oracle/journal.py when there is time for it; here lines are taken as they stand.
"""

import collections
import json
import pathlib

from tests.oracle import files, journal, ledger
from tests.oracle.journal import Writer, leaf_of
from tests.oracle.ledger import Ledger

_CALL = b'"kind":"call"'


class JournalTail:
    """The sums and marks of all writers' directories under `root`, as of the last `update`."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._offsets: dict[pathlib.Path, int] = {}
        self._ended: set[pathlib.Path] = set()
        self._balances: collections.Counter[str] = collections.Counter()
        self._marks: dict[str, str] = {}

    @property
    def ledger(self) -> Ledger:
        """What a store holds in which all of this is folded."""
        return Ledger(dict(self._balances), dict(self._marks))

    def update(self) -> None:
        """Take in the lines that have come since, those of salvages last."""
        for directory in journal.directories(self._root):
            for segment in files.segments(directory):
                if segment not in self._ended:
                    self._take(directory.name, segment)

    def _take(self, writer: str, found_as: pathlib.Path) -> None:
        segment = found_as.with_name(found_as.name.removesuffix(".zst"))
        if found_as != segment:  # it was sealed: what has not been read of it comes now, and no more
            self._ended.add(found_as)
        data = files.read(found_as, self._offsets.get(segment, 0))
        whole = data.rfind(b"\n") + 1
        self._offsets[segment] = self._offsets.get(segment, 0) + whole
        calls = [line for line in data[:whole].split(b"\n") if _CALL in line]
        more = Writer(
            writer, lines=[json.loads(line) for line in calls], leaves=[leaf_of(line) for line in calls]
        )
        found = ledger.recompute([more])
        self._balances.update(found.balances)
        self._marks |= found.marks
