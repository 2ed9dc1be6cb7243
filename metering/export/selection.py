"""What an export of a period is made of: rows of its closed hours, and corrections that were made in it.

    a month that is not closed   the newest revision of each hour
    a month that is closed       the revisions that it was closed with, for ever
    later revisions of those     in the period in which they were made: the row as it was, taken back, and as it is now

So a period of a closed month gives the same rows always, and what came too late stands in the month in which it came.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from metering.cost.charge_terms import Charged
from metering.cost.close_manifest import (
    Manifest,
    Month,
    MonthState,
    month_hours,
    month_of,
    parse_hour,
    provisional,
)
from metering.cost.closes import Closes
from metering.export.export_parts import Correction, ExportRow, Part
from metering.units import NS_PER_HOUR


class Selection(NamedTuple):
    """parts: in the order in which they are exported. not_closed: hours of the period that have no revision.

    months: the state of each month that the period touches. closed: all months that are closed, as they were then.
    """

    period: range
    parts: tuple[Part, ...]
    not_closed: tuple[int, ...]
    months: dict[str, MonthState]
    closed: dict[str, Month]

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Instance types without a price: their hours are there, their money is unknown."""
        return tuple(sorted({one for part in self.parts for one in part.manifest.unpriced}))

    def chargeback_of(self, month: str) -> Charged | None:
        """How a month's tenants are charged, if it was closed with that; None: as the configuration says."""
        terms = self.closed[month].terms if month in self.closed else None
        return None if terms is None else terms.chargeback


def select(closes: Closes, period: range, *, running: bool = False, as_of_ns: int | None = None) -> Selection:
    """What an export of these hours is made of. running: with the looks into hours that are not closed.

    as_of_ns: as if it were this moment (wall clock), so that pages of one answer agree; then without looks.
    Raises ArchiveError.
    """
    assert not (running and as_of_ns is not None)
    charges: dict[int, Manifest] = {}
    months: dict[str, MonthState] = {}
    closed = _closed(closes, as_of_ns)
    for month in sorted({month_of(hour) for hour in period}):
        of_month = month_hours(month)
        within = range(max(of_month.start, period.start), min(of_month.stop, period.stop))
        months[month] = MonthState.CLOSED if month in closed else _state(closes, month, as_of_ns).state
        if month in closed:
            found = [one for one in closes.of_month(closed[month]) if one.hour in within]
        else:
            found = _made_by(closes, closes.hours(within, running=running), as_of_ns)
        charges |= {one.hour: one for one in found}
    parts = [Part(charges[hour]) for hour in sorted(charges)]
    parts += sorted(_corrections(closes, closed, period, as_of_ns), key=_order)
    missing = tuple(hour for hour in period if hour not in charges)
    return Selection(period, tuple(parts), missing, months, closed)


def _closed(closes: Closes, as_of_ns: int | None) -> dict[str, Month]:
    """The months that were closed by then."""
    states = (_state(closes, month, as_of_ns) for month in closes.months())
    return {one.month: one for one in states if one.state is MonthState.CLOSED}


def _state(closes: Closes, month: str, as_of_ns: int | None) -> Month:
    """The state of a month by then."""
    if as_of_ns is None:
        return closes.month(month)
    then = [one for one in closes.states(month) if one.at_ns <= as_of_ns]
    return then[-1] if then else provisional(month)


def _made_by(closes: Closes, newest: list[Manifest], as_of_ns: int | None) -> list[Manifest]:
    """Of each hour the newest revision that was made by then."""
    if as_of_ns is None:
        return newest
    found = []
    for one in newest:
        then = [one] if one.closed_ns <= as_of_ns else closes.revisions(one.hour)
        found += [each for each in then if each.closed_ns <= as_of_ns][-1:]
    return found


def rows(closes: Closes, parts: tuple[Part, ...]) -> Iterator[ExportRow]:
    """Their rows, streamed. Raises ArchiveError, CloseFileError, OSError."""
    stream = closes.rows(part.manifest for part in parts)
    for part in parts:
        for row in itertools.islice(stream, part.manifest.rows.count):
            yield ExportRow(row, part)


def _corrections(
    closes: Closes, closed: dict[str, Month], period: range, as_of_ns: int | None
) -> Iterator[Part]:
    closed_with: dict[int, int] = {}
    for month, state in closed.items():
        kept = {parse_hour(text): one.revision for text, one in state.hours.items()}
        closed_with |= {hour: kept.get(hour, 0) for hour in month_hours(month)}
    if not closed_with:
        return
    for hour, newest in sorted(closes.numbers(range(min(closed_with), max(closed_with) + 1)).items()):
        if newest <= closed_with.get(hour, newest):
            continue
        before: Manifest | None = None
        for one in closes.revisions(hour):
            if as_of_ns is not None and one.closed_ns > as_of_ns:
                break
            if one.revision > closed_with[hour] and one.closed_ns // NS_PER_HOUR in period:
                if before is not None:
                    yield Part(before, Correction.REVERSAL, one.closed_ns)
                yield Part(one, Correction.RESTATED, one.closed_ns)
            before = one


def _order(part: Part) -> tuple[int, int, int]:
    return part.made_ns, part.manifest.hour, part.manifest.revision
