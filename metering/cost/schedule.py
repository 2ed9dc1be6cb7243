"""When an instance is paid for, as the configuration says it: `always`, or days and times. Pure.

    always
    mon-fri 07:00-19:00
    mon-thu 22:00-06:00, fri 22:00-24:00, sat,sun 00:00-24:00        over midnight: into the next day

Times are UTC, so no day has 23 or 25 hours. Days: mon tue wed thu fri sat sun; a range may go over the week's end.
"""

import re
from collections.abc import Iterable, Iterator

from metering.cost import intervals
from metering.cost.intervals import Interval
from metering.units import NS_PER_HOUR

ALWAYS = "always"
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_NS_PER_MINUTE = NS_PER_HOUR // 60
_MINUTES_PER_DAY = 24 * 60
_WEEK_NS = 7 * _MINUTES_PER_DAY * _NS_PER_MINUTE
_MONDAY_NS = 4 * _MINUTES_PER_DAY * _NS_PER_MINUTE  # the first one: 1970-01-05
_PART_PATTERN = re.compile(r"(?P<days>[a-z,\s-]+?)\s+(?P<from>\d\d:\d\d)\s*-\s*(?P<to>\d\d:\d\d)")
_FORM = 'write "always", or days and times in UTC, as in "mon-fri 07:00-19:00, sat 08:00-12:00"'


class Schedule:
    """A week of times, again and again."""

    def __init__(self, week: Iterable[Interval]) -> None:
        """week: intervals in ns since the week's first moment; they may go on into the next one."""
        self._week = tuple(week)

    def between(self, from_ns: int, to_ns: int) -> list[Interval]:
        """The times from one moment to another, as a set of intervals."""
        first = (from_ns - _MONDAY_NS) // _WEEK_NS - 1  # what began in the week before may go on
        last = (to_ns - _MONDAY_NS) // _WEEK_NS
        starts = (_MONDAY_NS + week * _WEEK_NS for week in range(first, last + 1))
        times = intervals.union(
            Interval(at + interval.from_ns, at + interval.to_ns) for at in starts for interval in self._week
        )
        return intervals.intersection(intervals.union([Interval(from_ns, to_ns)]), times)


def parse(text: str) -> Schedule:
    """Read a schedule. Raises ValueError: what is wrong, and how it is written."""
    if text.strip() == ALWAYS:
        return Schedule([Interval(0, _WEEK_NS)])
    return Schedule([interval for part in _parts(text) for interval in _week(part)])


def _parts(text: str) -> Iterator[str]:
    """Cut at the commas behind a time: those between days do not end a part."""
    yield from (part.strip() for part in re.split(r"(?<=\d)\s*,", text))


def _week(part: str) -> Iterator[Interval]:
    match = _PART_PATTERN.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is no time of the week; {_FORM}")
    begin, end = _minute(match["from"]), _minute(match["to"])
    if begin in (end, _MINUTES_PER_DAY):
        raise ValueError(f"{part!r} has no length; a whole day is 00:00-24:00")
    for day in _days(match["days"]):
        at = day * _MINUTES_PER_DAY
        over = _MINUTES_PER_DAY if end < begin else 0
        yield Interval((at + begin) * _NS_PER_MINUTE, (at + end + over) * _NS_PER_MINUTE)


def _days(text: str) -> Iterator[int]:
    for item in text.split(","):
        first, dash, last = (word.strip() for word in item.partition("-"))
        for name in (first, last if dash else first):
            if name not in DAYS:
                raise ValueError(f"{name!r} is no day; days are {' '.join(DAYS)}")
        day, end = DAYS.index(first), DAYS.index(last if dash else first)
        yield day
        while day != end:
            day = (day + 1) % len(DAYS)
            yield day


def _minute(text: str) -> int:
    hour, minute = int(text[:2]), int(text[3:])
    if minute > 59 or hour * 60 + minute > _MINUTES_PER_DAY:
        raise ValueError(f"{text!r} is no time of a day; from 00:00 to 24:00")
    return hour * 60 + minute
