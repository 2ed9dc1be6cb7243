"""FOCUS *split*: each paid instance-hour is replaced by rows of who used it and what was left unused. Pure.

    an instance's rows of an hour ─▶ one row each: the tenant in the Allocated columns, all else that of the instance

So it can be laid beside the bill by ResourceId and hour. PricingQuantity × unit price = list cost, exactly; ratios
have nine digits and add up to 1, quantities and costs to the instance's. What was shared out (`allocation.sharing`) is
in the amounts. What is no instance is a charge of its own: unused commitments; shared costs, split where they are split
among tenants. Calls that no instance served cost nothing here, and are no rows.
"""

import itertools
from collections.abc import Iterable, Iterator

from metering.cost.allocation import Method, split
from metering.cost.close_row import CloseRow, RowKind
from metering.export.export_parts import ExportRow, Part
from metering.export.focus.charge import (
    HOURS,
    UNITS,
    Allocation,
    Category,
    Charge,
    Priced,
    Quantity,
    Resource,
)

RATIO_WHOLE = 1_000_000_000
METHOD = "weighbridge-{}"
INSTANCE = "Inference Instance"
METER = "Instance Hours"
RESERVED, SHARED_COST = "unused commitment", "shared cost"

_ATTO_PER_PICO = 1_000_000
_PICO_PER_MICRO = 1_000_000
_NANO_PER_MICRO = 1_000
_SLOT_SECONDS, _WORK_UNITS = "Slot-Seconds", "Work-Units"
_PRICING_CATEGORIES = {"spot": "Dynamic", "reserved": "Committed", "savings-plan": "Committed"}
"""Purchase option → PricingCategory; of all others Standard."""


def charges(rows: Iterable[ExportRow]) -> Iterator[Charge]:
    """Rows of a split file, in the order of the closed rows; those of an instance-hour are in memory together."""
    for (part, instance_id, *_), group in itertools.groupby(rows, key=_origin):
        found = [each.row for each in group]
        if instance_id is not None:
            yield from _of_instance(found, part)
        elif found[0].kind is RowKind.SHARED_COST:
            yield from _shared_cost(found, part)
        elif found[0].kind is RowKind.RESERVED:
            yield from (_charge(row, part, RESERVED, None, cost_ausd(row) or 0) for row in found)


def _origin(each: ExportRow) -> tuple[Part, str | None, str | None, RowKind | None]:
    """What tells charges apart that are split: an instance, or by kind and name what is none."""
    row = each.row
    alone = row.instance_id is None
    return each.part, row.instance_id, row.backend if alone else None, row.kind if alone else None


def priced_hours(row: CloseRow, sign: int) -> Priced | None:
    """A row's hours at its instance's price; None: it is unknown."""
    if row.uusd_per_hour is None or row.instance_type is None:
        return None
    option = row.purchase_option or "on-demand"
    return Priced(
        quantity=Quantity(sign * (row.micro_hours + row.shared_micro_hours), HOURS),
        pusd=row.uusd_per_hour * _PICO_PER_MICRO,
        sku=row.instance_type,
        meter=METER,
        sku_price=f"{row.instance_type}/{row.region or 'any-region'}/{option}",
        details=(("InstanceType", row.instance_type), ("x_PurchaseOption", option)),
        category=_PRICING_CATEGORIES.get(option, "Standard"),
    )


def resource(row: CloseRow) -> Resource | None:
    """What a row's cost is of."""
    if row.instance_id is not None:
        return Resource(row.instance_id, INSTANCE)
    name = {RowKind.RESERVED: "Commitment", RowKind.SHARED_COST: "Shared Cost"}.get(row.kind)
    return Resource(row.backend, name) if row.backend is not None and name is not None else None


def cost_ausd(row: CloseRow) -> int | None:
    """What a row costs, with what was shared out to it; None: unknown."""
    if row.allocated_pusd is None:
        return None
    return (row.allocated_pusd + (row.shared_pusd or 0)) * _ATTO_PER_PICO


def _of_instance(rows: list[CloseRow], part: Part) -> Iterator[Charge]:
    weights = {number: row.micro_hours + row.shared_micro_hours for number, row in enumerate(rows)}
    whole = sum(weights.values())
    ratios = split(RATIO_WHOLE, weights) if whole else dict.fromkeys(weights, 0)
    for number, row in enumerate(rows):
        cost = cost_ausd(row)
        if cost is None or (not whole and not cost):
            continue
        allocation = _allocation(row, part, ratios[number]) if whole else None
        yield _charge(
            row, part, f"{row.instance_type or 'instance'} {row.instance_id}, one hour", allocation, cost
        )


def _shared_cost(rows: list[CloseRow], part: Part) -> Iterator[Charge]:
    """A cost that is no instance: as it is, or split among tenants."""
    costs = {number: cost_ausd(row) or 0 for number, row in enumerate(rows)}
    is_split = rows[0].tenant is not None and sum(costs.values()) > 0
    ratios = split(RATIO_WHOLE, costs) if is_split else {}
    for number, row in enumerate(rows):
        allocation = _allocation(row, part, ratios[number]) if is_split else None
        yield _charge(row, part, f"{SHARED_COST} {row.backend}", allocation, costs[number])


def _charge(row: CloseRow, part: Part, what: str, allocation: Allocation | None, cost: int) -> Charge:
    priced = priced_hours(row, part.sign)
    cost *= part.sign
    suffix = f" ({part.correction.value} of revision {part.manifest.revision})" if part.correction else ""
    return Charge(
        hour=row.hour,
        billed_in=part.billed_in,
        revision=part.manifest.revision,
        correction=part.correction,
        category=Category.USAGE if priced else Category.ADJUSTMENT,
        description=what + suffix,
        cost_ausd=cost,
        list_ausd=priced.cost_ausd if priced else cost,
        priced=priced,
        consumed=priced.quantity if priced else None,
        resource=resource(row),
        allocation=allocation,
        of=row,
        row=row,
    )


def _allocation(row: CloseRow, part: Part, ratio: int) -> Allocation:
    used = row.kind in (RowKind.TENANT, RowKind.OVERHEAD)
    if row.kind is RowKind.SHARED_COST:
        unit, usage = UNITS, RATIO_WHOLE
    elif not used:
        unit, usage = HOURS, row.micro_hours * _NANO_PER_MICRO
    elif row.method == Method.SLOT_TIME:
        unit, usage = _SLOT_SECONDS, row.slot_ns
    else:
        unit, usage = _WORK_UNITS, row.work_units * RATIO_WHOLE
    return Allocation(
        method=METHOD.format(row.method if row.kind is RowKind.SHARED_COST else part.manifest.method),
        row_method=row.method,
        ratio=ratio,
        usage_unit=unit,
        usage=usage,
        tenant=row.tenant,
        tags=row.tags or None if row.tenant is not None else None,
    )
