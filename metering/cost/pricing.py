"""What a call cost: by a rate card, else derived from the slot time of a priced instance. Pure.

    card      (prompt − cached) × prompt price + cached × cached price + completion × completion price
              + Σ other kinds × their prices + the price of each call
    derived   µ$/h × Σ(units ÷ units_total) × slot_ns ÷ (3,600,000 × slots)

Both are exact until one rounding, half up, to a whole picodollar, at the end. A card's prices are
picodollars per 1M tokens, per 1M of another kind (seconds of audio), and per call. `derived` is what the hardware
cost for the time that the call held one of its slots: 1 µ$/h × 1 ns = 10⁶ ÷ (3.6 × 10¹²) picodollars. What cannot be
priced has a reason, never a 0.
"""

import bisect
import enum
import fractions
import functools
from collections.abc import Iterable

import msgspec

from metering.cost.price_book import InstancePrice, PriceBook
from metering.periods import parse_instant
from metering.record import Host, Instance, PriceBasis
from metering.units import TOKENS_PER_MTOK, div_half_up
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
    """Prices of one model on one kind of hardware, in picodollars per 1M tokens.

    other: per 1M of what `Usage.other` counts, by its kind. per_request: of each call that used anything.
    hardware: an instance family ("inf2") or one instance type ("inf2.48xlarge"). date: the day (UTC) since when it
    holds, until the next card of the same model and hardware.
    """

    model: str
    hardware: str
    prompt: int
    cached_prompt: int
    completion: int
    other: dict[str, int] = {}
    per_request: int = 0
    date: str
    source: str

    @functools.cached_property
    def tokens_alone(self) -> bool:
        """Does it price tokens and nothing else? Most do."""
        return not self.other and not self.per_request

    @functools.cached_property
    def id(self) -> str:
        """What stands in the record: "<model>/<family or type>@<date>"."""
        return f"{self.model}/{self.hardware}@{self.date}"

    @functools.cached_property
    def since_ns(self) -> int:
        """The first moment of its day."""
        return parse_instant(self.date)

    @functools.cached_property
    def basis(self) -> PriceBasis:
        """The card as the record shows it."""
        return PriceBasis(
            kind="card",
            prompt_pusd_per_mtok=self.prompt,
            cached_prompt_pusd_per_mtok=self.cached_prompt,
            completion_pusd_per_mtok=self.completion,
            other_pusd_per_munit=self.other or msgspec.UNSET,
            per_request_pusd=self.per_request or msgspec.UNSET,
            date=self.date,
            source=self.source,
        )


class Priced(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    if not card.tokens_alone:
        return _whole_cost(usage, card)
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    cached = 0 if usage.cached_prompt_tokens is None else usage.cached_prompt_tokens
    exact = (
        (usage.prompt_tokens - cached) * card.prompt
        + cached * card.cached_prompt
        + usage.completion_tokens * card.completion
    )
    return div_half_up(exact, TOKENS_PER_MTOK)


def _whole_cost(usage: Usage, card: RateCard) -> int | None:
    """The same of a card that prices more than tokens.

    A transcript counts seconds and no tokens: where the card has a price for what was counted, a count of tokens that
    is missing matters only if it has a price. What used nothing, as a tokenizer's answer, costs nothing.
    """
    counted = {kind: count for kind, count in (usage.other or {}).items() if kind in card.other}
    if usage.prompt_tokens is None and (card.prompt or card.cached_prompt or not counted):
        return None
    if usage.completion_tokens is None and (card.completion or not counted):
        return None
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    cached = usage.cached_prompt_tokens or 0
    exact = (prompt - cached) * card.prompt + cached * card.cached_prompt + completion * card.completion
    exact += sum(count * card.other[kind] for kind, count in counted.items())
    if prompt or completion or any(counted.values()):
        exact += card.per_request * TOKENS_PER_MTOK
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


class Schedule(msgspec.Struct, frozen=True):
    """The tariffs of one model at one backend, each from a moment on.

    since_ns: when each but the first begins to hold (wall clock), ascending. tariffs: one more than these.
    """

    since_ns: tuple[int, ...]
    tariffs: tuple[Tariff, ...]

    def at(self, at_ns: int) -> Tariff:
        """The one in force at a call's admission: it prices all of the call, however long that takes."""
        if not self.since_ns:
            return self.tariffs[0]
        return self.tariffs[bisect.bisect_right(self.since_ns, at_ns)]


class PriceList:
    """How calls are priced: rate cards by model and hardware, and the book of instance prices."""

    def __init__(self, cards: Iterable[RateCard], book: PriceBook) -> None:
        self.book = book
        self._cards: dict[tuple[str, str], list[RateCard]] = {}
        for card in sorted(cards, key=lambda card: card.since_ns):
            self._cards.setdefault((card.model, card.hardware), []).append(card)

    def schedule(self, host: Host, from_ns: int) -> Schedule:
        """The tariffs of calls that `host` serves, from this moment on."""
        moments = {card.since_ns for of in self._hardware(host) for card in self._cards.get(of, ())}
        if (instance_type := _type_of(host)) is not None:
            moments |= self.book.moments(instance_type)
        since_ns: list[int] = []
        tariffs = [self.tariff(host, from_ns)]
        for moment in sorted(moment for moment in moments if moment > from_ns):
            tariff = self.tariff(host, moment)
            if tariff != tariffs[-1]:
                since_ns.append(moment)
                tariffs.append(tariff)
        return Schedule(tuple(since_ns), tuple(tariffs))

    def tariff(self, host: Host, at_ns: int) -> Tariff:
        """How a call that `host` serves is priced if it is admitted at this moment.

        The card of its exact instance type, else of its family, else derived from slot time, else
        not at all. A model server that spans instances spans instances of one type.
        """
        if (card := self.card(host, at_ns)) is not None:
            return card
        instance_type = _type_of(host)
        if instance_type is None:
            return Unpriced.NO_CARD_NO_TYPE
        price = self.book.instance_price(instance_type, host.region, host.purchase_option, at_ns)
        if price is None:
            return Unpriced.PRICE_UNKNOWN
        if any(instance.units is None or instance.units_total is None for instance in host.instances):
            return Unpriced.UNITS_UNKNOWN
        if host.slots is None:
            return Unpriced.SLOTS_UNKNOWN
        return SlotRate(price, host.instances, host.slots)

    def card(self, host: Host, at_ns: int) -> RateCard | None:
        """The newest card in force for its exact instance type, else for its family."""
        for of in self._hardware(host):
            in_force = [card for card in self._cards.get(of, ()) if card.since_ns <= at_ns]
            if in_force:
                return in_force[-1]
        return None

    def _hardware(self, host: Host) -> list[tuple[str, str]]:
        return [(host.model, name) for name in (_type_of(host), host.instance_family) if name is not None]


def _type_of(host: Host) -> str | None:
    types = {instance.type for instance in host.instances}
    return types.pop() if len(types) == 1 else None


def explain(reason: str, *, model: str, backend: str, instance_type: str | None = None) -> str:
    """What would price the next such call, for the operator: a flag of `serve`, or a line of the file."""
    card = f"add a rate card under models[{model}].rate_cards"
    what = instance_type or "this instance type"
    where = f"backends[{backend}]"
    match reason:
        case Unpriced.NO_CARD_NO_TYPE:
            return f"set {where}.instance_type (with --backend: --instance-type TYPE --slots N)"
        case Unpriced.PRICE_UNKNOWN:
            return (
                f"no price of {what} is known for its region and purchase option; add one under prices "
                f"(or with `weighbridge prices import`), or {card}"
            )
        case Unpriced.UNITS_UNKNOWN:
            return f"{what} is not in the table of instances; set {where}.units and units_total, or {card}"
        case Unpriced.SLOTS_UNKNOWN:
            return f"set {where}.slots to its max_num_seqs (with --backend: --slots N), or {card}"
        case Unpriced.USAGE_UNKNOWN:
            return (
                "the backend sent no token counts: the answer was cut short before its usage, or is a transcript, "
                "which has none: a rate card can price its seconds (other.audio_s); without one its slot time is priced"
            )
        case Unpriced.SLOT_TIME_UNKNOWN:
            return "the time for which the call held a slot is not known"
        case _:
            return reason
