"""What a call cost: by a rate card, else derived from the slot time of a priced instance. Pure.

    card      (prompt − cached) × prompt price + cached × cached price + completion × completion price
    derived   µ$/h × Σ(units ÷ units_total) × slot_ns ÷ (3,600,000 × slots)

Both are exact until one rounding, half up, to a whole picodollar, at the end. A card's prices are
picodollars per 1M tokens. `derived` is what the hardware cost for the time that the call held one of
its slots: 1 µ$/h × 1 ns = 10⁶ ÷ (3.6 × 10¹²) picodollars. What cannot be priced has a reason, never a 0.
"""

import csv
import enum
import fractions
import functools
import io
from collections.abc import Iterable

import msgspec

from metering.record import Host, Instance, PriceBasis
from metering.units import MICRO_USD_PER_USD, TOKENS_PER_MTOK, div_half_up, usd_to
from metering.usage import Usage

_DERIVED_DIVISOR = 3_600_000
"""(ns per hour) ÷ (picodollars per micro-dollar)."""


class Unpriced(enum.StrEnum):
    """Why a call has no cost; the values stand in records and metrics."""

    NO_CARD_NO_TYPE = "no_rate_card_no_instance_type"
    PRICE_UNKNOWN = "instance_price_unknown"
    UNITS_UNKNOWN = "units_unknown"
    SLOTS_UNKNOWN = "slots_unknown"
    SLOT_TIME_UNKNOWN = "slot_time_unknown"
    USAGE_UNKNOWN = "usage_unknown"


class RateCard(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Token prices of one model on one kind of hardware, in picodollars per 1M tokens.

    hardware: an instance family ("inf2") or one instance type ("inf2.48xlarge"). date: since when it holds.
    """

    model: str
    hardware: str
    prompt: int
    cached_prompt: int
    completion: int
    date: str
    source: str

    @functools.cached_property
    def id(self) -> str:
        """What stands in the record: "<model>/<family or type>@<date>"."""
        return f"{self.model}/{self.hardware}@{self.date}"

    @functools.cached_property
    def basis(self) -> PriceBasis:
        """The card as the record shows it."""
        return PriceBasis(
            kind="card",
            prompt_pusd_per_mtok=self.prompt,
            cached_prompt_pusd_per_mtok=self.cached_prompt,
            completion_pusd_per_mtok=self.completion,
            date=self.date,
            source=self.source,
        )


class InstancePrice(msgspec.Struct, frozen=True, kw_only=True):
    """Price of one instance type, in micro-dollars per hour. region None: it holds everywhere."""

    instance_type: str
    uusd_per_hour: int
    date: str | None
    source: str
    region: str | None


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """The money fields of a record. Either a cost with its basis, or the reason why there is none."""

    cost_pusd: int | None = None
    rate_card: str | None = None
    price_basis: PriceBasis | None = None
    unpriced_reason: Unpriced | None = None

    def __post_init__(self) -> None:
        assert (self.cost_pusd is None) == (self.price_basis is None)
        assert (self.cost_pusd is None) == (self.unpriced_reason is not None)


def card_cost(usage: Usage, card: RateCard) -> int | None:
    """Picodollars of `usage` by `card`; None if a count is missing.

    An unknown number of cached tokens is taken as none: all of the prompt at the full price.
    """
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    cached = 0 if usage.cached_prompt_tokens is None else usage.cached_prompt_tokens
    exact = (
        (usage.prompt_tokens - cached) * card.prompt
        + cached * card.cached_prompt
        + usage.completion_tokens * card.completion
    )
    return div_half_up(exact, TOKENS_PER_MTOK)


def _share(instance: Instance) -> fractions.Fraction:
    assert instance.units is not None
    assert instance.units_total is not None
    assert 0 < instance.units <= instance.units_total
    return fractions.Fraction(instance.units, instance.units_total)


class SlotRate(msgspec.Struct, frozen=True, dict=True):
    """The price of the time that a call holds one of `slots` slots of a server that owns `instances`.

    instances: shares with units and units_total known, all of the one type that the price is for.
    """

    price: InstancePrice
    instances: tuple[Instance, ...]
    slots: int

    @functools.cached_property
    def basis(self) -> PriceBasis:
        """The instance price as the record shows it."""
        return PriceBasis(
            kind="derived",
            instance_price_uusd_per_hour=self.price.uusd_per_hour,
            date=self.price.date,
            source=self.price.source,
        )

    def cost(self, slot_ns: int) -> int:
        """Picodollars of this time in one slot."""
        assert slot_ns >= 0
        multiplier, divisor = self._per_ns
        return div_half_up(multiplier * slot_ns, divisor)

    @functools.cached_property
    def _per_ns(self) -> tuple[int, int]:
        """Picodollars of a nanosecond as a fraction."""
        assert self.slots > 0
        share = sum((_share(instance) for instance in self.instances), start=fractions.Fraction())
        return self.price.uusd_per_hour * share.numerator, _DERIVED_DIVISOR * share.denominator * self.slots


Tariff = RateCard | SlotRate | Unpriced
"""How calls of one model at one backend are priced, or why they are not."""


def price(tariff: Tariff, usage: Usage, slot_ns: int | None) -> Priced:
    """The cost of an attempt: token counts by a card, or slot time by an instance's price."""
    match tariff:
        case RateCard():
            cost = card_cost(usage, tariff)
            if cost is None:
                return Priced(unpriced_reason=Unpriced.USAGE_UNKNOWN)
            return Priced(cost_pusd=cost, rate_card=tariff.id, price_basis=tariff.basis)
        case SlotRate():
            if slot_ns is None:
                return Priced(unpriced_reason=Unpriced.SLOT_TIME_UNKNOWN)
            return Priced(cost_pusd=tariff.cost(slot_ns), price_basis=tariff.basis)
        case _:
            return Priced(unpriced_reason=tariff)


class PriceBook:
    """All prices: rate cards by model and hardware, instance prices by type and region."""

    def __init__(
        self,
        cards: Iterable[RateCard],
        own: Iterable[InstancePrice] = (),
        listed: Iterable[InstancePrice] = (),
    ) -> None:
        """own: prices that the operator gave; they go before those of the list."""
        self._cards = {(card.model, card.hardware): card for card in cards}
        self._prices = (tuple(own), tuple(listed))

    def tariff(self, host: Host) -> Tariff:
        """How calls that `host` serves are priced.

        The card of its exact instance type, else of its family, else derived from slot time, else
        not at all. A model server that spans instances spans instances of one type.
        """
        types = {instance.type for instance in host.instances}
        instance_type = types.pop() if len(types) == 1 else None
        for hardware in (instance_type, host.instance_family):
            if hardware is not None and (card := self._cards.get((host.model, hardware))):
                return card
        if instance_type is None:
            return Unpriced.NO_CARD_NO_TYPE
        price = self.instance_price(instance_type, host.region)
        if price is None:
            return Unpriced.PRICE_UNKNOWN
        if any(instance.units is None or instance.units_total is None for instance in host.instances):
            return Unpriced.UNITS_UNKNOWN
        if host.slots is None:
            return Unpriced.SLOTS_UNKNOWN
        return SlotRate(price, host.instances, host.slots)

    def instance_price(self, instance_type: str, region: str | None) -> InstancePrice | None:
        """The price that holds in `region`; None if there is none: another region's is a wrong price.

        One named for the region goes before one for everywhere; with no region known the first is taken.
        """
        for prices in self._prices:
            known = [price for price in prices if price.instance_type == instance_type]
            here = [price for price in known if region in (None, price.region)]
            everywhere = [price for price in known if price.region is None]
            if fitting := here + everywhere:
                return fitting[0]
        return None


def list_prices(instances_csv: str) -> list[InstancePrice]:
    """On-demand prices of the shipped table (metering/data/instances.csv); rows with no price are left out.

    Raises ValueError if a price is not exact in micro-dollars.
    """
    prices = []
    for row in csv.DictReader(io.StringIO(instances_csv)):
        if row["usd_per_hour_on_demand"]:
            price = InstancePrice(
                instance_type=row["instance_type"],
                uusd_per_hour=usd_to(row["usd_per_hour_on_demand"], MICRO_USD_PER_USD),
                date=row["price_date"],
                source=f"instances.csv: on-demand list price, {row['region']}",
                region=row["region"],
            )
            prices.append(price)
    return prices


def explain(reason: str, *, model: str, backend: str, instance_type: str | None = None) -> str:
    """What would price the next such call, for the operator: a flag of `serve`, or a line of the file."""
    card = f"add a rate card under models[{model}].rate_cards"
    what = instance_type or "this instance type"
    where = f"backends[{backend}]"
    match reason:
        case Unpriced.NO_CARD_NO_TYPE:
            return f"set {where}.instance_type (with --backend: --instance-type TYPE --slots N)"
        case Unpriced.PRICE_UNKNOWN:
            return f"no price of {what} is known for its region; add one under prices, or {card}"
        case Unpriced.UNITS_UNKNOWN:
            return f"{what} is not in the table of instances; set {where}.units and units_total, or {card}"
        case Unpriced.SLOTS_UNKNOWN:
            return f"set {where}.slots to its max_num_seqs (with --backend: --slots N), or {card}"
        case Unpriced.USAGE_UNKNOWN:
            return (
                "the backend sent no token counts: the answer was cut short before its usage, or is a transcript, "
                "which has none; without a rate card its slot time is priced"
            )
        case Unpriced.SLOT_TIME_UNKNOWN:
            return "the time for which the call held a slot is not known"
        case _:
            return reason
