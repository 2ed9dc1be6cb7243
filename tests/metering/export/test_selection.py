"""What an export is made of: which revisions, in which month, and nothing twice, whatever comes late."""

import collections
import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metering.archive.objects import LocalObjects
from metering.cost.close_manifest import MonthState, Reason, month_hours, provisional
from metering.cost.closes import Closes
from metering.export import selection
from metering.export.export_parts import Correction
from metering.units import NS_PER_HOUR
from tests.support import closed

JANUARY, FEBRUARY, MARCH = (month_hours(f"2026-0{n}") for n in (1, 2, 3))
YEAR = range(JANUARY.start, month_hours("2026-12").stop)


@pytest.fixture
def closes(tmp_path: pathlib.Path) -> Closes:
    return Closes(LocalObjects(tmp_path))


def commit(closes: Closes, hour: int, revision: int, made_hour: int, micro_hours: int) -> None:
    rows = [closed.row(hour, micro_hours=micro_hours)]
    reason = Reason.FIRST if revision == 1 else Reason.LATE
    made_ns = made_hour * NS_PER_HOUR
    closes.commit(closed.manifest(rows, hour=hour, revision=revision, reason=reason, closed_ns=made_ns), rows)


def month_end(closes: Closes, month: str, at_hour: int) -> None:
    closes.commit_month(month, MonthState.CLOSED, bills=(), by="cli:test", at_ns=at_hour * NS_PER_HOUR)


def shown(closes: Closes, period: range, **more: int) -> list[tuple[int, int, str | None, str]]:
    """(hour, revision, correction, month that bills it)."""
    found = selection.select(closes, period, **more)
    return [
        (part.manifest.hour, part.manifest.revision, part.correction, part.billed_in) for part in found.parts
    ]


def amount(closes: Closes, period: range) -> int:
    found = selection.select(closes, period)
    return sum(one.part.sign * one.row.micro_hours for one in selection.rows(closes, found.parts))


def test_an_open_month_has_its_newest_revisions(closes: Closes) -> None:
    hour = JANUARY.start
    commit(closes, hour, 1, hour + 1, 5)
    commit(closes, hour, 2, hour + 9, 7)
    commit(closes, hour + 2, 1, hour + 3, 1)
    period = range(hour, hour + 4)
    assert shown(closes, period) == [(hour, 2, None, "2026-01"), (hour + 2, 1, None, "2026-01")]
    assert selection.select(closes, period).not_closed == (hour + 1, hour + 3)
    assert amount(closes, period) == 8


def test_a_closed_month_keeps_its_revisions_and_corrections_go_where_they_were_made(closes: Closes) -> None:
    hour = JANUARY.start
    commit(closes, hour, 1, hour + 1, 5)
    month_end(closes, "2026-01", FEBRUARY.start)
    commit(closes, hour, 2, FEBRUARY.start + 5, 7)
    commit(closes, hour, 3, MARCH.start + 5, 4)
    commit(closes, hour + 1, 1, MARCH.start + 6, 1)  # an hour that nobody had closed
    assert shown(closes, JANUARY) == [(hour, 1, None, "2026-01")]
    reversal, restated = Correction.REVERSAL, Correction.RESTATED
    assert shown(closes, FEBRUARY) == [(hour, 1, reversal, "2026-02"), (hour, 2, restated, "2026-02")]
    assert shown(closes, MARCH) == [
        (hour, 2, reversal, "2026-03"),
        (hour, 3, restated, "2026-03"),
        (hour + 1, 1, restated, "2026-03"),
    ]
    assert [amount(closes, month) for month in (JANUARY, FEBRUARY, MARCH)] == [5, 2, -2]
    states = selection.select(closes, range(JANUARY.stop - 1, FEBRUARY.start + 1)).months
    assert states == {"2026-01": "closed", "2026-02": "provisional"}


def test_as_of_a_moment_later_revisions_are_not_seen(closes: Closes) -> None:
    hour = JANUARY.start
    commit(closes, hour, 1, hour + 1, 5)
    commit(closes, hour, 2, hour + 5, 5)
    commit(closes, hour + 1, 1, hour + 6, 5)
    period = range(hour, hour + 2)
    wanted = {hour + 1: [(hour, 1)], hour + 5: [(hour, 2)], hour + 6: [(hour, 2), (hour + 1, 1)], hour: []}
    month_end(closes, "2026-01", FEBRUARY.start)
    commit(closes, hour, 3, FEBRUARY.start + 1, 9)
    for at_hour, found in wanted.items():
        assert [one[:2] for one in shown(closes, period, as_of_ns=at_hour * NS_PER_HOUR)] == found
    assert shown(closes, FEBRUARY, as_of_ns=FEBRUARY.start * NS_PER_HOUR) == []
    assert len(shown(closes, FEBRUARY, as_of_ns=(FEBRUARY.start + 1) * NS_PER_HOUR)) == 2


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=3), st.booleans())
def test_the_months_add_up_to_the_newest_revisions(
    tmp_path_factory: pytest.TempPathFactory, late: list[tuple[int, int]], is_closed: bool
) -> None:
    """Whatever comes late, and whether or not a month was closed before: the year's sum is what is known now."""
    closes = Closes(LocalObjects(tmp_path_factory.mktemp("closes")))
    revisions: collections.Counter[int] = collections.Counter()
    newest: dict[int, int] = {}
    for hour in range(JANUARY.start, JANUARY.start + 3):
        commit(closes, hour, 1, hour + 1, 1)
        revisions[hour], newest[hour] = 1, 1
    if is_closed:
        month_end(closes, "2026-01", FEBRUARY.start)
    for number, (at, days) in enumerate(sorted(late, key=lambda one: one[1])):
        hour = JANUARY.start + at
        revisions[hour] += 1
        newest[hour] = number + 2
        commit(closes, hour, revisions[hour], FEBRUARY.start + 24 * days + number, number + 2)
    months = [month_hours(f"2026-{n:02d}") for n in range(1, 6)]
    assert sum(amount(closes, month) for month in months) == sum(newest.values())
    assert amount(closes, YEAR) == sum(newest.values())
    if is_closed:
        assert amount(closes, JANUARY) == 3


@pytest.mark.parametrize("what", ["_state", "_corrections"])
def test_mutants_are_seen(what: str, closes: Closes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed month that takes its newest revisions; corrections that are no rows."""
    broken = {
        "_state": lambda _closes, month, _as_of: provisional(month),
        "_corrections": lambda *_: iter(()),
    }
    monkeypatch.setattr(selection, what, broken[what])
    with pytest.raises(AssertionError):
        test_a_closed_month_keeps_its_revisions_and_corrections_go_where_they_were_made(closes)
