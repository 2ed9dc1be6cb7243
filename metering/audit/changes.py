"""Event lines of a period, and changes of the directory as such, over all journals of a state directory, page by page.

    segments of the period, here and in the archive, by their time ─▶ event and directory lines ─▶ the first so many

The order is that of (`at_ns`, writer, seq): two readers of the same journals see the same pages. Lines that are added
later come later, as long as no clock is set back. Whether the chain holds what stands here says `audit verify`.
"""

import bisect
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from metering.archive.archive import Archive
from metering.audit import search
from metering.journal import chain, events, spans
from metering.journal.journal import directories
from metering.journal.spans import CLOCK_SLACK_NS, Span
from metering.record import DirectoryChange, Event

PAGE_BYTES_MAX = 1024 * 1024
FETCHED_BYTES_MAX = 256 * 1024 * 1024
"""Of sealed segments of the archive, for one page."""


class Place(NamedTuple):
    """Where an event stands in the order."""

    at_ns: int
    writer: str
    seq: int


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An event, and where its line is. leaf: its hash."""

    event: Event
    leaf: str
    writer: str

    @property
    def place(self) -> Place:
        """Its place in the order."""
        return Place(self.event.at_ns, self.writer, self.event.seq)


class Page(NamedTuple):
    """changes: in order. next: the place to go on after; None: these were the last."""

    changes: list[Change]
    next: Place | None


def page(
    root: pathlib.Path,
    *,
    from_ns: int,
    to_ns: int,
    topic: str | None = None,
    after: Place | None = None,
    count: int,
    archive: Archive | None = None,
) -> Page:
    """At most `count` events with from_ns ≤ at_ns < to_ns, those behind `after`. Raises OSError, ArchiveError.

    root: <state_dir>/journal. archive: has what was trimmed here; None: that is left out. A page is shorter, and may
    be empty, where its lines are long, or where it took much of the archive: `next` says whether there is more.
    """
    assert count > 0
    start_ns = from_ns if after is None else max(from_ns, after.at_ns)
    period = sorted(
        span for one in directories(root) for span in spans.of_period(one, archive, start_ns, to_ns)
    )
    found: list[Change] = []  # the first ones so far, one more than asked for
    fetched = 0
    known_ns: int | None = None  # up to where it is known that these are all; None: to the end
    for span in period:
        horizon_ns = span.begin_ns - CLOCK_SLACK_NS
        if len(found) > count and found[-1].event.at_ns < horizon_ns:
            break
        if fetched >= FETCHED_BYTES_MAX and horizon_ns > start_ns + 1:
            known_ns = horizon_ns
            break
        fetched += span.archived_bytes
        for change in _of(span):
            event = change.event
            wanted = start_ns <= event.at_ns < to_ns and topic in (None, event.topic)
            if wanted and (after is None or change.place > after):
                bisect.insort(found, change, key=_place)
                del found[count + 1 :]
    if known_ns is not None:
        found = [change for change in found if change.event.at_ns < known_ns]
    kept = _fitting(found[:count])
    if len(kept) < len(found):
        return Page(kept, kept[-1].place)
    return Page(kept, None if known_ns is None else Place(known_ns - 1, *_LAST))


_LAST = "w" + "z" * 16, 2**63 - 1
"""Behind every writer and seq of one time."""


def _place(change: Change) -> Place:
    return change.place


def _fitting(found: list[Change]) -> list[Change]:
    size = 0
    for number, change in enumerate(found):
        size += sum(len(value) for value in change.event.data.values())
        if number and size > PAGE_BYTES_MAX:
            return found[:number]
    return found


def _of(span: Span) -> Iterator[Change]:
    data = span.read()
    for needle in (search.EVENT, search.DIRECTORY):
        for line in search.lines_with(data, needle):
            try:
                told = chain.decode(line)
            except chain.NotALine:
                continue  # torn or altered; `audit verify` tells of it
            if isinstance(told, DirectoryChange):
                told = events.directory_changed(told)
            if isinstance(told, Event):
                yield Change(event=told, leaf=chain.leaf(line), writer=span.writer)
