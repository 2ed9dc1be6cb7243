"""A tenant's month as finance hands it to a department. Pure.

    charged for use  +  shared costs split out to it  +  corrections of closed months  =  total

`total` is what the tenant's rows of a FOCUS chargeback file of the same month sum up to, to the picodollar.
"""

from collections.abc import Iterable, Sequence

import msgspec

from metering.cost.amounts import Amounts, PriceUsed, Summary, total
from metering.cost.charge_terms import Charged
from metering.cost.close_manifest import MonthState
from metering.cost.close_row import RowKind
from metering.cost.month_report import Line, Waterfall
from metering.cost.pricing import RateCard

DIMENSIONS = ("tenant", "project", "model", "family", "instance_type", "day", "cost_centre", "backend")
"""Of the sums that a statement is made of; a roll-up is by some of them."""

Key = tuple[str | None, ...]


class Corrected(msgspec.Struct, frozen=True, kw_only=True):
    """What was learnt in this month of a closed one. Picodollars, by the terms of that month; hours: that changed."""

    month: str
    charged_by: Charged
    hours: int
    taken_back_pusd: int
    restated_pusd: int

    @property
    def difference_pusd(self) -> int:
        """What it adds to this month's charge."""
        return self.restated_pusd - self.taken_back_pusd


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """Of what the figures were made. hours_closed of hours; hours_billed: of the closed ones, by the bill.

    revisions: how many hours count with which revision. rows_sha256: SHA-256, hex, over a line «hour revision digest of
    its rows' file» for each revision that is in the statement, in its order. simulated: instance types.
    """

    created: str
    hours: int
    hours_billed: int
    hours_closed: int
    methods: tuple[str, ...]
    missing: tuple[str, ...]
    not_closed: tuple[str, ...]
    revisions: dict[int, int]
    rows_sha256: str
    sharing: tuple[str, ...]
    simulated: tuple[str, ...]
    unpriced: tuple[str, ...]


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. use: the tenant's sums of its own month, by DIMENSIONS but for `tenant`, of calls and shared costs.

    changes: beside the month before, by model and family; None: nothing is known of it. pools: of the models used.
    prices: of the hardware used; cards: rate cards that held for it.
    """

    account: str
    cards: tuple[RateCard, ...]
    changes: tuple[Line, ...] | None
    charged_by: Charged
    corrections: tuple[Corrected, ...]
    issuer: str
    made: Made
    month: str
    pools: tuple[Waterfall, ...]
    prices: tuple[PriceUsed, ...]
    state: MonthState
    tenant: str
    use: tuple[Summary, ...]

    @property
    def amounts(self) -> Amounts:
        """Of all calls."""
        return total(self.use, RowKind.TENANT)

    @property
    def shared_costs(self) -> dict[str, int]:
        """What is no instance, and was split out to this tenant: name → picodollars."""
        sums = rolled_up(self.use, ["backend"], RowKind.SHARED_COST)
        return {name or "": amounts.allocated_pusd for (name,), amounts in sums.items()}

    @property
    def shared_costs_pusd(self) -> int:
        """Of all of them."""
        return sum(self.shared_costs.values())

    @property
    def corrections_pusd(self) -> int:
        """Of all months."""
        return sum(one.difference_pusd for one in self.corrections)

    @property
    def total_pusd(self) -> int:
        """What the tenant is charged. What has no price is in no sum."""
        return charge(self.amounts, self.charged_by) + self.shared_costs_pusd + self.corrections_pusd


def charge(one: Amounts, by: Charged) -> int:
    """What calls are charged."""
    return one.estimated_pusd if by is Charged.RATE_CARD else one.charge_pusd


def known_charge(one: Amounts, by: Charged) -> int | None:
    """The same; None: nothing of it has a price, which is not 0."""
    known = one.estimate_pusd if by is Charged.RATE_CARD else one.cost_pusd
    return None if known is None else charge(one, by)


def rolled_up(
    use: Iterable[Summary], by: Sequence[str], kind: RowKind = RowKind.TENANT
) -> dict[Key, Amounts]:
    """Sums of one kind by some of a statement's dimensions, in the order of their keys; null last."""
    places = [
        DIMENSIONS.index(name) - 1 for name in by
    ]  # `tenant` is one and the same, and no part of the key
    sums: dict[Key, Amounts] = {}
    for one in use:
        if one.kind is kind:
            key = tuple(one.key[place] for place in places)
            sums[key] = sums.get(key, Amounts()) + one.amounts
    return dict(sorted(sums.items(), key=lambda item: [(word is None, word or "") for word in item[0]]))
