"""How a month's tenants are charged, and by whom. Pure.

The configuration says it of the day on which it is read; a month that is closed keeps what it was closed with
(metering/cost/close_manifest.py), so that no later change of the configuration changes its files.
"""

import enum
from collections.abc import Iterable

import msgspec

from metering.cost.pricing import RateCard
from metering.units import NS_PER_HOUR


class Charged(enum.StrEnum):
    """How tenants are charged (`chargeback`)."""

    RATE_CARD = "rate-card"
    ALLOCATED = "allocated"


class ChargeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """account, issuer: who bills (`exports`). cards: rate cards, whose prices are picodollars per 1M and per call."""

    account: str = "weighbridge"
    cards: tuple[RateCard, ...] = ()
    chargeback: Charged = Charged.RATE_CARD
    issuer: str = "Weighbridge"

    def during(self, hours: range) -> "ChargeTerms":
        """The same with those cards alone that hold in one of these hours since 1970."""
        return msgspec.structs.replace(self, cards=_holding(self.cards, hours))


def _holding(cards: Iterable[RateCard], hours: range) -> tuple[RateCard, ...]:
    """In the order of model, hardware and day; of two of a day the later one counts, as in a price list."""
    start_ns, end_ns = hours.start * NS_PER_HOUR, hours.stop * NS_PER_HOUR
    held: dict[tuple[str, str, int], RateCard] = {}
    for card in sorted(cards, key=lambda card: (card.model, card.hardware, card.since_ns)):
        if card.since_ns < end_ns:
            held[card.model, card.hardware, max(card.since_ns, start_ns)] = card
    return tuple(held.values())
