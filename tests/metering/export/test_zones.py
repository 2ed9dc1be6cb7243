"""Days of other zones part the hours of UTC, whatever is done to clocks."""

import datetime
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.export import zones
from metering.export.zones import UnknownZone

ZONES = sorted(zoneinfo.available_timezones())
DAYS = st.dates(datetime.date(1971, 1, 2), datetime.date(2037, 12, 1))


@given(st.sampled_from(ZONES), DAYS)
def test_days_part_the_hours(name: str, day: datetime.date) -> None:
    where = zones.zone(name)
    try:
        hours = range(zones.first_hour(day, where), zones.first_hour(day + datetime.timedelta(days=1), where))
    except OverflowError:
        return
    assert len(hours) in range(22, 27) or len(hours) == 0 or name.startswith(("Pacific/", "Antarctica/"))
    for hour in hours:
        assert zones.day_of(hour, where) == day
    if hours:
        assert zones.day_of(hours.start - 1, where) < day
        assert zones.day_of(hours.stop, where) > day


def test_a_period_of_days_or_of_moments() -> None:
    berlin = zones.zone("Europe/Berlin")
    assert zones.parse_period("2025-03-30", "2025-03-31", berlin) == range(484_247, 484_270)  # 23 hours
    moments = ("2025-03-29T23:00:00Z", "2025-03-30T22:00:00Z")
    assert zones.parse_period(*moments, berlin) == zones.parse_period(*moments, datetime.UTC)
    for bad in (("2025-02-30", "2025-03-01"), ("x", "2025-03-01"), ("1969-01-01", "2025-03-01")):
        with pytest.raises(ValueError, match=r"is no time|is not on a full hour|is before 1970"):
            zones.parse_period(*bad, berlin)
    with pytest.raises(ValueError, match="not after its start"):
        zones.parse_period("2025-03-01", "2025-03-01", berlin)


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../../etc/passwd", "Europe", "/etc/localtime", "a\0b"])
def test_what_is_no_zone(name: str) -> None:
    with pytest.raises(UnknownZone, match="is no time zone"):
        zones.zone(name)


def test_a_system_without_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError

    monkeypatch.setattr(zoneinfo, "ZoneInfo", nothing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    assert zones.zone("UTC") is datetime.UTC
    with pytest.raises(UnknownZone, match="has no time zones; install the package tzdata"):
        zones.zone("Europe/Berlin")
