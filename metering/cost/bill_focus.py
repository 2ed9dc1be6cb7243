"""The charges of a FOCUS file, 1.0 to 1.4, and what they mean. Pure.

EffectiveCost is what a charge costs; what it is about is said by ChargeCategory, CommitmentDiscountStatus,
CapacityReservationStatus and PricingCategory, and more closely by x_UsageType, a column of AWS. A purchase that its
use pays for has an effective cost of 0.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from metering.cost.bill import MICRO_HOURS_PER_HOUR, Line, Meaning
from metering.cost.bill_cells import (
    CAPACITY_BLOCK,
    INSTANCE_PREFIX,
    SPOT_USAGE,
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
from metering.units import MICRO_USD_PER_USD

_HOUR_UNITS = frozenset({"hours", "hour", "hrs", "hr"})
_IS_ZERO = re.compile(r"[-+]?0*\.?0*(?:[eE].*)?")


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


COLUMNS: dict[str, tuple[str, ...]] = {
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
NEEDED = (
    "BillingPeriodStart", "BillingCurrency", "ChargeCategory", "ChargePeriodStart", "ChargePeriodEnd", "ResourceId",
    "BilledCost", "EffectiveCost", "PricingQuantity",
)  # fmt: skip


class FocusLines:
    """Reads charges of one bill. month: "2026-11"; what is of another billing period is marked so."""

    def __init__(self, month: str) -> None:
        self._month = month
        self._moments = Moments()

    def line(self, cells: Sequence[str | None], copies: int = 1) -> Line:
        """What a charge means. cells: in the order of COLUMNS. Raises BillError."""
        row = FocusRow._make(cells)
        where = f"charge for {row.resource or row.description or '?'} of {row.start}"
        meaning = _meaning(row)
        in_hours = (row.unit or "").lower() in _HOUR_UNITS
        plan = "savings plan" in (row.commitment_type or "").lower()
        block = row.category == "Purchase" and meaning is Meaning.CAPACITY_BLOCK
        instance_type = row.instance_type or type_of(row.usage_type)
        line = Line(
            meaning=meaning,
            line_type=row.category or "",
            resource=tail(row.resource),
            usage_type=row.usage_type,
            instance_type=instance_type,
            account=row.account,
            region=row.region,
            az=row.az,
            start_ns=self._moments.read(row.start, where),
            end_ns=self._moments.read(row.end, where),
            micro_hours=(integer(row.quantity, MICRO_HOURS_PER_HOUR, where) or 0) if in_hours or block else 0,
            effective_pusd=pusd(row.cost, where),
            list_uusd=integer(row.public_rate, MICRO_USD_PER_USD, where) if in_hours else None,
            commitment=tail(row.commitment),
            capacity=capacity_of(row.capacity, row.resource),
            family=family_of(instance_type, row.usage_type),
            option=(Meaning.SAVINGS_PLAN if plan else Meaning.RESERVED).value,
            copies=copies,
            of_month=(row.period or "").startswith(self._month),
        )
        return checked(line, where)


def _meaning(row: FocusRow) -> Meaning:
    block = CAPACITY_BLOCK in (row.usage_type or "") or "capacity block" in (row.description or "").lower()
    match row.category:
        case "Usage":
            return _use(row)
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


def _use(row: FocusRow) -> Meaning:
    if "Unused" in (row.commitment_status, row.capacity_status):
        return Meaning.UNUSED
    in_hours = (row.unit or "").lower() in _HOUR_UNITS
    of_instance = (tail(row.resource) or "").startswith(INSTANCE_PREFIX)
    if row.usage_type is None:
        if not (in_hours and of_instance):
            return Meaning.OTHER
    elif not is_instance_use(row.usage_type):
        if not is_reserved_use(row.usage_type):
            return Meaning.OTHER
        if not of_instance:
            return Meaning.UNUSED
    if row.commitment_status == "Used" or row.pricing == "Committed":
        plan = "savings plan" in (row.commitment_type or "").lower()
        return Meaning.SAVINGS_PLAN if plan else Meaning.RESERVED
    return (
        Meaning.SPOT
        if row.pricing == "Dynamic" or SPOT_USAGE in (row.usage_type or "")
        else Meaning.ON_DEMAND
    )
