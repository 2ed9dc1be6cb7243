"""Event lines of a period, over all journals of a state directory, page by page.

The order is that of (`at_ns`, writer, seq): two readers of the same journals see the same pages. Lines that are added
later come later, as long as no clock is set back. Whether the chain holds what stands here says `audit verify`.
"""

import heapq
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from metering import chain, search, segments
from metering.journal import Directory, directories
from metering.record import Event
from metering.segments import Blocks
from metering.units import NS_PER_HOUR

PAGE_BYTES_MAX = 1024 * 1024
CLOCK_SLACK_NS = 24 * NS_PER_HOUR
"""A segment is passed over by its time only if that is further than this from what is asked: clocks are set back."""


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
) -> Page:
    """At most `count` events with from_ns ≤ at_ns < to_ns, those behind `after`. Raises OSError.

    root: <state_dir>/journal. A page is shorter where its lines are long.
    """
    assert count > 0
    start_ns = from_ns if after is None else max(from_ns, after.at_ns)
    found = (
        change
        for directory in directories(root)
        for change in _of(directory, start_ns, to_ns)
        if start_ns <= change.event.at_ns < to_ns
        and topic in (None, change.event.topic)
        and (after is None or change.place > after)
    )
    first = heapq.nsmallest(count + 1, found, key=lambda change: change.place)
    kept: list[Change] = []
    size = 0
    for change in first[:count]:
        size += sum(len(value) for value in change.event.data.values())
        if kept and size > PAGE_BYTES_MAX:
            break
        kept.append(change)
    return Page(kept, kept[-1].place if len(kept) < len(first) else None)


def _of(directory: Directory, from_ns: int, to_ns: int) -> Iterator[Change]:
    paths = [path for _, path in directory.segment_paths()]
    begins = [_begin_ns(path) for path in paths]
    for number, path in enumerate(paths):
        begin_ns = begins[number]
        end_ns = begins[number + 1] if number + 1 < len(paths) else None
        if begin_ns is not None and begin_ns >= to_ns + CLOCK_SLACK_NS:
            continue
        if end_ns is not None and end_ns < from_ns - CLOCK_SLACK_NS:
            continue
        for line in search.lines_with(segments.read(path), search.EVENT):
            try:
                event = chain.decode(line)
            except chain.NotALine:
                continue  # torn or altered; `audit verify` tells of it
            if isinstance(event, Event):
                yield Change(event=event, leaf=chain.leaf(line), writer=directory.writer)


def _begin_ns(path: pathlib.Path) -> int | None:
    """When a segment's first line was made; None: it has none yet, or one that is none."""
    try:
        return chain.link(chain.first_line(Blocks(path))).at_ns
    except chain.NotALine:
        return None
