"""What an export of a period is made of: rows of its closed hours, and corrections that were made in it.

    a month that is not closed   the newest revision of each hour
    a month that is closed       the revisions that it was closed with, for ever
    later revisions of those     in the period in which they were made: the row as it was, taken back, and as it is now

So a period of a closed month gives the same rows always, and what came too late stands in the month in which it came.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from metering.close_manifest import Manifest, MonthState, month_hours, month_of, parse_hour
from metering.closes import Closes
from metering.export_parts import Correction, ExportRow, Part
from metering.units import NS_PER_HOUR


class Selection(NamedTuple):
    """parts: in the order in which they are exported. not_closed: hours of the period that have no revision."""

    period: range
    parts: tuple[Part, ...]
    not_closed: tuple[int, ...]

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Instance types without a price: their hours are there, their money is unknown."""
        return tuple(sorted({one for part in self.parts for one in part.manifest.unpriced}))


def select(closes: Closes, period: range, *, running: bool = False) -> Selection:
    """What an export of these hours is made of. running: with the looks into hours that are not closed.

    Raises ArchiveError.
    """
    charges: dict[int, Manifest] = {}
    for month in _months(period):
        state = closes.month(month)
        hours = month_hours(month)
        within = range(max(hours.start, period.start), min(hours.stop, period.stop))
        if state.state is MonthState.CLOSED:
            found = [one for one in closes.of_month(state) if one.hour in within]
        else:
            found = closes.hours(within, running=running)
        charges |= {one.hour: one for one in found}
    parts = [Part(charges[hour]) for hour in sorted(charges)]
    parts += sorted(_corrections(closes, period), key=_order)
    return Selection(period, tuple(parts), tuple(hour for hour in period if hour not in charges))


def rows(closes: Closes, parts: tuple[Part, ...]) -> Iterator[ExportRow]:
    """Their rows, streamed. Raises ArchiveError, CloseFileError, OSError."""
    stream = closes.rows(part.manifest for part in parts)
    for part in parts:
        for row in itertools.islice(stream, part.manifest.rows.count):
            yield ExportRow(row, part)


def _corrections(closes: Closes, period: range) -> Iterator[Part]:
    closed_with: dict[int, int] = {}
    for month in closes.months():
        state = closes.month(month)
        if state.state is MonthState.CLOSED:
            kept = {parse_hour(text): one.revision for text, one in state.hours.items()}
            closed_with |= {hour: kept.get(hour, 0) for hour in month_hours(month)}
    if not closed_with:
        return
    for hour, newest in sorted(closes.numbers(range(min(closed_with), max(closed_with) + 1)).items()):
        if newest <= closed_with.get(hour, newest):
            continue
        before: Manifest | None = None
        for one in closes.revisions(hour):
            if one.revision > closed_with[hour] and one.closed_ns // NS_PER_HOUR in period:
                if before is not None:
                    yield Part(before, Correction.REVERSAL, one.closed_ns)
                yield Part(one, Correction.RESTATED, one.closed_ns)
            before = one


def _order(part: Part) -> tuple[int, int, int]:
    return part.made_ns, part.manifest.hour, part.manifest.revision


def _months(period: range) -> list[str]:
    return sorted({month_of(hour) for hour in period})
