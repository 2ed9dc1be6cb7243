"""The bill of a month, against closed hours: 0 is left over, and each planted fault is named.

What a bill comes to is known from tests/support/cur.py, which makes it and imports nothing of ours.
"""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost import bill_reader
from metering.cost.bill import Line, Meaning, fold
from metering.cost.bill_reader import Wanted
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.reconcile import Reconciled, Reconciling, What
from metering.units import NS_PER_HOUR
from tests.support import billed, cur


def amounts(hours: billed.Hours) -> dict[tuple[str, int], int]:
    """What the rows say of each (instance, hour)."""
    found: dict[tuple[str, int], int] = {}
    for rows in hours.values():
        for row in rows:
            if row.instance_id is not None and row.kind is not RowKind.RESERVED:
                place = row.instance_id, row.hour
                found[place] = found.get(place, 0) + (row.allocated_pusd or 0)
    return found


def reserved(hours: billed.Hours) -> int:
    return sum(
        row.allocated_pusd or 0 for rows in hours.values() for row in rows if row.kind is RowKind.RESERVED
    )


def run(bill: cur.Bill, tmp_path: pathlib.Path, hours: billed.Hours | None = None) -> Reconciled:
    path = cur.write_csv(bill.cur(), tmp_path / "bill.csv")
    closed = billed.closed(bill) if hours is None else hours
    result, _ = billed.reconcile(billed.read([path], closed), closed)
    return result


def found(result: Reconciled, what: What) -> list[str]:
    return [finding.of for finding in result.findings if finding.what is what]


@pytest.mark.parametrize("form", ["csv", "gz", "parquet", "focus 1.0", "focus 1.2"])
def test_a_bill_reconciles_to_nothing_in_every_form(form: str, tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=12, hours=96)  # a whole month of 40: tests/integration/test_reconcile.py
    if form.startswith("focus"):
        path = cur.write_csv(bill.focus(form.partition(" ")[2]), tmp_path / "bill.csv")
    elif form == "parquet":
        path = cur.write_parquet(bill.cur(), tmp_path / "bill.parquet")
    else:
        path = cur.write_csv(bill.cur(), tmp_path / "bill.csv.gz", packed=form == "gz")
    closed = billed.closed(bill)
    read = billed.read([path], closed)
    result, new = billed.reconcile(read, closed)
    assert result.rest_pusd == result.difference_pusd == 0
    assert result.is_explained
    assert result.billed_pusd == bill.total
    assert amounts(new) == bill.cost
    assert reserved(new) == bill.reserved
    assert {finding.what for finding in result.findings} <= {What.SPLIT}
    assert read.split_rows == (0 if form.startswith("focus") else bill.count)
    assert (read.month, read.invoiced) == ("2026-11", form != "focus 1.0")
    assert read.approximate == (form == "parquet")


def test_every_row_gets_its_part_of_the_hour_and_what_is_shared_follows(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    closed = billed.closed(bill)
    path = cur.write_csv(bill.cur(), tmp_path / "bill.csv")
    _, new = billed.reconcile(billed.read([path], closed), closed)
    for hour, rows in new.items():
        before = {row.key: row for row in closed[hour]}
        own = [row for row in rows if row.kind is not RowKind.RESERVED]
        for row in own:
            cost = bill.cost[str(row.instance_id), hour]
            total = sum(one.micro_hours for one in own if one.instance_id == row.instance_id)
            assert row.allocated_pusd is not None
            assert abs(row.allocated_pusd * total - cost * row.micro_hours) < total  # within a picodollar
            assert row.micro_hours == before[row.key].micro_hours
            assert row.list_pusd == before[row.key].list_pusd
            if row.kind is RowKind.IDLE:
                assert row.shared_pusd == -row.allocated_pusd
        assert sum(row.shared_pusd or 0 for row in own) == 0
        assert [row.key for row in rows] == sorted(row.key for row in rows)


def test_a_second_bill_undoes_the_first(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    closed = billed.closed(bill)
    first = billed.read([cur.write_csv(bill.cur(), tmp_path / "first.csv")], closed)
    _, new = billed.reconcile(first, closed)
    again, same = billed.reconcile(first, new)
    assert (same, again.rest_pusd) == (new, 0)
    bill.charges = [charge for charge in bill.charges if charge.resource != bill.fleet[0].id]
    second = billed.read([cur.write_csv(bill.cur(), tmp_path / "second.csv")], closed)
    result, after = billed.reconcile(second, new)
    listed = [row for rows in after.values() for row in rows if row.instance_id == bill.fleet[0].id]
    before = [row for rows in closed.values() for row in rows if row.instance_id == bill.fleet[0].id]
    assert [(row.allocated_pusd, row.shared_pusd) for row in listed] == [
        (row.allocated_pusd, row.shared_pusd) for row in sorted(before, key=lambda row: (row.hour, row.key))
    ]
    assert found(result, What.NOT_BILLED) == [bill.fleet[0].id]


def test_a_block_is_spread_over_its_hours_and_those_who_ran_in_it(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=96)
    bill.block(ran=(24, 12))
    closed = billed.closed(bill)
    path = cur.write_csv(bill.cur(), tmp_path / "bill.csv")
    result, new = billed.reconcile(billed.read([path], closed), closed)
    assert result.difference_pusd == 0
    assert result.by_meaning[Meaning.CAPACITY_BLOCK].pusd == bill.block_pusd
    of_block = {place: pusd for place, pusd in amounts(new).items() if place[0].startswith("i-block")}
    each = bill.block_pusd / 48
    assert all(abs(pusd - each) < 2 for pusd in of_block.values())
    assert len(of_block) == 36
    unused = reserved(new) - bill.reserved
    assert unused == bill.block_pusd - sum(of_block.values())
    assert abs(unused - 12 * each) < 24


def test_credits_refunds_taxes_and_traffic_are_shown_and_not_allocated(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    extra = bill.shown_only()
    result = run(bill, tmp_path)
    assert result.billed_pusd == bill.total + extra
    assert result.difference_pusd == extra
    assert result.rest_pusd == 0
    assert set(result.explained) == {"credit", "refund", "tax", Meaning.OTHER.value}


def test_discounts_lower_what_they_are_discounts_of(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=8, hours=48)
    off = bill.discounts()
    closed = billed.closed(bill)
    path = cur.write_csv(bill.cur(), tmp_path / "bill.csv")
    result, new = billed.reconcile(billed.read([path], closed), closed)
    assert result.difference_pusd == 0
    assert result.billed_pusd == bill.total + off
    lower = {place for place, pusd in amounts(new).items() if pusd < bill.cost[place]}
    on_demand = {one.id for one in bill.fleet if one.option == "on-demand"}
    assert {instance for instance, _ in lower} == on_demand
    assert sum(amounts(new).values()) == sum(bill.cost.values()) + off


def test_an_instance_that_nobody_registered_is_named(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=8, hours=48)
    gone = bill.fleet[4]
    hours = {
        hour: [row for row in rows if row.instance_id != gone.id]
        for hour, rows in billed.closed(bill).items()
    }
    result = run(bill, tmp_path, hours)
    (finding,) = [one for one in result.findings if one.what is What.NOT_REGISTERED]
    assert (finding.of, finding.hours) == (gone.id, len(gone.hours))
    assert finding.pusd == sum(pusd for (one, _), pusd in bill.cost.items() if one == gone.id)
    assert result.explained == {What.NOT_REGISTERED.value: finding.pusd}
    assert result.is_explained


def test_an_instance_that_is_not_billed_is_named_and_keeps_its_list_price(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=8, hours=48)
    gone = bill.fleet[4]
    closed = billed.closed(bill)
    bill.charges = [charge for charge in bill.charges if charge.resource != gone.id]
    result = run(bill, tmp_path, closed)
    listed = sum(row.list_pusd or 0 for rows in closed.values() for row in rows if row.instance_id == gone.id)
    assert found(result, What.NOT_BILLED) == [gone.id]
    assert result.explained == {"hours counted, not billed, at list price": -listed}
    assert result.rest_pusd == 0


def test_hours_that_are_missing_on_either_side_are_named(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=8, hours=48)
    one, other = bill.fleet[0], bill.fleet[1]
    hours = billed.closed(bill)
    at = bill.span.start + 10
    hours[at] = [row for row in hours[at] if row.instance_id != one.id]
    bill.charges = [
        charge
        for charge in bill.charges
        if (charge.resource, charge.start) not in ((other.id, 11), (other.id, 12))
    ]
    result = run(bill, tmp_path, hours)
    assert [
        (finding.what, finding.of, finding.hours, finding.first_hour)
        for finding in result.findings
        if finding.what is not What.SPLIT
    ] == [
        (What.HOURS_NOT_COUNTED, one.id, 1, at),
        (What.HOURS_NOT_BILLED, other.id, 2, at + 1),
    ]
    assert result.explained[What.HOURS_NOT_COUNTED.value] == bill.cost[one.id, at]
    assert result.rest_pusd == 0


def test_hours_that_are_not_closed_are_named(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    hours = billed.closed(bill)
    late = [bill.span.start + 22, bill.span.start + 23]
    for hour in late:
        del hours[hour]
    result = run(bill, tmp_path, hours)
    assert set(found(result, What.HOURS_NOT_CLOSED)) == {one.id for one in bill.fleet if 23 in one.hours}
    assert "unused commitments of hours that are not closed" in result.explained
    assert result.rest_pusd == 0


def test_a_wrong_list_price_is_named_and_changes_no_cost(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=8, hours=24)
    hours = billed.closed(bill)
    bill.charges = [
        cur.dataclasses.replace(charge, rate=130_000_000_000)
        if charge.instance_type == "inf2.48xlarge" and charge.region == "us-east-1" and charge.resource in
        cur.ids(bill.fleet)
        else charge
        for charge in bill.charges
    ]  # fmt: skip
    result = run(bill, tmp_path, hours)
    (finding,) = [one for one in result.findings if one.what is What.PRICE]
    assert finding.of == "inf2.48xlarge in us-east-1"
    assert "12981270 µ$ an hour here (a list, 2026-07-20), 13000000 µ$ on the bill" in finding.detail
    assert result.difference_pusd == 0


def test_an_instance_without_a_price_here_costs_what_the_bill_says(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=1, hours=4)
    (one,) = bill.fleet
    hours = {
        at: billed.rows_of(one, at, 1_000_000, None) for at in range(bill.span.start, bill.span.start + 4)
    }
    result = run(bill, tmp_path, hours)
    assert [finding.detail.startswith("none an hour here") for finding in result.findings if
            finding.what is What.PRICE] == [True]  # fmt: skip
    assert result.difference_pusd == 0
    bill.charges = bill.charges[:1]
    unknown = run(bill, tmp_path, hours)
    assert found(unknown, What.HOURS_NOT_BILLED) == [one.id]
    assert unknown.rest_pusd == 0


def test_what_others_reserved_is_named_and_is_none_of_ours(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    bill.charges += [
        cur.Charge("RIFee", 0, 24, 0, 0, "HeavyUsage:trn2.48xlarge", "trn2.48xlarge", reservation="ri-7",
                   unused_upfront=24, id="r1"),
        cur.Charge("SavingsPlanRecurringFee", 5, 6, 0, 0, "EC2SP:trn1n.1yr", plan="sp-8", plan_family="trn1n",
                   plan_total=9, plan_used=2, id="p1"),
    ]  # fmt: skip
    hours = billed.closed(bill)
    path = cur.write_csv(bill.cur(), tmp_path / "bill.csv")
    read = bill_reader.read([path], None, lambda _: Wanted(cur.ids(bill.fleet), (*billed.FAMILIES, "trn2")))
    result, new = billed.reconcile(read, hours)
    assert [
        (one.of, one.hours, one.pusd) for one in result.findings if one.what is What.UNUSED_ELSEWHERE
    ] == [
        ("ri-7, trn2", 24, 2_400),
        ("sp-8, trn1n", 1, 700),
    ]
    assert result.explained == {What.UNUSED_ELSEWHERE.value: 3_100}
    assert reserved(new) == bill.reserved
    assert result.rest_pusd == 0


def test_doubled_lines_count_once_and_are_named(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    doubled = [charge for charge in bill.charges if charge.resource == bill.fleet[1].id][:5]
    bill.charges += doubled
    result = run(bill, tmp_path)
    (finding,) = [one for one in result.findings if one.what is What.DOUBLED]
    assert finding.detail == "5 lines"
    assert finding.pusd == sum(charge.effective for charge in doubled) * cur.PUSD_PER_PART
    assert result.difference_pusd == 0


def test_a_line_that_comes_again_under_another_id_is_an_hour_too_long(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    (charge,) = [one for one in bill.charges if (one.resource, one.start) == (bill.fleet[1].id, 9)]
    bill.charges.append(cur.dataclasses.replace(charge, id="another"))
    result = run(bill, tmp_path)
    assert found(result, What.OVER_AN_HOUR) == [bill.fleet[1].id]


def test_a_negation_that_was_left_out_is_named_and_is_no_success(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=8, hours=24)
    (gone, *_) = [charge for charge in bill.charges if charge.line_type == "SavingsPlanNegation"]
    bill.charges.remove(gone)
    result = run(bill, tmp_path)
    (finding,) = [one for one in result.findings if one.what is What.UNBALANCED]
    assert finding.of == "sp-0bb2, USW2-BoxUsage:trn1.32xlarge"
    assert finding.pusd == -gone.cost * cur.PUSD_PER_PART
    assert result.rest_pusd == 0
    assert not result.is_explained


def test_a_line_type_that_nobody_knows_is_left_over(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=4, hours=24)
    ours = bill.fleet[0]
    bill.charges.append(cur.Charge("Rounding", 0, 1, 17, 17, ours.usage_type, ours.type, ours.id, id="new"))
    result = run(bill, tmp_path)
    assert found(result, What.UNKNOWN) == ["Rounding"]
    assert result.rest_pusd == 17 * cur.PUSD_PER_PART
    assert not result.is_explained


def test_hours_of_another_length_are_named(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=1, hours=4)
    (one,) = bill.fleet
    hours = billed.closed(bill)
    for at, micro_hours in ((1, 983_333), (2, 983_332)):  # a minute less is nothing to speak of
        hour = bill.span.start + at
        hours[hour] = billed.rows_of(one, hour, micro_hours, one.rate // 10_000)
    result = run(bill, tmp_path, hours)
    (finding,) = [found for found in result.findings if found.what is What.HOURS_DIFFER]
    assert (finding.hours, finding.micro_hours) == (1, 16_668)
    assert result.difference_pusd == 0


def test_a_discount_of_nothing_and_lines_of_other_months_are_named(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=1, hours=4)
    (ours,) = bill.fleet
    bill.charges += [
        cur.Charge("EdpDiscount", 0, 4, -3, 0, "BoxUsage:inf2.8xlarge", "inf2.8xlarge", id="d1"),
        cur.Charge("EdpDiscount", 900, 901, -4, 0, ours.usage_type, ours.type, ours.id, id="d2"),
        cur.Charge("Usage", -5, -4, 11, 11, ours.usage_type, ours.type, ours.id, ours.region, id="u1"),
        cur.Charge("RIFee", 719, 721, 0, 8, "HeavyUsage:inf2.48xlarge", "inf2.48xlarge", reservation="ri-1",
                   unused_upfront=8, id="r1"),
    ]  # fmt: skip
    result = run(bill, tmp_path)
    assert result.explained == {
        What.OUTSIDE.value: (11 + 4) * cur.PUSD_PER_PART,
        What.UNPLACED.value: -7 * cur.PUSD_PER_PART,
    }
    assert found(result, What.OUTSIDE) == found(result, What.UNPLACED) == ["the bill"]
    assert result.rest_pusd == 0


def test_what_is_simulated_shared_or_served_by_nobody_stays_as_it_is(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=1, hours=4)
    at = bill.span.start
    kept = [
        CloseRow(hour=at, kind=RowKind.TENANT, tenant="acme", calls=1, method=billed.METHOD),
        CloseRow(hour=at, kind=RowKind.SHARED_COST, backend="s3", allocated_pusd=5, method=billed.METHOD),
        CloseRow(hour=at, kind=RowKind.IDLE, instance_id="i-sim", simulated=True, micro_hours=9, allocated_pusd=9,
                 method=billed.METHOD),
        CloseRow(hour=at, kind=RowKind.TENANT, instance_id=bill.fleet[0].id, backend="b0", tenant="late",
                 method=billed.METHOD),
    ]  # fmt: skip
    hours = billed.closed(bill)
    hours[at] = kept
    path = cur.write_csv(bill.cur(), tmp_path / "bill.csv")
    result, new = billed.reconcile(billed.read([path], hours), hours)
    assert [row for row in new[at] if row.kind is not RowKind.RESERVED] == sorted(
        kept, key=lambda row: row.key
    )
    assert found(result, What.HOURS_NOT_COUNTED) == [bill.fleet[0].id]
    assert result.rest_pusd == 0


PLACES = st.tuples(st.sampled_from(["i-a", "i-b", "i-c"]), st.integers(1_000, 1_005))


@given(
    st.dictionaries(PLACES, st.tuples(st.integers(0, 1_100_000), st.integers(-(10**14), 10**14))),
    st.dictionaries(PLACES, st.tuples(st.integers(0, 1_000_000), st.none() | st.integers(0, 10**9))),
    st.dictionaries(st.integers(999, 1_007), st.integers(-(10**12), 10**12)),
    st.sets(st.integers(1_000, 1_005)),
)
def test_whatever_the_bill_and_the_books_say_nothing_is_left_over(
    charged: dict[tuple[str, int], tuple[int, int]],
    counted: dict[tuple[str, int], tuple[int, int | None]],
    unused: dict[int, int],
    hours: set[int],
) -> None:
    common = {"line_type": "Usage", "usage_type": None, "account": None, "region": None, "az": None}
    lines = [
        Line(Meaning.ON_DEMAND, resource=one, instance_type="inf2.xlarge", start_ns=hour * NS_PER_HOUR,
             end_ns=(hour + 1) * NS_PER_HOUR, micro_hours=micro_hours, effective_pusd=pusd, **common)
        for (one, hour), (micro_hours, pusd) in charged.items()
    ] + [
        Line(Meaning.UNUSED, resource="cr-1", instance_type="inf2.xlarge", start_ns=hour * NS_PER_HOUR,
             end_ns=(hour + 1) * NS_PER_HOUR, micro_hours=0, effective_pusd=pusd, **common)
        for hour, pusd in unused.items()
    ]  # fmt: skip
    bill = fold(lines, range(1_000, 1_006))
    reconciling = Reconciling(bill, {one for (one, hour) in counted if hour in hours})
    allocated = 0
    for hour in sorted(hours):
        rows = [
            row
            for (one, at), (micro_hours, uusd) in counted.items()
            if at == hour
            for row in billed.rows_of(cur.Instance(one, "inf2.xlarge", "r", "on-demand", 1, range(0)), hour,
                                      micro_hours, uusd)
        ]  # fmt: skip
        new = reconciling.hour(hour, rows, billed.METHOD)
        allocated += sum(row.allocated_pusd or 0 for row in new)
        for (one, at), (micro_hours, _) in counted.items():
            if at == hour and micro_hours and (one, at) in charged:
                own = [row for row in new if row.instance_id == one]
                assert sum(row.allocated_pusd or 0 for row in own) == charged[one, at][1]
                assert sum(row.shared_pusd or 0 for row in own) == 0
    result = reconciling.result()
    assert result.allocated_pusd == allocated
    assert result.billed_pusd == sum(pusd for _, pusd in charged.values()) + sum(unused.values())
    assert result.rest_pusd == 0


def test_who_is_not_on_the_bill_is_named_hour_by_hour(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=1, hours=2)
    other = cur.Instance("i-other", "inf2.xlarge", "us-east-1", "on-demand", 7_582_000_000, range(1, 2))
    bill.fleet.append(other)
    hours = billed.closed(bill)
    read = billed.read([cur.write_csv(bill.cur(), tmp_path / "bill.csv")], hours)
    reconciling = Reconciling(read.bill, {one.id for one in bill.fleet})
    found = [reconciling.unbilled(hour, hours[hour]) for hour in (bill.start, bill.start + 1)]
    assert found == [(), ("i-other",)]


def test_a_bill_without_any_of_the_instances_is_not_explained(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill(instances=2, hours=2)
    read = billed.read([cur.write_csv(bill.cur(), tmp_path / "bill.csv")], billed.closed(bill))
    result = Reconciling(read.bill, {"i-other"}).result()
    assert (result.rest_pusd, result.is_explained) == (0, False)
    assert found(result, What.NOTHING_OURS) == ["the bill"]
