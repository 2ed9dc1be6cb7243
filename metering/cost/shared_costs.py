"""Costs that are no instance (storage, egress, gateway nodes): configured, and in rows of their own. Pure.

    a month's cost, over its hours ─▶ none: one row │ even: a row for each tenant of the hour │ allocated: likewise, by
                                                                                              what it has at list price

A tenant of an hour is one with a `tenant` row in it; in an hour without one the cost keeps a row with no tenant. The
shares follow the list price, so that a bill that comes later does not move them.
"""

import datetime
import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from metering.cost.allocation import split
from metering.cost.close_row import CloseRow, RowKind
from metering.units import PICO_USD_PER_MICRO_USD

_HOUR = datetime.timedelta(hours=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Split(enum.StrEnum):
    """Over whom a shared cost is split."""

    NONE = "none"
    EVEN = "even"
    ALLOCATED = "allocated"


class SharedCost(msgspec.Struct, frozen=True, kw_only=True):
    """One cost. Either uusd_per_month or uusd_per_hour (micro-dollars); from_hour, to_hour: half-open, None: no end."""

    name: str
    uusd_per_month: int | None = None
    uusd_per_hour: int | None = None
    from_hour: int | None = None
    to_hour: int | None = None
    split: Split = Split.NONE

    def __post_init__(self) -> None:
        assert (self.uusd_per_month is None) != (self.uusd_per_hour is None)

    def pusd(self, hour: int) -> int | None:
        """Of one hour since 1970 (UTC), in picodollars; None: it does not run then.

        A month's amount is spread over the month's hours, by cumulative rounding: they add up to it.
        """
        if self.from_hour is not None and hour < self.from_hour:
            return None
        if self.to_hour is not None and hour >= self.to_hour:
            return None
        if self.uusd_per_hour is not None:
            return self.uusd_per_hour * PICO_USD_PER_MICRO_USD
        assert self.uusd_per_month is not None
        at, hours = _within_month(hour)
        amount = self.uusd_per_month * PICO_USD_PER_MICRO_USD
        return amount * (at + 1) // hours - amount * at // hours


def rows(costs: Iterable[SharedCost], hour: int, of_hour: Sequence[CloseRow]) -> list[CloseRow]:
    """Rows of the shared costs of an hour. of_hour: its other rows. `backend` has the cost's name."""
    weights: dict[str, int] = {}
    for row in of_hour:
        if row.kind is RowKind.TENANT and row.tenant is not None:
            weights[row.tenant] = weights.get(row.tenant, 0) + (row.list_pusd or 0)
    return [
        CloseRow(
            hour=hour,
            kind=RowKind.SHARED_COST,
            backend=cost.name,
            tenant=tenant or None,
            list_pusd=part,
            allocated_pusd=part,
            shared_pusd=0,
            method=cost.split.value,
        )
        for cost in costs
        if (amount := cost.pusd(hour)) is not None
        for tenant, part in split(amount, _shares(cost.split, weights)).items()
    ]


def _shares(how: Split, weights: Mapping[str, int]) -> dict[str, int]:
    """Tenant → weight; "" is nobody."""
    if how is Split.ALLOCATED and any(weights.values()):
        return {tenant: weight for tenant, weight in weights.items() if weight}
    if how is Split.EVEN and weights:
        return dict.fromkeys(weights, 1)
    return {"": 1}


def _within_month(hour: int) -> tuple[int, int]:
    """Which hour of its month this is, from 0, and how many that has."""
    moment = _EPOCH + hour * _HOUR
    start = moment.replace(day=1, hour=0)
    end = (start + datetime.timedelta(days=32)).replace(day=1)
    return (moment - start) // _HOUR, (end - start) // _HOUR
