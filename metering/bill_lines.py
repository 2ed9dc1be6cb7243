"""The lines of AWS' bills and what they mean: CUR 2.0, and FOCUS 1.0 to 1.4. Pure.

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
FOCUS says the same in its column EffectiveCost, and what the charge is about in ChargeCategory and the statuses.
"""

import datetime
import decimal
import re
from typing import NamedTuple

from metering.bill import HOURLY, MICRO_HOURS_PER_HOUR, Line, Meaning
from metering.units import MICRO_USD_PER_USD, NS_PER_HOUR, NS_PER_S, PICO_USD_PER_USD, div_half_up

INSTANCE_USAGE = r"(?:^|-)(?:BoxUsage|SpotUsage|DedicatedUsage|HostBoxUsage)(?::|$)"
"""Usage types of an instance's hours; before the dash stands a code of the region."""
RESERVED_USAGE = (
    r"(?:^|-)(?:UnusedBox|UnusedDed|HeavyUsage|Reservation|DedicatedRes|EC2SP|"
    r"[A-Za-z]*CapacityBlock\w*)(?::|$)"
)
"""Usage types of what is reserved, and of its fees."""
CURRENCY = "USD"

_SPOT = "SpotUsage"
_PLAN = "EC2SP"  # what follows is a family and a term
_BLOCK = "CapacityBlock"
_CAPACITY = "cr-"
_INSTANCE = "i-"
_DISCOUNTS = frozenset(
    {"BundledDiscount", "Discount", "EdpDiscount", "PrivateRateDiscount", "RiVolumeDiscount", "SppDiscount"}
)
_HOUR_UNITS = frozenset({"hours", "hour", "hrs", "hr"})
_IS_ZERO = re.compile(r"[-+]?0*\.?0*(?:[eE].*)?")
_EXACT = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
_INSTANCE_USAGE = re.compile(INSTANCE_USAGE)
_RESERVED_USAGE = re.compile(RESERVED_USAGE)


class BillError(ValueError):
    """This is no bill that can be read, or not of what it should be; the message says where and why."""


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


CUR_COLUMNS: dict[str, tuple[str, ...]] = {
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
CUR_NEEDED = (
    "bill_billing_period_start_date", "line_item_line_item_type", "line_item_usage_start_date",
    "line_item_usage_end_date", "line_item_resource_id", "line_item_usage_type", "line_item_usage_amount",
    "line_item_unblended_cost", "line_item_usage_account_id", "line_item_currency_code",
)  # fmt: skip


class FocusRow(NamedTuple):
    """A charge of a FOCUS file."""

    period: str | None
    category: str | None
    start: str | None
    end: str | None
    resource: str | None
    usage_type: str | None
    account: str | None
    region: str | None
    az: str | None
    quantity: str | None
    unit: str | None
    cash: str | None
    cost: str | None
    public_rate: str | None
    pricing: str | None
    commitment: str | None
    commitment_type: str | None
    commitment_status: str | None
    capacity: str | None
    capacity_status: str | None
    instance_type: str | None
    description: str | None


FOCUS_COLUMNS: dict[str, tuple[str, ...]] = {
    "period": ("BillingPeriodStart",),
    "category": ("ChargeCategory",),
    "start": ("ChargePeriodStart",),
    "end": ("ChargePeriodEnd",),
    "resource": ("ResourceId",),
    "usage_type": ("x_UsageType",),
    "account": ("SubAccountId",),
    "region": ("RegionId",),
    "az": ("AvailabilityZone",),
    "quantity": ("PricingQuantity", "ConsumedQuantity"),
    "unit": ("PricingUnit", "ConsumedUnit"),
    "cash": ("BilledCost",),
    "cost": ("EffectiveCost",),
    "public_rate": ("ListUnitPrice",),
    "pricing": ("PricingCategory",),
    "commitment": ("CommitmentDiscountId",),
    "commitment_type": ("CommitmentDiscountType",),
    "commitment_status": ("CommitmentDiscountStatus",),
    "capacity": ("CapacityReservationId",),
    "capacity_status": ("CapacityReservationStatus",),
    "instance_type": ("x_InstanceType",),
    "description": ("ChargeDescription",),
}
FOCUS_NEEDED = (
    "BillingPeriodStart", "BillingCurrency", "ChargeCategory", "ChargePeriodStart", "ChargePeriodEnd", "ResourceId",
    "BilledCost", "EffectiveCost", "PricingQuantity",
)  # fmt: skip


class Lines:
    """Reads rows of one bill. month: "2026-11"; what is of another billing period is marked so."""

    def __init__(self, month: str) -> None:
        self._month = month
        self._moments: dict[str, int] = {}

    def of_cur(self, row: CurRow, copies: int = 1) -> Line:
        """What a line item means. Raises BillError."""
        where = f"line item {row.id or '?'} of {row.start}"
        meaning = _cur_meaning(row)
        instance_type = row.instance_type or type_of(row.usage_type)
        line = Line(
            meaning=meaning,
            line_type=row.line_type or "",
            resource=_tail(row.resource),
            usage_type=row.usage_type,
            instance_type=instance_type,
            account=row.account,
            region=row.region,
            az=row.az,
            start_ns=self.moment(row.start, where),
            end_ns=self.moment(row.end, where),
            micro_hours=_integer(row.quantity, MICRO_HOURS_PER_HOUR, where) or 0,
            effective_pusd=_cur_cost(row, meaning, where),
            cash_pusd=_pusd(row.cash, where),
            list_uusd=_integer(row.public_rate, MICRO_USD_PER_USD, where),
            commitment=_tail(row.reservation or row.plan),
            capacity=_capacity(row.capacity, row.resource),
            family=_family(instance_type or row.plan_family, row.usage_type),
            option=(Meaning.SAVINGS_PLAN if row.plan and not row.reservation else Meaning.RESERVED).value,
            copies=copies,
            of_month=(row.period or "").startswith(self._month),
        )
        return _checked(line, where)

    def of_focus(self, row: FocusRow, copies: int = 1) -> Line:
        """What a charge means. Raises BillError."""
        where = f"charge for {row.resource or row.description or '?'} of {row.start}"
        meaning = _focus_meaning(row)
        in_hours = (row.unit or "").lower() in _HOUR_UNITS
        plan = "savings plan" in (row.commitment_type or "").lower()
        block = row.category == "Purchase" and meaning is Meaning.CAPACITY_BLOCK
        instance_type = row.instance_type or type_of(row.usage_type)
        line = Line(
            meaning=meaning,
            line_type=row.category or "",
            resource=_tail(row.resource),
            usage_type=row.usage_type,
            instance_type=instance_type,
            account=row.account,
            region=row.region,
            az=row.az,
            start_ns=self.moment(row.start, where),
            end_ns=self.moment(row.end, where),
            micro_hours=(_integer(row.quantity, MICRO_HOURS_PER_HOUR, where) or 0)
            if in_hours or block
            else 0,
            effective_pusd=_pusd(row.cost, where),
            list_uusd=_integer(row.public_rate, MICRO_USD_PER_USD, where) if in_hours else None,
            commitment=_tail(row.commitment),
            capacity=_capacity(row.capacity, row.resource),
            family=_family(instance_type, row.usage_type),
            option=(Meaning.SAVINGS_PLAN if plan else Meaning.RESERVED).value,
            copies=copies,
            of_month=(row.period or "").startswith(self._month),
        )
        return _checked(line, where)

    def moment(self, text: str | None, where: str) -> int:
        """Nanoseconds since 1970 of a time as bills write it: ISO 8601, with a T or a space, in UTC."""
        found = self._moments.get(text or "")
        if found is None:
            found = self._moments[text or ""] = _moment(text, where)
        return found


def type_of(usage_type: str | None) -> str | None:
    """The instance type that a usage type names: "USE2-BoxUsage:inf2.48xlarge" → "inf2.48xlarge". A plan has none."""
    what, _, name = (usage_type or "").partition(":")
    return None if what.endswith(_PLAN) else name or None


def _family(name: str | None, usage_type: str | None) -> str | None:
    """Of an instance type, or what a usage type names: an instance type's, or a plan's."""
    return (name or (usage_type or "").partition(":")[2]).partition(".")[0] or None


def _cur_meaning(row: CurRow) -> Meaning:
    match row.line_type:
        case "Usage" | "DiscountedUsage" | "SavingsPlanCoveredUsage":
            return _use(row)
        case "SavingsPlanNegation":
            return Meaning.NEGATION
        case "RIFee" | "SavingsPlanRecurringFee":
            return Meaning.UNUSED
        case "SavingsPlanUpfrontFee":
            return Meaning.AMORTISED
        case "Fee" if _BLOCK in (row.usage_type or ""):
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
    if not _INSTANCE_USAGE.search(row.usage_type or ""):
        if not _RESERVED_USAGE.search(row.usage_type or ""):
            return Meaning.OTHER
        if not (_tail(row.resource) or "").startswith(_INSTANCE):
            return Meaning.UNUSED
    if row.line_type == "DiscountedUsage":
        return Meaning.RESERVED
    if row.line_type == "SavingsPlanCoveredUsage":
        return Meaning.SAVINGS_PLAN
    return Meaning.SPOT if _SPOT in (row.usage_type or "") else Meaning.ON_DEMAND


def _of_hours(usage_type: str | None) -> bool:
    """A discount with no usage type is one of hours: it was selected by its instance's type."""
    return not usage_type or bool(_INSTANCE_USAGE.search(usage_type) or _RESERVED_USAGE.search(usage_type))


def _cur_cost(row: CurRow, meaning: Meaning, where: str) -> int:
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
    return _pusd(row.cost, where)


def _unused_plan(row: CurRow, where: str) -> int:
    """What of a plan's commitment was not used; with the account's discount on it, where it has one."""
    total = _needed(row.plan_total, "savings_plan_total_commitment_to_date", where)
    unused = total - _needed(row.plan_used, "savings_plan_used_commitment", where)
    if row.plan_net_recurring is None and row.plan_net_upfront is None:
        return unused
    gross = _pusd(row.plan_recurring, where) + _pusd(row.plan_upfront, where)
    net = _pusd(row.plan_net_recurring, where) + _pusd(row.plan_net_upfront, where)
    return div_half_up(unused * net, gross) if unused > 0 and net >= 0 and gross > 0 else unused


def _focus_meaning(row: FocusRow) -> Meaning:
    block = _BLOCK in (row.usage_type or "") or "capacity block" in (row.description or "").lower()
    match row.category:
        case "Usage":
            return _focus_use(row)
        case "Purchase" if block:
            return Meaning.CAPACITY_BLOCK
        case "Purchase" if row.commitment:  # what it costs beyond its use was not used
            return Meaning.AMORTISED if not row.cost or _IS_ZERO.fullmatch(row.cost) else Meaning.UNUSED
        case "Purchase":
            return Meaning.FEE
        case "Credit":
            return Meaning.CREDIT
        case "Adjustment":
            return Meaning.REFUND
        case "Tax":
            return Meaning.TAX
    return Meaning.UNKNOWN


def _focus_use(row: FocusRow) -> Meaning:
    if "Unused" in (row.commitment_status, row.capacity_status):
        return Meaning.UNUSED
    in_hours = (row.unit or "").lower() in _HOUR_UNITS
    of_instance = (_tail(row.resource) or "").startswith(_INSTANCE)
    if row.usage_type is None:
        if not (in_hours and of_instance):
            return Meaning.OTHER
    elif not _INSTANCE_USAGE.search(row.usage_type):
        if not _RESERVED_USAGE.search(row.usage_type):
            return Meaning.OTHER
        if not of_instance:
            return Meaning.UNUSED
    if row.commitment_status == "Used" or row.pricing == "Committed":
        plan = "savings plan" in (row.commitment_type or "").lower()
        return Meaning.SAVINGS_PLAN if plan else Meaning.RESERVED
    return Meaning.SPOT if row.pricing == "Dynamic" or _SPOT in (row.usage_type or "") else Meaning.ON_DEMAND


def _checked(line: Line, where: str) -> Line:
    """Refuse what would be put into the wrong hour, or into no instance."""
    if line.meaning in HOURLY:
        if line.resource is None:
            message = "is an instance's use and names none: make the export with resource ids"
            raise BillError(f"{where} {message}")
        last_ns = max(line.start_ns, line.end_ns - 1)
        if line.start_ns // NS_PER_HOUR != last_ns // NS_PER_HOUR:
            raise BillError(f"{where} is longer than an hour: make the export by hour")
    return line


def _tail(text: str | None) -> str | None:
    """The id at the end of an ARN, or the id itself."""
    return (text or "").rpartition("/")[2] or None


def _capacity(capacity: str | None, resource: str | None) -> str | None:
    found = _tail(capacity)
    if found is None and (tail := _tail(resource)) is not None and tail.startswith(_CAPACITY):
        return tail
    return found


def _needed(text: str | None, column: str, where: str) -> int:
    if text is None:
        raise BillError(f"{where} has no {column}: make the export with that column")
    return _pusd(text, where)


def _pusd(text: str | None, where: str) -> int:
    return _integer(text, PICO_USD_PER_USD, where) or 0


def _integer(text: str | None, parts: int, where: str) -> int | None:
    """A decimal as an integer count of a smaller unit, half up; exponents are read. None: there is no text."""
    if text is None:
        return None
    try:
        exact = _EXACT.multiply(decimal.Decimal(text), parts)
        return int(exact.to_integral_value(decimal.ROUND_HALF_UP, _EXACT))
    except (decimal.InvalidOperation, OverflowError, ValueError):
        raise BillError(f"{where} has {text!r} where a number belongs") from None


def _moment(text: str | None, where: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise BillError(f"{where} has {text!r} where a time belongs") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(seconds=1) * NS_PER_S
