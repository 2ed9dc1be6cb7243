"""Points in time as people write them. Pure."""

import datetime
import re

from metering.units import NS_PER_HOUR, NS_PER_S

_DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT_PATTERN = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_instant(text: str) -> int:
    """A date (its first moment) or an RFC 3339 time, as nanoseconds since 1970 (UTC), to the microsecond.

    Raises ValueError: it is neither. The machine's time zone plays no part.
    """
    try:
        if _DATE_PATTERN.fullmatch(text):
            moment = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
        elif _MOMENT_PATTERN.fullmatch(text):
            moment = datetime.datetime.fromisoformat(text.upper())
        else:
            raise ValueError
        since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; write a date (2026-11-01) or a time with its zone (2026-11-01T06:00:00Z)"
        ) from None
    return since // datetime.timedelta(microseconds=1) * 1_000


def instant_text(at_ns: int) -> str:
    """A point in time to the second, rounded down: "2026-11-01T06:00:00Z"."""
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=at_ns // NS_PER_S)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_moment(text: str) -> int:
    """A date (its first moment) or an RFC 3339 time, as hours since 1970 (UTC).

    Raises ValueError: it is neither, or not on a full hour of UTC, or before 1970.
    """
    hour, rest = divmod(parse_instant(text), NS_PER_HOUR)
    if hour < 0:
        raise ValueError(f"{text!r} is before 1970, and is no time of a call")
    if rest:
        raise ValueError(f"{text!r} is not on a full hour of UTC; the ledger keeps whole hours")
    return hour
