"""Costs that are no instance: a month adds up to its amount, and each hour to its part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost import close_manifest, shared_costs
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.shared_costs import SharedCost, Split

NOVEMBER = close_manifest.month_hours("2026-11")


def of(tenant: str | None, list_pusd: int | None, kind: RowKind = RowKind.TENANT) -> CloseRow:
    return CloseRow(hour=1, kind=kind, tenant=tenant, list_pusd=list_pusd, method="slot-time")


ROWS = [of("b", 1), of("a", 5), of("b", 3), of(None, 100, RowKind.IDLE), of("c", None)]


@given(st.integers(0, 10**12), st.sampled_from(["2026-02", "2028-02", "2026-11", "2026-12"]))
def test_the_hours_of_a_month_add_up_to_its_amount(uusd: int, month: str) -> None:
    cost = SharedCost(name="s3", uusd_per_month=uusd)
    parts = [cost.pusd(hour) or 0 for hour in close_manifest.month_hours(month)]
    assert sum(parts) == uusd * 10**6
    assert max(parts) - min(parts) <= 1


def test_it_runs_from_one_hour_up_to_another() -> None:
    cost = SharedCost(name="s3", uusd_per_hour=7, from_hour=10, to_hour=12)
    assert [cost.pusd(hour) for hour in (9, 10, 11, 12)] == [None, 7_000_000, 7_000_000, None]
    assert shared_costs.rows([cost], 9, ROWS) == []


@pytest.mark.parametrize(
    ("split", "rows", "shares"),
    [
        (Split.NONE, ROWS, {None: 9_000_000}),
        (Split.EVEN, ROWS, {"a": 3_000_000, "b": 3_000_000, "c": 3_000_000}),
        (Split.ALLOCATED, ROWS, {"a": 5_000_000, "b": 4_000_000}),
        (Split.EVEN, [of(None, 5, RowKind.IDLE)], {None: 9_000_000}),  # nobody is there
        (Split.ALLOCATED, [of("c", None)], {None: 9_000_000}),  # nobody's price is known
    ],
)
def test_who_has_which_part(split: Split, rows: list[CloseRow], shares: dict[str | None, int]) -> None:
    cost = SharedCost(name="s3", uusd_per_hour=9, split=split)
    made = shared_costs.rows([cost], 1, rows)
    assert {row.tenant: row.allocated_pusd for row in made} == shares
    assert {(row.kind, row.backend, row.method, row.micro_hours, row.instance_id) for row in made} == {
        (RowKind.SHARED_COST, "s3", split.value, 0, None)
    }


@given(
    st.integers(0, 10**9),
    st.sampled_from(Split),
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 10**15))),
)
def test_nothing_is_lost_among_tenants(
    uusd: int, split: Split, tenants: list[tuple[str, int | None]]
) -> None:
    cost = SharedCost(name="s3", uusd_per_hour=uusd, split=split)
    made = shared_costs.rows([cost], 1, [of(*one) for one in tenants])
    assert sum(row.allocated_pusd or 0 for row in made) == uusd * 10**6


def test_they_are_in_no_sum_of_what_instances_cost() -> None:
    made = shared_costs.rows([SharedCost(name="s3", uusd_per_hour=9)], 1, ROWS)
    found = close_manifest.totals([*made, CloseRow(hour=1, kind=RowKind.IDLE, allocated_pusd=5, method="m")])
    assert found.instances == found.under_recovery == "0.000000000005"
    assert found.rest["shared_cost"] == "0.000009000000"
