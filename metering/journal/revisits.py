"""Reading a journal that grows, again and again: each time from about where the last look ended.

    segment 4711   ────┬─────┬─────┬─────┬──         a bookmark each BOOKMARK_LINES
                                   │  └ after_seq
                                   └ from here on it is read, and its chain verified

Without them each look would read its segment from the start, up to 64 MiB of it. Those of the segment that was read
last are kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

from metering.journal import chain
from metering.journal.chain import Place, Segment
from metering.journal.journal import Directory
from metering.journal.segments import Blocks
from metering.record import Metered

BOOKMARK_LINES = 500


class Bookmark(NamedTuple):
    """A place between two lines. first_seq: of its segment; offset: the segment's bytes before it."""

    place: Place
    first_seq: int
    offset: int


class Revisits:
    """Of one writer's journal, while it is written."""

    def __init__(self) -> None:
        self._bookmarks: list[Bookmark] = []

    def metered(self, directory: Directory, after_seq: int) -> Iterator[tuple[Metered | None, int, str]]:
        """As Readable.metered, of a directory that nobody has closed. Raises OSError."""
        paths = dict(directory.segment_paths())
        start = self._start(directory, list(paths), after_seq)
        if start is None:
            return
        self._bookmarks = [one for one in self._bookmarks if one.first_seq == start.first_seq]
        segments = [
            Segment(first_seq, Blocks(path))
            for first_seq, path in paths.items()
            if first_seq > start.first_seq
        ]
        opened = Segment(start.place.seq + 1, Blocks(paths[start.first_seq], start.offset))
        first_seq, offset, lines = start.first_seq, start.offset, 0
        for one in chain.walk([opened, *segments], *start.place, chain.read_metered):
            if isinstance(one, bytes):
                if b"\n" in one:  # a line that does not continue: next time it is looked at from farther back
                    self._bookmarks.clear()
                return
            if one.seq in paths and one.seq != first_seq:
                first_seq, offset, lines = one.seq, 0, 0
                self._bookmarks.clear()
            offset += len(one.data) + 1
            lines += 1
            if lines == BOOKMARK_LINES:
                self._keep(Bookmark(Place(one.seq, one.leaf), first_seq, offset))
                lines = 0
            if one.seq > after_seq:
                yield one.line, one.seq, one.leaf  # type: ignore[misc]

    def _keep(self, bookmark: Bookmark) -> None:
        if not self._bookmarks or self._bookmarks[-1].place.seq < bookmark.place.seq:
            self._bookmarks.append(bookmark)

    def _start(self, directory: Directory, first_seqs: list[int], after_seq: int) -> Bookmark | None:
        """Where to begin reading; None: there is no segment."""
        for bookmark in reversed(self._bookmarks):
            if bookmark.place.seq <= after_seq and bookmark.first_seq in first_seqs:
                return bookmark
        begin = directory.begin()
        here = [first_seq for first_seq in first_seqs if first_seq > begin.seq]
        if not here:
            return None
        first_seq = max((one for one in here if one <= after_seq + 1), default=here[0])
        if first_seq == begin.seq + 1:
            return Bookmark(begin, first_seq, 0)
        segment = Segment(first_seq, Blocks(dict(directory.segment_paths())[first_seq]))
        return Bookmark(chain.before(segment), first_seq, 0)
