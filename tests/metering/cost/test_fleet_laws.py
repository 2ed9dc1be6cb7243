"""Closed hours of random fleets add up: to the instances' cost, to the calls, over late journals and a month's end."""

import collections
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.cost import close_hour, closing
from metering.cost.allocation import Allocated, InstanceHour, Method, Sharing, allocate
from metering.cost.close_manifest import Manifest, Reason
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.hours import PaidHour, Told, paid_hours
from tests.oracle import hours as oracle
from tests.support.fleet import AT_NS, HOUR, NS_PER_HOUR, UUSD_PER_HOUR, Site, terms
from tests.support.random_fleet import FIRST, HOURS, MINUTES, Journal, RandomFleet

LATER_NS = AT_NS + 3 * NS_PER_HOUR
METHODS = st.sampled_from(Method)
SHARINGS = st.sampled_from(Sharing)


class Closed:
    """Hours of a fleet, closed: at first without one writer's journal if `late`, and then with it."""

    def __init__(
        self, root: pathlib.Path, fleet: RandomFleet, method: Method, sharing: Sharing, late: bool
    ) -> None:
        self.fleet = fleet
        self._site = Site(root)
        self._rules = {"terms": terms(method, sharing)}
        journals = list(fleet.journals)

        def add(journal: Journal) -> None:
            self._site.journal(journal.makes, writer=journal.writer, at_ns=journal.at_ns)

        for journal in journals[late:]:
            add(journal)
        self.first = self._close()
        if late:
            add(journals[0])
        self.again = self._close()

    def _close(self) -> list[Manifest]:
        return self._site.close(LATER_NS, HOURS, **self._rules)

    def close_once_more(self) -> list[Manifest]:
        return self._close()

    @property
    def manifests(self) -> list[Manifest]:
        return self._site.closes.hours(HOURS)

    @property
    def rows(self) -> list[CloseRow]:
        return list(self._site.closes.rows(self.manifests))


def instances_cost_what_the_minutes_say(closed: Closed) -> bool:
    """Σ over all rows of an instance's hour, against a walk through the minutes; the hours against each other."""
    minutes = oracle.minutes(closed.fleet.words, closed.fleet.last, range(FIRST, FIRST + MINUTES))
    paid = collections.Counter[tuple[str, int]]((instance, at // 60) for instance, at in minutes)
    found = collections.Counter[tuple[str, int]]()
    cost = collections.Counter[tuple[str, int]]()
    for row in closed.rows:
        if row.instance_id is not None:
            assert row.allocated_pusd is not None
            found[row.instance_id, row.hour] += row.micro_hours
            cost[row.instance_id, row.hour] += row.allocated_pusd
    told = {
        (instance, one.hour): amount for one in closed.manifests for instance, amount in one.instances.items()
    }
    return (
        paid.keys() == found.keys() == told.keys()
        and all(abs(found[key] - Fraction(paid[key] * 1_000_000, 60)) < 10 for key in paid)
        and dict(found) == told
        and all(cost[key] == told[key] * UUSD_PER_HOUR for key in told)
    )


def calls_stand_once(closed: Closed) -> bool:
    """Calls, estimate and unpriced ones by tenant and hour, over all instances."""
    wanted = collections.Counter[tuple[int, str, str]]()
    for call in (call for calls in closed.fleet.calls.values() for call in calls):
        hour = call.finished // 60
        if hour in HOURS:
            wanted[hour, call.tenant, "calls"] += 1
            wanted[hour, call.tenant, "pusd"] += call.cost_pusd or 0
            wanted[hour, call.tenant, "unpriced"] += call.cost_pusd is None
    found = collections.Counter[tuple[int, str, str]]()
    for row in closed.rows:
        if row.kind is RowKind.TENANT:
            assert row.tenant is not None
            found[row.hour, row.tenant, "calls"] += row.calls
            found[row.hour, row.tenant, "pusd"] += row.estimated_pusd
            found[row.hour, row.tenant, "unpriced"] += row.unpriced_calls
    return +wanted == +found


def sharing_moves_and_makes_nothing(closed: Closed) -> bool:
    sums = collections.Counter[tuple[int, str | None]]()
    for row in closed.rows:
        sums[row.hour, row.instance_id] += row.shared_micro_hours
    return not any(sums.values())


def months_are_their_hours(closed: Closed) -> bool:
    """Each month's tenants and rest are what its instances cost; every row is of one hour of one month."""
    for hours in (range(HOURS.start, HOUR), range(HOUR, HOURS.stop)):
        rows = [row for row in closed.rows if row.hour in hours]
        cost = (
            sum(sum(one.instances.values()) for one in closed.manifests if one.hour in hours) * UUSD_PER_HOUR
        )
        tenants = sum(row.allocated_pusd or 0 for row in rows if row.kind is RowKind.TENANT)
        rest = sum(row.allocated_pusd or 0 for row in rows if row.kind is not RowKind.TENANT)
        if tenants + rest != cost:
            return False
    return True


LAWS: list[Callable[[Closed], bool]] = [
    instances_cost_what_the_minutes_say, calls_stand_once, sharing_moves_and_makes_nothing, months_are_their_hours,
]  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9), METHODS, SHARINGS)
def test_hours_of_a_fleet_add_up(seed: int, method: Method, sharing: Sharing) -> None:
    with tempfile.TemporaryDirectory() as root:
        closed = Closed(pathlib.Path(root), RandomFleet(seed), method, sharing, late=False)
        assert [law.__name__ for law in LAWS if not law(closed)] == []
        assert [one.hour for one in closed.first] == list(HOURS)
        assert closed.again == []


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**9), METHODS)
def test_a_journal_that_comes_late_leads_to_the_same_rows(seed: int, method: Method) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        late = Closed(pathlib.Path(one), RandomFleet(seed), method, Sharing.NONE, late=True)
        at_once = Closed(pathlib.Path(other), RandomFleet(seed), method, Sharing.NONE, late=False)
        assert late.rows == at_once.rows
        assert [law.__name__ for law in LAWS if not law(late)] == []
        assert {made.reason for made in late.again} <= {Reason.LATE}
        assert late.close_once_more() == []


def each_writer_by_itself(told: Iterable[Told], last_ns: Mapping[str, int], period: range) -> list[PaidHour]:
    told = list(told)
    by_writer = {
        writer: paid_hours([one for one in told if one.writer == writer], last_ns, period)
        for writer in {writer for writer, _ in told}
    }
    found = (one for hours in by_writer.values() for one in hours)
    return sorted(found, key=lambda one: (one.hour, one.instance_id))


def from_the_first_word(told: Iterable[Told], last_ns: Mapping[str, int], period: range) -> list[PaidHour]:
    plain = [one._replace(line=msgspec.structs.replace(one.line, launched_ns=None)) for one in told]
    return paid_hours(plain, last_ns, period)


def without_headroom(hour: InstanceHour, method: Method, sharing: Sharing) -> Allocated:
    whole = allocate(hour, method, sharing)
    return msgspec.structs.replace(
        whole, portions=tuple(one for one in whole.portions if one.kind is not RowKind.HEADROOM)
    )


def shared_twice(hour: InstanceHour, method: Method, sharing: Sharing) -> Allocated:
    whole = allocate(hour, method, Sharing.WEIGHTED)
    return msgspec.structs.replace(
        whole,
        portions=tuple(
            msgspec.structs.replace(one, shared_micro_hours=max(0, one.shared_micro_hours))
            for one in whole.portions
        ),
    )


@pytest.mark.parametrize(
    ("place", "name", "wrong", "law"),
    [
        (closing, "paid_hours", each_writer_by_itself, instances_cost_what_the_minutes_say),
        (closing, "paid_hours", from_the_first_word, instances_cost_what_the_minutes_say),
        (close_hour.allocation, "allocate", without_headroom, months_are_their_hours),
        (close_hour.allocation, "allocate", shared_twice, sharing_moves_and_makes_nothing),
    ],
)
def test_a_wrong_close_breaks_its_law(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    place: object,
    name: str,
    wrong: object,
    law: Callable[[Closed], bool],
) -> None:
    monkeypatch.setattr(place, name, wrong)
    fleets = (RandomFleet(seed) for seed in range(20))
    assert any(
        not law(Closed(tmp_path / str(number), fleet, Method.SLOT_TIME, Sharing.NONE, late=False))
        for number, fleet in enumerate(fleets)
    )
