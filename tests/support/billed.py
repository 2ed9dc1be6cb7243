"""Closed hours of the fleet of a made-up bill (tests/support/cur.py), and a whole reconciliation in memory."""

import pathlib
from collections.abc import Iterable, Mapping

from metering.cost import bill_reader
from metering.cost.bill import ReadBill
from metering.cost.bill_reader import Wanted
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.reconcile import Reconciled, Reconciling
from tests.support import cur

METHOD = "slot-time"
FAMILIES = ("inf2", "trn1", "trn1n")
FULL = 1_000_000
Hours = Mapping[int, list[CloseRow]]


def closed(bill: cur.Bill) -> dict[int, list[CloseRow]]:
    """What the gateway counted of this fleet, in three rows for each instance and hour."""
    found: dict[int, list[CloseRow]] = {hour: [] for hour in bill.span}
    for instance in bill.fleet:
        for hour in instance.hours:
            begun = hour == instance.hours.start and instance.option == "on-demand"
            found[bill.start + hour] += rows_of(
                instance, bill.start + hour, FULL // 4 if begun else FULL, instance.rate // 10_000
            )
    return found


def rows_of(instance: cur.Instance, hour: int, micro_hours: int, uusd: int | None) -> list[CloseRow]:
    """A tenant's row, what was idle, and what no backend owned."""
    tenant, idle = micro_hours // 3, micro_hours // 7
    parts = (
        (RowKind.TENANT, "acme", tenant, idle),
        (RowKind.IDLE, None, idle, -idle),
        (RowKind.STRANDED, None, micro_hours - tenant - idle, 0),
    )
    return [
        CloseRow(
            hour=hour, kind=kind, backend=None if kind is RowKind.STRANDED else "b1", instance_id=instance.id,
            instance_type=instance.type, region=instance.region, tenant=who, micro_hours=part,
            shared_micro_hours=shared, uusd_per_hour=uusd, price_source="a list", price_date="2026-07-20",
            list_pusd=None if uusd is None else part * uusd,
            allocated_pusd=None if uusd is None else part * uusd,
            shared_pusd=None if uusd is None else shared * uusd, method=METHOD,
            purchase_option="spot" if instance.option == "spot" else None,
        )
        for kind, who, part, shared in parts
    ]  # fmt: skip


def read(paths: Iterable[pathlib.Path], hours: Hours, month: str | None = None) -> ReadBill:
    """The bill, asked for the instances of these hours."""
    registered = {row.instance_id for rows in hours.values() for row in rows if row.instance_id}
    return bill_reader.read(list(paths), month, lambda _: Wanted(registered, FAMILIES))


def reconcile(found: ReadBill, hours: Hours) -> tuple[Reconciled, dict[int, list[CloseRow]]]:
    """All hours against the bill. returns: what came of it, and the new rows."""
    registered = {row.instance_id for rows in hours.values() for row in rows if row.instance_id}
    reconciling = Reconciling(found.bill, registered)
    new = {hour: reconciling.hour(hour, rows, METHOD) for hour, rows in sorted(hours.items())}
    return reconciling.result(found.split_rows), new
