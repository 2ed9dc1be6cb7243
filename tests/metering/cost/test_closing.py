"""Closing hours: when they can be, what they hold, and what a later revision may change."""

import pathlib

import msgspec
import pytest

from metering.cost import close_hour, close_manifest
from metering.cost.allocation import Method
from metering.cost.close_hour import Terms
from metering.cost.close_manifest import Reason
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.closing import Told
from metering.cost.work_units import WorkUnits
from metering.units import usd_text
from tests.support.fleet import (
    AT_NS,
    HOUR,
    MINUTE_NS,
    NS_PER_HOUR,
    UUSD_PER_HOUR,
    Site,
    busy,
    registration,
    terms,
)
from tests.support.journals import Make, stop, tick

END_NS = AT_NS + NS_PER_HOUR
SOON_NS = END_NS + MINUTE_NS
HOURS = range(HOUR, HOUR + 1)


@pytest.fixture
def site(tmp_path: pathlib.Path) -> Site:
    return Site(tmp_path)


def of_kind(rows: list[CloseRow], kind: RowKind) -> dict[str | None, int]:
    return {row.tenant: row.micro_hours for row in rows if row.kind is kind}


def an_hour() -> list[Make]:
    """Boots for 15 minutes; acme holds a slot for half an hour, globex two for a quarter each, at the same time."""
    at = AT_NS + 20 * MINUTE_NS
    return [
        registration(AT_NS, "starting"),
        registration(AT_NS + 15 * MINUTE_NS),
        *busy("w-1", at, 30 * MINUTE_NS, cost_pusd=7),
        *busy("w-2", at, 15 * MINUTE_NS, tenant="globex", failed="inf2-a", cost_pusd=None),
        *busy("w-3", at, 0, tenant="initech", backend=None, cost_pusd=None),
        tick(at_ns=END_NS),
    ]


def test_an_hour_is_split_to_the_micro_hour(site: Site) -> None:
    site.journal(an_hour())
    (made,) = site.close(SOON_NS)
    rows = list(site.closes.rows([made]))
    # Slot-minutes of 4 × 60: startup 4 × 15, acme 30, globex 15, overhead 15, headroom 4 × 30 − 60, idle 4 × 15.
    assert of_kind(rows, RowKind.TENANT) == {"acme": 125_000, "globex": 62_500, "initech": 0}
    assert {row.kind: row.micro_hours for row in rows if row.kind is not RowKind.TENANT} == {
        RowKind.STARTUP: 250_000,
        RowKind.OVERHEAD: 62_500,
        RowKind.HEADROOM: 250_000,
        RowKind.IDLE: 250_000,
    }
    assert sum(row.micro_hours for row in rows) == 1_000_000
    assert sum(row.allocated_pusd or 0 for row in rows) == 1_000_000 * UUSD_PER_HOUR
    acme, globex, initech = (
        next(row for row in rows if row.tenant == name) for name in ("acme", "globex", "initech")
    )
    assert (acme.calls, acme.prompt_tokens, acme.estimated_pusd, acme.unpriced_calls) == (1, 100, 7, 0)
    assert (acme.slot_ns, globex.slot_ns) == (30 * MINUTE_NS, 15 * MINUTE_NS)
    assert (globex.unpriced_calls, globex.instance_id, globex.simulated) == (1, "i-1", True)
    assert (initech.instance_id, initech.backend, initech.calls, initech.pool) == (None, None, 1, "llama")
    assert [row.key for row in rows] == sorted(row.key for row in rows)


def test_what_the_manifest_says(site: Site) -> None:
    site.journal(an_hour())
    (made,) = site.close(SOON_NS)
    assert site.told == [Told(Reason.FIRST, (HOUR,))]
    assert (made.hour, made.revision, made.reason, made.basis) == (HOUR, 1, Reason.FIRST, "list")
    assert [(one.complete, one.seq) for one in made.writers] == [("tick", 10)]
    assert made.totals.instances == usd_text(1_000_000 * UUSD_PER_HOUR) == "12.981270000000"
    assert (made.totals.estimated, made.totals.calls) == ("0.000000000007", 3)
    assert made.totals.under_recovery == "12.981269999993"
    assert (made.ratios.used, made.ratios.busy, made.ratios.capacity) == (250_000, 500_000, None)
    assert (made.unpriced, made.missing, made.remarks) == ((), (), ())


def test_an_hour_waits_for_who_has_not_told_all(site: Site) -> None:
    path = site.journal([registration(AT_NS), tick(at_ns=END_NS - 1)])
    assert site.close(SOON_NS) == []
    assert site.closing(SOON_NS).waits_for(HOUR) == [path.name]
    (made,) = site.close(END_NS + 15 * MINUTE_NS)
    assert [one.complete for one in made.writers] == ["deadline"]


def test_an_hour_that_is_not_over_is_not_closed(site: Site) -> None:
    site.journal([registration(AT_NS), stop(at_ns=END_NS - 5)])
    assert site.close(END_NS - 1) == []
    assert [one.hour for one in site.close(END_NS)] == [HOUR]


def test_nothing_is_closed_twice(site: Site) -> None:
    site.journal(an_hour())
    assert len(site.close(SOON_NS)) == 1
    assert site.close(SOON_NS) == []


def test_late_records_make_a_revision_at_the_old_price(site: Site) -> None:
    site.journal(an_hour())
    (first,) = site.close(SOON_NS)
    other = "w" + "b" * 16
    site.journal(
        [*busy("v-1", AT_NS + 50 * MINUTE_NS, 10 * MINUTE_NS, tenant="late"), stop(at_ns=END_NS)],
        writer=other,
    )
    dearer = terms(price=lambda paid: None)
    (late,) = site.close(SOON_NS, terms=dearer)
    assert (late.revision, late.reason, late.prices) == (2, Reason.LATE, first.prices)
    rows = list(site.closes.rows([late]))
    assert of_kind(rows, RowKind.TENANT)["late"] in (41_666, 41_667)
    assert sum(row.allocated_pusd or 0 for row in rows) == 1_000_000 * UUSD_PER_HOUR
    assert site.close(SOON_NS) == []


def test_who_has_read_less_makes_no_revision(site: Site, tmp_path: pathlib.Path) -> None:
    site.journal(an_hour())
    other = "w" + "b" * 16
    site.journal([stop(at_ns=END_NS)], writer=other)
    site.close(SOON_NS)
    poorer = Site(tmp_path / "poorer")
    poorer.journal(an_hour())
    poorer.closes = site.closes
    third = "w" + "c" * 16
    poorer.journal([*busy("c-1", AT_NS, MINUTE_NS), stop(at_ns=END_NS)], writer=third)
    assert poorer.close(SOON_NS) == []


def test_a_price_that_comes_to_be_known_is_taken_up(site: Site) -> None:
    site.journal(an_hour())
    (unpriced,) = site.close(SOON_NS, terms=terms(price=lambda paid: None))
    assert unpriced.unpriced == ("inf2.48xlarge",)
    rows = list(site.closes.rows([unpriced]))
    assert {row.allocated_pusd for row in rows if row.instance_id} == {None}
    assert sum(row.micro_hours for row in rows) == 1_000_000
    (priced,) = site.close(SOON_NS)
    assert (priced.reason, priced.unpriced, priced.totals.instances) == (Reason.PRICES, (), "12.981270000000")


def test_a_look_into_a_running_hour_goes_up_to_now(site: Site) -> None:
    site.journal([*an_hour()[:3], tick(at_ns=AT_NS + 30 * MINUTE_NS)])
    look = site.closing(AT_NS + 30 * MINUTE_NS).look(HOUR, site.root / "work")
    rows = list(site.closes.rows([look]))
    assert sum(row.micro_hours for row in rows) == 500_000
    assert site.closes.hours(HOURS) == []
    assert site.closes.hours(HOURS, running=True) == [look]


def test_hours_without_anything_are_closed_too(site: Site) -> None:
    site.journal([stop(at_ns=AT_NS + 1)])
    made = site.close(AT_NS + 4 * NS_PER_HOUR)
    assert [(one.hour, one.rows.count) for one in made] == [(HOUR, 0), (HOUR + 1, 0), (HOUR + 2, 0)]


def test_costs_of_a_bill_stay_and_are_split_anew(site: Site) -> None:
    site.journal(an_hour())
    (first,) = site.close(SOON_NS)
    paid = 7_000_000_000_001  # of the instance, by a bill
    rows = list(site.closes.rows([first]))
    placed = close_hour.at_cost([row for row in rows if row.instance_id], paid)
    assert sum(row.allocated_pusd or 0 for row in placed) == paid
    reserved = CloseRow(
        hour=HOUR, kind=RowKind.RESERVED, instance_id="ri-1", allocated_pusd=5, method="slot-time"
    )
    billed = [msgspec.structs.replace(row, purchase_option="reserved") for row in placed]
    unplaced = [row for row in rows if not row.instance_id]
    bill = msgspec.structs.replace(
        first, basis="bill:ab", reason=Reason.BILL, revision=2, totals=close_manifest.totals(billed)
    )
    site.closes.commit(bill, sorted([*billed, *unplaced, reserved], key=lambda row: row.key))
    other = "w" + "b" * 16
    site.journal(
        [*busy("v-1", AT_NS + 50 * MINUTE_NS, 10 * MINUTE_NS, tenant="late"), stop(at_ns=END_NS)],
        writer=other,
    )
    (late,) = site.close(SOON_NS)
    assert (late.revision, late.reason, late.basis) == (3, Reason.LATE, "bill:ab")
    after = list(site.closes.rows([late]))
    assert sum(row.allocated_pusd or 0 for row in after if row.instance_id == "i-1") == paid
    assert {row.purchase_option for row in after if row.instance_id == "i-1"} == {"reserved"}
    assert [row for row in after if row.kind is RowKind.RESERVED] == [reserved]
    assert of_kind(after, RowKind.TENANT)["late"] in (41_666, 41_667)


def test_a_backend_that_moves_takes_its_calls_along(site: Site) -> None:
    """From i-1 to i-2 at half past: each instance has what ran while the backend was on it."""
    half = AT_NS + 30 * MINUTE_NS
    site.journal(
        [
            registration(AT_NS, terminated_ns=half),
            *busy("w-1", AT_NS + 20 * MINUTE_NS, 20 * MINUTE_NS),
            registration(half, "gone", terminated_ns=half),
            registration(half, instance_id="i-2"),
            tick(at_ns=END_NS),
        ]
    )
    (made,) = site.close(SOON_NS)
    rows = list(site.closes.rows([made]))
    # Ten of 4 × 30 slot-minutes on each instance, of half an hour each.
    tenants = {row.instance_id: row for row in rows if row.kind is RowKind.TENANT}
    assert {name: row.micro_hours for name, row in tenants.items()} == {"i-1": 41_667, "i-2": 41_667}
    assert {name: row.slot_ns for name, row in tenants.items()} == {
        "i-1": 10 * MINUTE_NS,
        "i-2": 10 * MINUTE_NS,
    }
    assert {name: row.calls for name, row in tenants.items()} == {
        "i-1": 0,
        "i-2": 1,
    }  # it finished on the second
    assert made.instances == {"i-1": 500_000, "i-2": 500_000}


def test_a_backend_over_two_instances_counts_its_calls_once(site: Site) -> None:
    site.journal(
        [
            registration(AT_NS),
            registration(AT_NS, instance_id="i-2"),
            *busy("w-1", AT_NS, 30 * MINUTE_NS),
            tick(at_ns=END_NS),
        ]
    )
    (made,) = site.close(SOON_NS)
    tenants = [row for row in site.closes.rows([made]) if row.kind is RowKind.TENANT]
    assert [(row.instance_id, row.micro_hours, row.calls, row.slot_ns) for row in tenants] == [
        ("i-1", 125_000, 1, 30 * MINUTE_NS),
        ("i-2", 125_000, 0, 0),
    ]


def test_calls_of_a_backend_that_nobody_pays_for_stand_without_an_instance(site: Site) -> None:
    site.journal([*busy("w-1", AT_NS, 30 * MINUTE_NS, cost_pusd=9), tick(at_ns=END_NS)])
    (made,) = site.close(SOON_NS)
    (row,) = site.closes.rows([made])
    assert (row.instance_id, row.backend, row.micro_hours, row.slot_ns) == (None, "inf2-a", 0, 30 * MINUTE_NS)
    assert (row.calls, row.estimated_pusd, row.instance_family) == (1, 9, "inf2")
    assert (made.totals.instances, made.totals.under_recovery) == ("0.000000000000", "-0.000000000009")


def test_hours_far_apart_are_read_apart(site: Site) -> None:
    """A call that lasts from the first into the last of them is in each."""
    days = 3
    hours = range(HOUR, HOUR + 24 * days)
    site.journal([registration(AT_NS), stop(at_ns=AT_NS + 24 * days * NS_PER_HOUR)])
    site.close(AT_NS + 24 * days * NS_PER_HOUR, hours)
    other = "w" + "b" * 16
    late = [*busy("v-1", AT_NS, 1, tenant="late"), *busy("v-2", AT_NS + 50 * NS_PER_HOUR, 1, tenant="late")]
    site.journal([*late, stop(at_ns=AT_NS + 50 * NS_PER_HOUR)], writer=other)
    made = site.close(AT_NS + 24 * days * NS_PER_HOUR, hours)
    assert {HOUR, HOUR + 50} <= {one.hour for one in made}
    found = [row for row in site.closes.rows(made) if row.tenant == "late"]
    assert [(row.hour, row.calls) for row in found] == [(HOUR, 1), (HOUR + 50, 1)]


def test_work_is_weighed_as_it_was_when_the_hour_was_closed(site: Site) -> None:
    """Two calls of 100 tokens in and 50 out, of 4,000,000 work units an hour for three quarters of one."""
    site.journal(an_hour())
    calibrated = WorkUnits(
        date="2025-01-01", hardware="inf2", model="llama", per_hour=4_000_000, source="bench"
    )

    def weighed(one: WorkUnits) -> Terms:
        return terms(Method.CAPACITY, weights=lambda model, instance_type, at_ns: one)

    (first,) = site.close(SOON_NS, terms=weighed(calibrated))
    assert (first.method, first.weights) == ("capacity", (calibrated,))
    assert first.pools["llama"].work_units == 2 * (100 * 1_000 + 50 * 4_000)
    assert first.pools["llama"].capacity_units == 3_000_000
    assert first.ratios.capacity == 200_000
    work = {row.tenant: row.work_units for row in site.closes.rows([first]) if row.tenant}
    assert work == {"acme": 300_000, "globex": 300_000, "initech": 0}
    other = "w" + "b" * 16
    site.journal(
        [*busy("v-1", AT_NS + 50 * MINUTE_NS, MINUTE_NS, tenant="late"), stop(at_ns=END_NS)], writer=other
    )
    changed = msgspec.structs.replace(calibrated, completion=1, per_hour=1, date="2026-01-01")
    (late,) = site.close(SOON_NS, terms=weighed(changed)._replace(method=Method.SLOT_TIME))
    assert (late.method, late.weights) == ("capacity", (calibrated,))
    assert late.pools["llama"].work_units == 900_000
