"""Days of other time zones, as hours of UTC.

An hour of UTC belongs to the local day in which it begins. So the days of any zone part the hours: none is in two, none
in no day, also where clocks are set (23 or 25 hours), and where a zone is half an hour off.
"""

import datetime
import re
import zoneinfo

from metering.periods import parse_moment
from metering.units import NS_PER_HOUR, NS_PER_S

UTC = "UTC"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_HOUR = datetime.timedelta(hours=1)


_DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


class UnknownZone(ValueError):
    """There is no such time zone, as far as this system knows."""


def zone(name: str) -> datetime.tzinfo:
    """A zone by its name in the IANA database, as in Europe/Berlin. Raises UnknownZone."""
    if name == UTC:  # known without a database
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    if not zoneinfo.available_timezones():
        raise UnknownZone(
            f"{name}: this system has no time zones; install the package tzdata (Debian's, or PyPI's)"
        )
    raise UnknownZone(f"{name!r} is no time zone; write one as in Europe/Berlin")


def parse_period(start: str, end: str, where: datetime.tzinfo) -> range:
    """Hours since 1970 (UTC) from `start` up to, and without, `end`: dates are days of the zone, times have their own.

    Raises ValueError: one is no time, or is not on a full hour of UTC, or the period has no hour.
    """
    hours = range(_parse(start, where), _parse(end, where))
    if not hours:
        raise ValueError(f"the period ends at {end}, which is not after its start, {start}")
    return hours


def _parse(text: str, where: datetime.tzinfo) -> int:
    if where is datetime.UTC or not _DATE_PATTERN.fullmatch(text):
        return parse_moment(text)
    try:
        hour = first_hour(datetime.date.fromisoformat(text), where)
    except (ValueError, OverflowError):
        hour = -1
    return hour if hour >= 0 else parse_moment(text)  # which says what is wrong with it


def first_hour(day: datetime.date, where: datetime.tzinfo) -> int:
    """The first hour of a local day: of those that begin in it, as hours since 1970 (UTC)."""
    midnight = datetime.datetime.combine(day, datetime.time(), tzinfo=where)
    since = midnight.astimezone(datetime.UTC) - _EPOCH
    return -(-since // _HOUR)


def day_of(hour: int, where: datetime.tzinfo) -> datetime.date:
    """The local day that an hour belongs to."""
    return datetime.datetime.fromtimestamp(hour * NS_PER_HOUR // NS_PER_S, where).date()
