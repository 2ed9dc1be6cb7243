"""What the reports' JSON says of money that nobody knows: null, and never 0."""

import pytest

from gateway.faces import report_figures
from metering.cost import month_report
from metering.cost.amounts import Amounts, Summary
from metering.cost.close_row import RowKind

USD = 10**12
UNKNOWN = Amounts(
    micro_hours=1_500_000,
    unpriced_micro_hours=1_500_000,
    unlisted_micro_hours=1_500_000,
    calls=2,
    unpriced_calls=2,
)
KNOWN = Amounts(
    micro_hours=1_000_000,
    list_pusd=4 * USD,
    allocated_pusd=3 * USD,
    shared_pusd=USD,
    calls=1,
    estimated_pusd=2 * USD,
)
MONEY = ("list_usd", "allocated_usd", "shared_usd", "estimated_usd")


def money(one: Amounts) -> list[str | None]:
    found = report_figures.amounts(one)
    return [None if found[name] is None else str(found[name])[:4] for name in MONEY]


def test_what_has_no_price_is_null_and_what_is_nothing_is_0() -> None:
    assert money(UNKNOWN) == [None] * 4
    assert money(KNOWN) == money(KNOWN + UNKNOWN) == ["4.00", "3.00", "1.00", "2.00"]
    assert money(Amounts()) == ["0.00"] * 4


def test_what_only_a_bill_has_priced_has_no_list_price() -> None:
    billed = Amounts(micro_hours=5, unlisted_micro_hours=5, allocated_pusd=3 * USD)
    assert money(billed) == [None, "3.00", "0.00", "0.00"]
    assert report_figures.amounts(billed)["unlisted_hours"] == "0.000005"
    assert money(billed + KNOWN)[0] == "4.00"


def test_a_pool_without_a_price_has_a_waterfall_without_money() -> None:
    def waterfall(one: Amounts) -> report_figures.Json:
        (made,) = month_report.waterfalls([Summary(RowKind.TENANT, ("llama",), one)], [])
        return report_figures.waterfall(made)

    unknown, known = waterfall(UNKNOWN), waterfall(KNOWN)
    names = ("billed_usd", "tenants_usd", "recovered_usd", "under_recovery_usd")
    assert [unknown[name] for name in names] == [None] * 4
    assert set(unknown["rest_usd"].values()) == {None}
    assert [float(known[name]) for name in names] == [3, 3, 2, 1]
    assert {float(amount) for amount in known["rest_usd"].values()} == {0}


def test_why_a_charge_differs_is_known_where_both_charges_are() -> None:
    def effects(now: Amounts, before: Amounts) -> report_figures.Json:
        sums = ([Summary(RowKind.TENANT, ("llama", "inf2"), one)] for one in (now, before))
        (line,) = month_report.tenant_lines(*sums)
        found: report_figures.Json = report_figures.line(line)["effects_usd"]
        return found

    assert effects(KNOWN, UNKNOWN) == effects(UNKNOWN, KNOWN) == {"estimated": None, "allocated": None}
    assert effects(KNOWN, KNOWN)["allocated"] == {"usage": "0.000000000000", "price": "0.000000000000"}


def test_the_mutant_that_sums_up_what_is_unknown_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Amounts, "cost_pusd", property(lambda one: one.allocated_pusd))
    with pytest.raises(AssertionError):
        test_what_has_no_price_is_null_and_what_is_nothing_is_0()
