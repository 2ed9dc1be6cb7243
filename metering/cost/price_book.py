"""What an hour of an instance costs, at any moment: dated prices from three sources. Pure.

    the operator's (configuration)  >  imported (metering/cost/price_versions.py)  >  shipped (metering/data)

The first source that has a price in force decides; within it one named for the region goes before one for everywhere,
and of these the newest counts. A price holds from its moment until the next one of the same type, region and purchase
option in the same source. No price is ever taken from another region or for another purchase option: a wrong price is
worse than none.
"""

import csv
import enum
import functools
import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from metering.periods import parse_instant
from metering.units import MICRO_USD_PER_USD, usd_to

PurchaseOption = Literal["on-demand", "spot", "reserved", "savings-plan", "capacity-block"]
"""How an instance is paid for."""

ON_DEMAND: PurchaseOption = "on-demand"
LIST_REGION = "us-east-1"
"""Whose prices AWS and others quote where they name no region."""

ALWAYS_NS = 0
"""valid_from_ns of a price that is not known to have been another one before."""


class Origin(enum.StrEnum):
    """Where a price is from; in the order in which they are asked."""

    CONFIG = "config"
    IMPORTED = "imported"
    SHIPPED = "shipped"


class Priceable(NamedTuple):
    """What a price is of. region None: it holds everywhere."""

    instance_type: str
    region: str | None
    purchase_option: str

    def __str__(self) -> str:
        """ "inf2.48xlarge@us-east-1 on-demand"."""
        place = f"@{self.region}" if self.region else ""
        return f"{self.instance_type}{place} {self.purchase_option}"


class InstancePrice(msgspec.Struct, frozen=True, kw_only=True):
    """Price of one instance type, in micro-dollars per hour. region None: it holds everywhere.

    valid_from_ns: since when (wall clock, UTC). date, source: what says so, and of when that is.
    """

    date: str | None
    instance_type: str
    purchase_option: PurchaseOption = ON_DEMAND
    region: str | None
    source: str
    uusd_per_hour: int
    valid_from_ns: int = ALWAYS_NS

    @property
    def of(self) -> Priceable:
        """What it is the price of."""
        return Priceable(self.instance_type, self.region, self.purchase_option)


class PriceBook:
    """All prices of instances."""

    def __init__(
        self,
        own: Iterable[InstancePrice] = (),
        imported: Iterable[InstancePrice] = (),
        shipped: Iterable[InstancePrice] = (),
    ) -> None:
        """Of two prices of one thing from the same moment on the later one counts."""
        self._sources = {
            Origin.CONFIG: _Source(own),
            Origin.IMPORTED: _Source(imported),
            Origin.SHIPPED: _Source(shipped),
        }

    def instance_price(
        self, instance_type: str, region: str | None, purchase_option: str | None, at_ns: int
    ) -> InstancePrice | None:
        """The price in force at this moment; None: unknown.

        region None: it is not known where the instance runs, so a price for everywhere is taken, else that of
        LIST_REGION. purchase_option None: on demand.
        """
        found = self.find(Priceable(instance_type, region, purchase_option or ON_DEMAND), at_ns)
        return None if found is None else found[1]

    def listed(self, of: Priceable, at_ns: int) -> InstancePrice | None:
        """The same, but for the operator's own prices."""
        found = self.find(of, at_ns, (Origin.IMPORTED, Origin.SHIPPED))
        return None if found is None else found[1]

    def find(
        self, of: Priceable, at_ns: int, origins: Iterable[Origin] = tuple(Origin)
    ) -> tuple[Origin, InstancePrice] | None:
        """The price in force with where it is from, of these sources alone."""
        regions = (of.region, None) if of.region is not None else (None, LIST_REGION)
        for origin in origins:
            for region in regions:
                found = self._sources[origin].newest(of._replace(region=region), at_ns)
                if found is not None:
                    return origin, found
        return None

    def imported(self, of: Priceable, at_ns: int) -> InstancePrice | None:
        """What an import has given for exactly this; None: nothing that is in force at this moment."""
        return self._sources[Origin.IMPORTED].newest(of, at_ns)

    def moments(self, instance_type: str) -> set[int]:
        """When prices of this type begin to hold."""
        return {price.valid_from_ns for _, price in self if price.instance_type == instance_type}

    def in_force(self, at_ns: int) -> Iterator[tuple[Origin, InstancePrice]]:
        """For everything that has a price the one that counts at this moment, by what it is of."""
        for of in sorted({price.of for _, price in self}, key=_in_order):
            found = self.find(of, at_ns)
            if found is not None and found[1].of == of:
                yield found

    def __iter__(self) -> Iterator[tuple[Origin, InstancePrice]]:
        """All prices, by source, and there by what they are of and since when."""
        for origin, source in self._sources.items():
            for price in source.prices:
                yield origin, price

    @functools.cached_property
    def digest(self) -> str:
        """ "sha256:…" of all prices with their sources: what a close was made by."""
        told = msgspec.json.encode([(origin.value, price) for origin, price in self])
        return "sha256:" + hashlib.sha256(told).hexdigest()


class _Source:
    """The prices of one source. prices: sorted, and of two for one moment the one that counts."""

    def __init__(self, prices: Iterable[InstancePrice]) -> None:
        counting = {(price.of, price.valid_from_ns): price for price in prices}
        self.prices = [counting[key] for key in sorted(counting, key=lambda key: (_in_order(key[0]), key[1]))]
        self._of: dict[Priceable, list[InstancePrice]] = {}
        for price in self.prices:
            self._of.setdefault(price.of, []).append(price)

    def newest(self, of: Priceable, at_ns: int) -> InstancePrice | None:
        """The price of exactly this that is in force."""
        held = [price for price in self._of.get(of, ()) if price.valid_from_ns <= at_ns]
        return held[-1] if held else None


def _in_order(of: Priceable) -> tuple[str, str, str]:
    return of.instance_type, of.region or "", of.purchase_option


def shipped_prices(instances_csv: str, other_prices_csv: str) -> list[InstancePrice]:
    """The prices of the shipped tables (metering/data), which grow by rows and in which none is ever changed.

    Raises ValueError if one is not exact in micro-dollars. The first price known of anything holds for the time before
    its date too: that is when it was read, not since when AWS asks it. Of the other prices only those count
    that are one number with a day of their own: a range, a snapshot without a date, or «valid to» some day is none.
    """
    found = _on_demand(instances_csv) + _others(other_prices_csv)
    found.sort(key=lambda price: price.valid_from_ns)
    known: set[Priceable] = set()
    for index, price in enumerate(found):
        if price.of not in known:
            found[index] = msgspec.structs.replace(price, valid_from_ns=ALWAYS_NS)
        known.add(price.of)
    return found


def _on_demand(instances_csv: str) -> list[InstancePrice]:
    return [
        InstancePrice(
            date=row["price_date"],
            instance_type=row["instance_type"],
            region=row["region"],
            source=f"instances.csv: on-demand list price, {row['region']}",
            uusd_per_hour=usd_to(row["usd_per_hour_on_demand"], MICRO_USD_PER_USD),
            valid_from_ns=parse_instant(row["price_date"]),
        )
        for row in csv.DictReader(io.StringIO(instances_csv))
        if row["usd_per_hour_on_demand"]
    ]


_OTHER_KINDS: dict[str, PurchaseOption] = {"capacity block": "capacity-block", "spot": "spot"}


def _others(other_prices_csv: str) -> list[InstancePrice]:
    found = []
    for row in csv.DictReader(io.StringIO(other_prices_csv)):
        purchase_option = _OTHER_KINDS.get(row["price_kind"])
        try:
            valid_from_ns = parse_instant(row["price_date"])
            uusd_per_hour = usd_to(row["usd_per_hour"], MICRO_USD_PER_USD)
        except ValueError:
            continue
        if purchase_option is not None:
            price = InstancePrice(
                date=row["price_date"],
                instance_type=row["instance_type"],
                purchase_option=purchase_option,
                region=row["region_or_zone"] or None,
                source=f"other_prices.csv: {row['price_kind']}, {row['source']}",
                uusd_per_hour=uusd_per_hour,
                valid_from_ns=valid_from_ns,
            )
            found.append(price)
    return found
