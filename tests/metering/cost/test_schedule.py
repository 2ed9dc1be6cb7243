"""Schedules: read, refused, and what they come to, against the calendar."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost import intervals, schedule
from metering.cost.intervals import Interval
from metering.units import NS_PER_HOUR
from tests.oracle import hours as oracle

MINUTE_NS = NS_PER_HOUR // 60
MONDAY = 29_772_000  # 2026-08-10, in minutes since 1970
WEEK_MINUTES = 7 * 24 * 60


def minutes(text: str, first: int, last: int) -> set[int]:
    found = schedule.parse(text).between(first * MINUTE_NS, last * MINUTE_NS)
    assert found == intervals.union(found)
    return {at for one in found for at in range(one.from_ns // MINUTE_NS, one.to_ns // MINUTE_NS)}


@given(st.sampled_from(sorted(oracle.WEEKS)), st.integers(0, 80_000_000), st.integers(0, 3 * WEEK_MINUTES))
def test_a_schedule_is_what_the_calendar_says(text: str, first: int, length: int) -> None:
    when = oracle.WEEKS[text]
    epoch = datetime.datetime(1970, 1, 1)
    found = minutes(text, first, first + length)
    for at in range(first, first + length, 7):
        assert (at in found) == when(epoch + datetime.timedelta(minutes=at))


def test_the_monday_of_these_tests_is_one() -> None:
    assert (
        datetime.datetime.fromtimestamp(MONDAY * 60, datetime.UTC).isoformat() == "2026-08-10T00:00:00+00:00"
    )


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("always", 168),
        ("mon-sun 00:00-24:00", 168),
        ("mon-fri 07:00-19:00", 60),
        ("mon-fri 07:00-19:00, sat 08:00-12:00", 64),
        ("mon,wed-thu 09:30-10:00", 1.5),
        ("sat-mon 12:00-13:00", 3),
        ("sun 22:00-06:00", 8),
        ("mon 08:00-12:00, mon 10:00-14:00", 6),
        ("  mon 08:00 - 09:00 ,tue 08:00-09:00", 2),
    ],
)
def test_the_hours_of_a_week(text: str, hours: float) -> None:
    assert len(minutes(text, MONDAY, MONDAY + WEEK_MINUTES)) == hours * 60


def test_over_midnight_is_into_the_next_day_and_over_sunday_into_the_next_week() -> None:
    assert minutes("sun 22:00-06:00", MONDAY, MONDAY + 24 * 60) == set(range(MONDAY, MONDAY + 360))


def test_it_is_cut_where_it_is_asked_for() -> None:
    at_ns = MONDAY * MINUTE_NS + 8 * NS_PER_HOUR + 1
    found = schedule.parse("mon 07:00-19:00").between(at_ns, at_ns + 5)
    assert found == [Interval(at_ns, at_ns + 5)]
    assert schedule.parse("always").between(at_ns, at_ns) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no time of the week; write \"always\", or days"),
        ("sometimes", "'sometimes' is no time of the week"),
        ("mon-fri", "'mon-fri' is no time of the week"),
        ("mon-fry 07:00-19:00", "'fry' is no day; days are mon tue"),
        ("mon-fri 07:00-19:00,", "'' is no time of the week"),
        ("mon, 07:00-19:00", "'' is no day"),
        ("mon- 07:00-19:00", "'' is no day"),
        ("mon 07:60-19:00", "'07:60' is no time of a day"),
        ("mon 07:00-24:01", "'24:01' is no time of a day"),
        ("mon 24:00-08:00", "has no length"),
        ("mon 07:00-07:00", "has no length; a whole day is 00:00-24:00"),
        ("mon 7:00-19:00", "is no time of the week"),
        ("always, mon 07:00-19:00", "'always' is no day"),
        ("Mon 07:00-19:00", "is no time of the week"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        schedule.parse(text)
