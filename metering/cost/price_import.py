"""Taking prices in: what of a file becomes a part of the price book, and since when. Pure.

    file ─▶ offers (price_table.py, aws_prices.py) ─▶ accept ─▶ the prices of a new version (price_versions.py)

Prices never go backwards: what the book has answered for a moment that has passed it answers for ever. An offer that
says since when it holds is refused if that would change an answer. One that does not say holds from its own date on
where that changes nothing, and else from the moment of its import. So what had no price may get one for the past, and
nothing that had one gets another.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from metering.cost.price_book import InstancePrice, Origin, PriceBook
from metering.periods import instant_text, parse_instant
from metering.units import PICO_USD_PER_MICRO_USD, usd_text

_ELSEWHERE = ""
"""A region that no price is named for."""


class ImportRefused(ValueError):
    """Nothing of a file is taken; `mistakes` has all that is wrong with it."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        assert mistakes
        self.mistakes = list(mistakes)
        super().__init__("\n".join(mistakes))


class Offer(NamedTuple):
    """A price as a file has it. where: in the file, for messages. since_ns: as the file says; None: it does not.

    price: its valid_from_ns is not decided yet.
    """

    where: str
    price: InstancePrice
    since_ns: int | None


class Accepted(NamedTuple):
    """What an import adds, and how many of its offers the book has imported already, at the same price."""

    added: list[InstancePrice]
    unchanged: int


def accept(book: PriceBook, offers: Iterable[Offer], now_ns: int) -> Accepted:
    """Decide since when each offer holds. Raises ImportRefused with all that go backwards or contradict another."""
    added: dict[tuple[object, int], tuple[Offer, InstancePrice]] = {}
    unchanged = 0
    mistakes = []
    for offer in offers:
        price = _dated(book, offer, now_ns)
        if (earlier := added.get((price.of, price.valid_from_ns))) is not None:
            if earlier[1].uusd_per_hour != price.uusd_per_hour:
                mistakes.append(
                    f"{offer.where}: another price of {price.of} for the same time than {earlier[0].where}"
                )
            continue
        known = book.imported(price.of, price.valid_from_ns)
        if known is not None and known.uusd_per_hour == price.uusd_per_hour:
            unchanged += 1
        elif (answered := _first_change(book, price, now_ns)) is not None:
            mistakes.append(f"{offer.where}: {_backwards(price, answered)}")
        else:
            added[price.of, price.valid_from_ns] = offer, price
    if mistakes:
        raise ImportRefused(mistakes)
    return Accepted([price for _, price in added.values()], unchanged)


def _dated(book: PriceBook, offer: Offer, now_ns: int) -> InstancePrice:
    if offer.since_ns is not None:
        return _from(offer.price, offer.since_ns)
    if offer.price.date is not None:
        by_date = _from(offer.price, parse_instant(offer.price.date))
        if _first_change(book, by_date, now_ns) is None:
            return by_date
    return _from(offer.price, now_ns)


def _from(price: InstancePrice, since_ns: int) -> InstancePrice:
    return msgspec.structs.replace(price, valid_from_ns=since_ns)


def _first_change(book: PriceBook, price: InstancePrice, now_ns: int) -> InstancePrice | None:
    """What the book has answered for a moment that has passed, where it would answer otherwise with this price too.

    The answers change at the moments of prices alone, so no others need be asked for. The operator's own prices are
    left aside: they may be taken away.
    """
    if price.valid_from_ns >= now_ns:
        return None
    of_type = [(origin, one) for origin, one in book if one.instance_type == price.instance_type]
    imported, shipped = (
        [one for origin, one in of_type if origin is wanted] for wanted in (Origin.IMPORTED, Origin.SHIPPED)
    )
    after = PriceBook((), [*imported, price], shipped)
    moments = {one.valid_from_ns for _, one in of_type if price.valid_from_ns < one.valid_from_ns < now_ns}
    regions = {price.region, None}
    if price.region is None:
        regions |= {_ELSEWHERE, *(one.region for _, one in of_type)}
    for at_ns in sorted({price.valid_from_ns} | moments):
        for region in regions:
            of = price.of._replace(region=region)
            before = book.listed(of, at_ns)
            now = after.listed(of, at_ns)
            if before is not None and (now is None or now.uusd_per_hour != before.uusd_per_hour):
                return before
    return None


def _backwards(price: InstancePrice, answered: InstancePrice) -> str:
    was = usd_text(answered.uusd_per_hour * PICO_USD_PER_MICRO_USD)
    return (
        f"from {instant_text(price.valid_from_ns)} on {price.of} would have another price than it had: {was} USD/h "
        f"({answered.source}). What has been priced stays so: leave valid_from empty, and it holds from the import on, "
        "or name a time to come"
    )
