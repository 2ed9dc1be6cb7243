"""The line items of CUR 2.0, and what they mean. Pure.

A row is the text of the columns that count, under the names of its format; a column that the file lacks, or whose
cell is empty, is None. Where an account has discounts the `net` columns hold what is paid, and go before the others.

    CUR line item type        effective cost
    Usage                     unblended cost; of a spot instance likewise
    DiscountedUsage           reservation effective cost
    SavingsPlanCoveredUsage   savings plan effective cost; SavingsPlanNegation: 0, it takes back the unblended cost
    RIFee                     unused upfront fee + unused recurring fee
    SavingsPlanRecurringFee   (total commitment − used commitment) × what the fee is net of discounts
    SavingsPlanUpfrontFee     0, as the Fee of a reservation: the lines that use it have their part of it
    Fee of a capacity block   unblended cost, over the block's hours
    …Discount                 unblended cost (negative)
    Credit Refund Tax Fee     unblended cost, in lines of their own

Source: AWS Well-Architected Labs, CUR query «amortized cost by charge type»; the data dictionary of AWS Data Exports.
"""

from collections.abc import Sequence
from typing import NamedTuple

from metering.cost.bill import MICRO_HOURS_PER_HOUR, Line, Meaning
from metering.cost.bill_cells import (
    CAPACITY_BLOCK,
    INSTANCE_PREFIX,
    SPOT_USAGE,
    BillError,
    Moments,
    capacity_of,
    checked,
    family_of,
    integer,
    is_instance_use,
    is_reserved_use,
    pusd,
    tail,
    type_of,
)
from metering.units import MICRO_USD_PER_USD, div_half_up

_DISCOUNTS = frozenset(
    {"BundledDiscount", "Discount", "EdpDiscount", "PrivateRateDiscount", "RiVolumeDiscount", "SppDiscount"}
)


class CurRow(NamedTuple):
    """A line item of CUR 2.0."""

    period: str | None
    id: str | None
    line_type: str | None
    start: str | None
    end: str | None
    resource: str | None
    usage_type: str | None
    instance_type: str | None
    account: str | None
    region: str | None
    az: str | None
    quantity: str | None
    cash: str | None
    cost: str | None
    public_rate: str | None
    reservation: str | None
    reservation_cost: str | None
    unused_upfront: str | None
    unused_recurring: str | None
    plan: str | None
    plan_family: str | None
    plan_cost: str | None
    plan_total: str | None
    plan_used: str | None
    plan_recurring: str | None
    plan_upfront: str | None
    plan_net_recurring: str | None
    plan_net_upfront: str | None
    capacity: str | None


COLUMNS: dict[str, tuple[str, ...]] = {
    "period": ("bill_billing_period_start_date",),
    "id": ("identity_line_item_id",),
    "line_type": ("line_item_line_item_type",),
    "start": ("line_item_usage_start_date",),
    "end": ("line_item_usage_end_date",),
    "resource": ("line_item_resource_id",),
    "usage_type": ("line_item_usage_type",),
    "instance_type": ("product_instance_type",),
    "account": ("line_item_usage_account_id",),
    "region": ("product_region_code", "product_region"),
    "az": ("line_item_availability_zone",),
    "quantity": ("line_item_usage_amount",),
    "cash": ("line_item_unblended_cost",),
    "cost": ("line_item_net_unblended_cost", "line_item_unblended_cost"),
    "public_rate": ("pricing_public_on_demand_rate",),
    "reservation": ("reservation_reservation_a_r_n",),
    "reservation_cost": ("reservation_net_effective_cost", "reservation_effective_cost"),
    "unused_upfront": (
        "reservation_net_unused_amortized_upfront_fee_for_billing_period",
        "reservation_unused_amortized_upfront_fee_for_billing_period",
    ),
    "unused_recurring": ("reservation_net_unused_recurring_fee", "reservation_unused_recurring_fee"),
    "plan": ("savings_plan_savings_plan_a_r_n",),
    "plan_family": ("savings_plan_instance_type_family",),
    "plan_cost": ("savings_plan_net_savings_plan_effective_cost", "savings_plan_savings_plan_effective_cost"),
    "plan_total": ("savings_plan_total_commitment_to_date",),
    "plan_used": ("savings_plan_used_commitment",),
    "plan_recurring": ("savings_plan_recurring_commitment_for_billing_period",),
    "plan_upfront": ("savings_plan_amortized_upfront_commitment_for_billing_period",),
    "plan_net_recurring": ("savings_plan_net_recurring_commitment_for_billing_period",),
    "plan_net_upfront": ("savings_plan_net_amortized_upfront_commitment_for_billing_period",),
    "capacity": ("capacity_reservation_capacity_reservation_arn",),
}
"""Field → the columns that may hold it; the first that is not empty counts."""
NEEDED = (
    "bill_billing_period_start_date", "line_item_line_item_type", "line_item_usage_start_date",
    "line_item_usage_end_date", "line_item_resource_id", "line_item_usage_type", "line_item_usage_amount",
    "line_item_unblended_cost", "line_item_usage_account_id", "line_item_currency_code",
)  # fmt: skip


class CurLines:
    """Reads line items of one bill. month: "2026-11"; what is of another billing period is marked so."""

    def __init__(self, month: str) -> None:
        self._month = month
        self._moments = Moments()

    def line(self, cells: Sequence[str | None], copies: int = 1) -> Line:
        """What a line item means. cells: in the order of COLUMNS. Raises BillError."""
        row = CurRow._make(cells)
        where = f"line item {row.id or '?'} of {row.start}"
        meaning = _meaning(row)
        instance_type = row.instance_type or type_of(row.usage_type)
        line = Line(
            meaning=meaning,
            line_type=row.line_type or "",
            resource=tail(row.resource),
            usage_type=row.usage_type,
            instance_type=instance_type,
            account=row.account,
            region=row.region,
            az=row.az,
            start_ns=self._moments.read(row.start, where),
            end_ns=self._moments.read(row.end, where),
            micro_hours=integer(row.quantity, MICRO_HOURS_PER_HOUR, where) or 0,
            effective_pusd=_cost(row, meaning, where),
            cash_pusd=pusd(row.cash, where),
            list_uusd=integer(row.public_rate, MICRO_USD_PER_USD, where),
            commitment=tail(row.reservation or row.plan),
            capacity=capacity_of(row.capacity, row.resource),
            family=family_of(instance_type or row.plan_family, row.usage_type),
            option=(Meaning.SAVINGS_PLAN if row.plan and not row.reservation else Meaning.RESERVED).value,
            copies=copies,
            of_month=(row.period or "").startswith(self._month),
        )
        return checked(line, where)


def _meaning(row: CurRow) -> Meaning:
    match row.line_type:
        case "Usage" | "DiscountedUsage" | "SavingsPlanCoveredUsage":
            return _use(row)
        case "SavingsPlanNegation":
            return Meaning.NEGATION
        case "RIFee" | "SavingsPlanRecurringFee":
            return Meaning.UNUSED
        case "SavingsPlanUpfrontFee":
            return Meaning.AMORTISED
        case "Fee" if CAPACITY_BLOCK in (row.usage_type or ""):
            return Meaning.CAPACITY_BLOCK
        case "Fee":
            return Meaning.AMORTISED if row.reservation else Meaning.FEE
        case "Credit":
            return Meaning.CREDIT
        case "Refund":
            return Meaning.REFUND
        case "Tax":
            return Meaning.TAX
        case str(line_type) if line_type in _DISCOUNTS:
            return Meaning.DISCOUNT if _of_hours(row.usage_type) else Meaning.OTHER
    return Meaning.UNKNOWN


def _use(row: CurRow) -> Meaning:
    if not is_instance_use(row.usage_type):
        if not is_reserved_use(row.usage_type):
            return Meaning.OTHER
        if not (tail(row.resource) or "").startswith(INSTANCE_PREFIX):
            return Meaning.UNUSED
    if row.line_type == "DiscountedUsage":
        return Meaning.RESERVED
    if row.line_type == "SavingsPlanCoveredUsage":
        return Meaning.SAVINGS_PLAN
    return Meaning.SPOT if SPOT_USAGE in (row.usage_type or "") else Meaning.ON_DEMAND


def _of_hours(usage_type: str | None) -> bool:
    """A discount with no usage type is one of hours: it was selected by its instance's type."""
    return not usage_type or is_instance_use(usage_type) or is_reserved_use(usage_type)


def _cost(row: CurRow, meaning: Meaning, where: str) -> int:
    if meaning in (Meaning.NEGATION, Meaning.AMORTISED):
        return 0
    match row.line_type:
        case "DiscountedUsage":
            return _needed(row.reservation_cost, "reservation_effective_cost", where)
        case "SavingsPlanCoveredUsage":
            return _needed(row.plan_cost, "savings_plan_savings_plan_effective_cost", where)
        case "RIFee":
            upfront = "reservation_unused_amortized_upfront_fee_for_billing_period"
            recurring = "reservation_unused_recurring_fee"
            return _needed(row.unused_upfront, upfront, where) + _needed(
                row.unused_recurring, recurring, where
            )
        case "SavingsPlanRecurringFee":
            return _unused_plan(row, where)
    return pusd(row.cost, where)


def _unused_plan(row: CurRow, where: str) -> int:
    """What of a plan's commitment was not used; with the account's discount on it, where it has one."""
    total = _needed(row.plan_total, "savings_plan_total_commitment_to_date", where)
    unused = total - _needed(row.plan_used, "savings_plan_used_commitment", where)
    if row.plan_net_recurring is None and row.plan_net_upfront is None:
        return unused
    gross = pusd(row.plan_recurring, where) + pusd(row.plan_upfront, where)
    net = pusd(row.plan_net_recurring, where) + pusd(row.plan_net_upfront, where)
    return div_half_up(unused * net, gross) if unused > 0 and net >= 0 and gross > 0 else unused


def _needed(text: str | None, column: str, where: str) -> int:
    if text is None:
        raise BillError(f"{where} has no {column}: make the export with that column")
    return pusd(text, where)
