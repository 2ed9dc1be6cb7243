"""Manifests and rows of closed hours for tests."""

from typing import Any

from metering.cost.close_manifest import LIST, NO_ROWS, Manifest, PoolTime, Reason, sum_of, totals
from metering.cost.close_row import CloseRow, RowKind

HOUR = 490_896  # 2026-01-01T00


def row(hour: int = HOUR, **fields: Any) -> CloseRow:
    """A row of one inf2.48xlarge at 12.98127 $/h; its money follows from its micro-hours."""
    values: dict[str, Any] = {
        "kind": RowKind.IDLE,
        "pool": "llama",
        "backend": "inf2-a",
        "instance_id": "i-1",
        "instance_type": "inf2.48xlarge",
        "instance_family": "inf2",
        "uusd_per_hour": 12_981_270,
        "price_source": "list",
        "price_date": "2026-07-20",
        "method": "slot-time",
    } | fields
    if values["uusd_per_hour"] is not None and "list_pusd" not in values:
        values["list_pusd"] = values.get("micro_hours", 0) * values["uusd_per_hour"]
        values["allocated_pusd"] = values["list_pusd"]
    return CloseRow(hour=hour, **values)


def manifest(rows: list[CloseRow], *, hour: int = HOUR, revision: int = 1, **fields: Any) -> Manifest:
    """Of these rows; everything else as little as can be."""
    pools = {"llama": PoolTime(owned_ns=2, busy_ns=1)}
    values: dict[str, Any] = {
        "basis": LIST,
        "closed_ns": 1,
        "instances": {"i-1": 1_000_000},
        "made_by": "cli:test",
        "method": "slot-time",
        "missing": (),
        "paid": "sha256:0",
        "pools": pools,
        "prices": "sha256:0",
        "ratios": sum_of(pools).ratios(),
        "reason": Reason.FIRST,
        "remarks": (),
        "rows": NO_ROWS,
        "sharing": "none",
        "totals": totals(rows),
        "unpriced": (),
        "weights": (),
        "writers": (),
    } | fields
    return Manifest(hour=hour, revision=revision, **values)
