"""What the lines of a bill mean: a row a case, each with what it costs."""

import pytest

from metering.cost import bill_cur, bill_focus
from metering.cost.bill import Line, Meaning
from metering.cost.bill_cells import BillError, type_of

BOX, SPOT = "USE2-BoxUsage:inf2.48xlarge", "SpotUsage:inf2.24xlarge"
RI, PLAN, CR = (
    "arn:aws:ec2::1:reserved-instances/ri-1",
    "arn:aws:savingsplans::1:savingsplan/sp-1",
    "arn:x/cr-1",
)
START, END = "2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z"


def cur(**cells: str | None) -> Line:
    given = dict.fromkeys(bill_cur.COLUMNS) | {
        "period": "2026-11-01T00:00:00Z", "id": "l1", "start": START, "end": END, "resource": "i-1",
        "usage_type": BOX, "quantity": "1.0000000000", "cash": "12.98127", "cost": "12.98127",
    }  # fmt: skip
    return bill_cur.CurLines("2026-11").line([*(given | cells).values()])


def focus(**cells: str | None) -> Line:
    given = dict.fromkeys(bill_focus.COLUMNS) | {
        "period": "2026-11-01 00:00:00", "start": START, "end": END, "resource": "i-1", "usage_type": BOX,
        "quantity": "1", "unit": "Hours", "cost": "3.5", "category": "Usage",
    }  # fmt: skip
    return bill_focus.FocusLines("2026-11").line([*(given | cells).values()])


@pytest.mark.parametrize(
    ("cells", "meaning", "cost"),
    [
        ({"line_type": "Usage"}, Meaning.ON_DEMAND, "12.98127"),
        ({"line_type": "Usage", "cost": "12.5"}, Meaning.ON_DEMAND, "12.5"),  # net of a discount
        ({"line_type": "Usage", "usage_type": SPOT}, Meaning.SPOT, "12.98127"),
        ({"line_type": "Usage", "usage_type": "DataTransfer-Out-Bytes"}, Meaning.OTHER, "12.98127"),
        ({"line_type": "Usage", "usage_type": None}, Meaning.OTHER, "12.98127"),
        ({"line_type": "Usage", "usage_type": "UnusedBox:inf2.48xlarge", "resource": CR}, Meaning.UNUSED, "12.98127"),
        ({"line_type": "Usage", "usage_type": "CapacityBlock:trn1n.32xlarge"}, Meaning.ON_DEMAND, "12.98127"),
        ({"line_type": "Usage", "usage_type": "CapacityBlock:trn1n.32xlarge", "resource": None}, Meaning.UNUSED,
         "12.98127"),
        ({"line_type": "DiscountedUsage", "reservation": RI, "reservation_cost": "5.6"}, Meaning.RESERVED, "5.6"),
        ({"line_type": "SavingsPlanCoveredUsage", "plan": PLAN, "plan_cost": "9"}, Meaning.SAVINGS_PLAN, "9"),
        ({"line_type": "SavingsPlanNegation", "plan": PLAN, "cash": "-12.98127"}, Meaning.NEGATION, "0"),
        ({"line_type": "SavingsPlanUpfrontFee", "plan": PLAN}, Meaning.AMORTISED, "0"),
        ({"line_type": "SavingsPlanRecurringFee", "plan": PLAN, "plan_total": "10", "plan_used": "9.75"},
         Meaning.UNUSED, "0.25"),
        ({"line_type": "SavingsPlanRecurringFee", "plan_total": "10", "plan_used": "6", "plan_recurring": "30",
          "plan_upfront": "10", "plan_net_recurring": "29", "plan_net_upfront": "9"}, Meaning.UNUSED, "3.8"),
        ({"line_type": "SavingsPlanRecurringFee", "plan_total": "10", "plan_used": "6", "plan_recurring": "0",
          "plan_net_recurring": "0"}, Meaning.UNUSED, "4"),
        ({"line_type": "SavingsPlanRecurringFee", "plan_total": "10", "plan_used": "6", "plan_upfront": "10",
          "plan_net_upfront": "5"}, Meaning.UNUSED, "2"),
        ({"line_type": "RIFee", "reservation": RI, "unused_upfront": "1.5", "unused_recurring": "0.25"},
         Meaning.UNUSED, "1.75"),
        ({"line_type": "Fee", "reservation": RI}, Meaning.AMORTISED, "0"),
        ({"line_type": "Fee", "usage_type": "USE2-CapacityBlock:trn1n.32xlarge", "resource": CR},
         Meaning.CAPACITY_BLOCK, "12.98127"),
        ({"line_type": "Fee"}, Meaning.FEE, "12.98127"),
        ({"line_type": "EdpDiscount", "cost": "-1"}, Meaning.DISCOUNT, "-1"),
        ({"line_type": "PrivateRateDiscount", "cost": "-1", "usage_type": None}, Meaning.DISCOUNT, "-1"),
        ({"line_type": "BundledDiscount", "cost": "-1", "usage_type": "DataTransfer-Out-Bytes"}, Meaning.OTHER, "-1"),
        ({"line_type": "Credit", "cost": "-2"}, Meaning.CREDIT, "-2"),
        ({"line_type": "Refund", "cost": "-2"}, Meaning.REFUND, "-2"),
        ({"line_type": "Tax"}, Meaning.TAX, "12.98127"),
        ({"line_type": "Rounding"}, Meaning.UNKNOWN, "12.98127"),
        ({"line_type": None, "cost": None}, Meaning.UNKNOWN, "0"),
    ],
)  # fmt: skip
def test_line_items_of_cur(cells: dict[str, str | None], meaning: Meaning, cost: str) -> None:
    line = cur(**cells)
    assert line.meaning is meaning
    assert line.effective_pusd == round(float(cost) * 1_000_000) * 1_000_000


@pytest.mark.parametrize(
    ("cells", "meaning"),
    [
        ({}, Meaning.ON_DEMAND),
        ({"usage_type": None}, Meaning.ON_DEMAND),  # not of AWS: hours of an instance
        ({"usage_type": None, "unit": "GB"}, Meaning.OTHER),
        ({"usage_type": None, "resource": "vol-1"}, Meaning.OTHER),
        ({"usage_type": SPOT}, Meaning.SPOT),
        ({"pricing": "Dynamic"}, Meaning.SPOT),
        ({"usage_type": "DataTransfer-Out-Bytes", "unit": "GB"}, Meaning.OTHER),
        ({"usage_type": "Reservation:inf2.48xlarge", "resource": CR}, Meaning.UNUSED),
        ({"usage_type": "CapacityBlock:trn1n.32xlarge"}, Meaning.ON_DEMAND),
        ({"commitment": RI, "commitment_status": "Used", "commitment_type": "Reserved"}, Meaning.RESERVED),
        ({"pricing": "Committed", "commitment_type": "Compute Savings Plan"}, Meaning.SAVINGS_PLAN),
        ({"commitment": RI, "commitment_status": "Unused"}, Meaning.UNUSED),
        ({"capacity": CR, "capacity_status": "Unused"}, Meaning.UNUSED),
        ({"category": "Purchase", "commitment": RI}, Meaning.UNUSED),
        ({"category": "Purchase", "usage_type": "CapacityBlock:trn1n.32xlarge"}, Meaning.CAPACITY_BLOCK),
        ({"category": "Purchase", "description": "EC2 Capacity Block"}, Meaning.CAPACITY_BLOCK),
        ({"category": "Purchase"}, Meaning.FEE),
        ({"category": "Credit"}, Meaning.CREDIT),
        ({"category": "Adjustment"}, Meaning.REFUND),
        ({"category": "Tax"}, Meaning.TAX),
        ({"category": None}, Meaning.UNKNOWN),
    ],
)
def test_charges_of_focus(cells: dict[str, str | None], meaning: Meaning) -> None:
    line = focus(**cells)
    assert line.meaning is meaning
    assert line.effective_pusd == 3_500_000_000_000


@pytest.mark.parametrize("cost", [None, "0", "0.0000000000", "-0.0", "0E-10", "0e0"])
def test_a_purchase_that_its_use_pays_for_costs_nothing(cost: str | None) -> None:
    line = focus(category="Purchase", commitment=RI, cost=cost)
    assert (line.meaning, line.effective_pusd) == (Meaning.AMORTISED, 0)


def test_fields_of_a_line() -> None:
    line = cur(
        line_type="Usage", public_rate="12.98127", capacity=CR, resource="arn:aws:ec2:x:1:instance/i-9"
    )
    assert (line.resource, line.instance_type, line.capacity) == ("i-9", "inf2.48xlarge", "cr-1")
    assert (line.micro_hours, line.list_uusd, line.of_month) == (1_000_000, 12_981_270, True)
    assert (line.end_ns - line.start_ns, line.start_ns // 10**9) == (3_600 * 10**9, 1_793_509_200)
    assert cur(line_type="Usage", resource=CR, usage_type="UnusedBox:inf2.xlarge").capacity == "cr-1"
    assert cur(line_type="Tax", period="2026-10-01").of_month is False
    assert cur(line_type="SavingsPlanUpfrontFee", plan=PLAN).option == "savings-plan"
    assert focus(unit="GB", usage_type=BOX).micro_hours == 0
    assert focus(commitment_type="Savings Plan").option == "savings-plan"
    assert type_of("USW2-EC2SP:trn1.1yrNoUpfront") is None
    assert type_of("BoxUsage") is type_of(None) is None


@pytest.mark.parametrize(
    ("text", "pusd"),
    [
        ("1e-07", 100_000),
        ("0.30000000000000004", 300_000_000_000),
        ("0.0000000000005", 1),  # half a picodollar goes up
        ("-0.0000000000004", 0),
        ("-1.25E+2", -125_000_000_000_000),
        ("98765432109876543210.123456789012", 98765432109876543210123456789012),
    ],
)
def test_amounts_are_decimals_to_the_picodollar(text: str, pusd: int) -> None:
    assert cur(line_type="Usage", cost=text).effective_pusd == pusd


@pytest.mark.parametrize(
    "start", ["2026-11-01 05:00:00", "2026-11-01T05:00:00.000Z", "2026-11-01T07:00:00+02:00"]
)
def test_times_are_utc(start: str) -> None:
    assert cur(line_type="Usage", start=start).start_ns == 1_793_509_200 * 10**9


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            {"line_type": "Usage", "cost": "twelve"},
            "line item l1 of 2026-11-01T05:00:00Z has 'twelve' where a number",
        ),
        ({"line_type": "Usage", "cost": "NaN"}, "'NaN' where a number"),
        ({"line_type": "Usage", "cost": "Infinity"}, "'Infinity' where a number"),
        ({"line_type": "Usage", "start": "yesterday"}, "'yesterday' where a time"),
        ({"line_type": "Usage", "end": None}, "None where a time"),
        ({"line_type": "Usage", "resource": None}, "make the export with resource ids"),
        ({"line_type": "Usage", "end": "2026-11-02T05:00:00Z"}, "make the export by hour"),
        ({"line_type": "DiscountedUsage"}, "has no reservation_effective_cost"),
        ({"line_type": "SavingsPlanCoveredUsage"}, "has no savings_plan_savings_plan_effective_cost"),
        ({"line_type": "SavingsPlanRecurringFee"}, "has no savings_plan_total_commitment_to_date"),
        ({"line_type": "SavingsPlanRecurringFee", "plan_total": "1"}, "has no savings_plan_used_commitment"),
        ({"line_type": "RIFee"}, "has no reservation_unused_amortized_upfront_fee_for_billing_period"),
        ({"line_type": "RIFee", "unused_upfront": "1"}, "has no reservation_unused_recurring_fee"),
    ],
)
def test_what_cannot_be_read_is_named(cells: dict[str, str | None], message: str) -> None:
    with pytest.raises(BillError) as refused:
        cur(**cells)
    assert message in str(refused.value)


def test_a_charge_of_focus_that_cannot_be_read_is_named() -> None:
    with pytest.raises(
        BillError, match="charge for i-1 of 2026-11-01T05:00:00Z has 'x' where a number belongs"
    ):
        focus(cost="x")
