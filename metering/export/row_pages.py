"""Rows of closed hours a page at a time: none is lost, none comes twice, whatever is closed meanwhile.

The first page says which revisions there are; its cursor carries those that are still to come, and how many rows of the
first of them were given (export/row_cursor.py). What a revision has never changes, so the next page goes on just
there, on any gateway.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from metering.cost.closes import Closes
from metering.export import selection
from metering.export.export_parts import ExportRow, Part
from metering.export.row_cursor import VERSION, Cursor, Pin


class Page(NamedTuple):
    """Some rows. next: where the next page begins; None: there is none."""

    rows: list[ExportRow]
    next: Cursor | None


def first(closes: Closes, period: range, count: int) -> Page:
    """The first page: `count` rows, fewer if there are no more. Raises ArchiveError, CloseFileError, OSError."""
    parts = selection.select(closes, period).parts
    return _page(closes, parts, Cursor(VERSION, period.start, period.stop, 0, _pins(parts)), count)


def after(closes: Closes, cursor: Cursor, count: int) -> Page:
    """The page that begins there. Raises as `first`."""
    hours = itertools.accumulate(pin.hours for pin in cursor.pins)
    parts = (
        Part(closes.revision(hour, pin.revision), pin.correction)
        for hour, pin in zip(hours, cursor.pins, strict=True)
    )
    return _page(closes, parts, cursor, count)


def _page(closes: Closes, parts: Iterable[Part], start: Cursor, count: int) -> Page:
    needed: list[Part] = []
    rows_in = -start.given
    for part in parts:
        needed.append(part)
        rows_in += part.manifest.rows.count
        if rows_in > count:
            break
    stream = selection.rows(closes, tuple(needed))
    rows = list(itertools.islice(stream, start.given, start.given + count))
    given, passed = start.given + len(rows), 0
    for part in needed:
        if given < part.manifest.rows.count:
            break
        given -= part.manifest.rows.count
        passed += 1
    pins = start.pins[passed:]
    if not pins:
        return Page(rows, None)
    hour = sum(pin.hours for pin in start.pins[: passed + 1])
    pins = (msgspec.structs.replace(pins[0], hours=hour), *pins[1:])
    return Page(rows, msgspec.structs.replace(start, given=given, pins=pins))


def _pins(parts: Sequence[Part]) -> tuple[Pin, ...]:
    before = 0
    found = []
    for part in parts:
        found.append(Pin(part.manifest.hour - before, part.manifest.revision, part.correction))
        before = part.manifest.hour
    return tuple(found)
