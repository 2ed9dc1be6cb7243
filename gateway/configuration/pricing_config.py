"""From the configuration to prices: the price list, and what the configuration leaves unpriced. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from backends import identity
from backends.catalog import Catalog
from backends.identity import ModelFacts, Probed
from gateway.configuration.config import CardEntry, Config, Exports, Model, PriceEntry
from gateway.configuration.config_shape import did_you_mean
from metering.cost.charge_terms import Charged, ChargeTerms
from metering.cost.price_book import InstancePrice, PriceBook, shipped_prices
from metering.cost.pricing import PriceList, RateCard, Unpriced, explain
from metering.cost.work_units import WorkUnits, WorkUnitTable
from metering.periods import parse_instant
from metering.units import MICRO_USD_PER_USD, PICO_USD_PER_USD, usd_to


class Tables(NamedTuple):
    """The shipped tables of prices (metering/data), as text."""

    instances_csv: str
    other_prices_csv: str


def price_book(prices: Iterable[PriceEntry], imported: Iterable[InstancePrice], shipped: Tables) -> PriceBook:
    """Of instances: the configured prices before the imported ones, and these before the shipped."""
    return PriceBook(map(_price, prices), imported, shipped_prices(*shipped))


def price_list(config: Config, book: PriceBook) -> PriceList:
    """The configured rate cards before the prices of instances."""
    return PriceList(rate_cards(config.models), book)


def rate_cards(models: Iterable[Model]) -> list[RateCard]:
    """All of them."""
    return [_card(model.name, entry) for model in models for entry in model.rate_cards]


def terms(models: Iterable[Model], chargeback: str, exports: Exports) -> ChargeTerms:
    """How tenants are charged, and by whom, as the configuration says now."""
    return ChargeTerms(
        account=exports.account,
        cards=tuple(rate_cards(models)),
        chargeback=Charged(chargeback),
        issuer=exports.issuer,
    )


def work_units(models: Iterable[Model]) -> WorkUnitTable:
    """The configured work-unit weights."""
    return WorkUnitTable(
        WorkUnits(
            cached_prompt=entry.cached_prompt,
            completion=entry.completion,
            date=entry.date,
            hardware=entry.instance_type or entry.family or "",
            model=model.name,
            per_hour=entry.per_hour,
            prompt=entry.prompt,
            source=entry.source,
        )
        for model in models
        for entry in model.work_units
    )


def model_facts(model: Model) -> ModelFacts:
    """What the configuration says of a model, for its `identity` lines."""
    return ModelFacts(
        id=model.name,
        logging_policy=model.logging_policy,
        owner=model.owner,
        storage_location=model.storage_location,
        vendor=model.vendor,
    )


def unpriced(config: Config, catalog: Catalog, prices: PriceList, at_ns: int) -> Iterator[str]:
    """For each backend whose calls have no price at this moment: which, and the line that would price it."""
    backends = {backend.name: backend for backend in config.backends}
    for model in config.models:
        for name in dict.fromkeys(name for tier in model.tiers for name in tier.backends):
            backend = backends[name]
            tariff = prices.tariff(identity.host(backend, model_facts(model), catalog, Probed()), at_ns)
            if isinstance(tariff, Unpriced):
                hint = explain(tariff, model=model.name, backend=name, instance_type=backend.instance_type)
                unknown = backend.instance_type if backend.instance_type not in catalog else None
                near = did_you_mean(unknown, catalog) if unknown else ""
                yield f"calls of {model.name} on {name} will be unpriced ({tariff}): {hint}{near}"


def idle_cards(config: Config, catalog: Catalog) -> Iterator[str]:
    """Rate cards for hardware that no backend of their model is said to run on: a misspelt family prices nothing."""
    backends = {backend.name: backend for backend in config.backends}
    for model in config.models:
        hardware: set[str] = set()
        for name in (name for tier in model.tiers for name in tier.backends):
            host = identity.host(backends[name], model_facts(model), catalog, Probed())
            hardware |= {word for word in (host.instance_family, backends[name].instance_type) if word}
        for card in model.rate_cards:
            meant = card.instance_type or card.family
            assert meant is not None
            if meant not in hardware:
                near = did_you_mean(meant, sorted(hardware))
                yield f"the rate card of {model.name} for {meant} prices nothing: no backend of it runs on that{near}"


def later_cards(config: Config, at_ns: int) -> Iterator[str]:
    """Rate cards that do not hold yet, where none of the same hardware does: a misspelt year prices nothing."""
    for model in config.models:
        first: dict[str, str] = {}
        for card in model.rate_cards:
            hardware = card.instance_type or card.family
            assert hardware is not None
            first[hardware] = min(card.date, first.get(hardware, card.date))
        for hardware, date in first.items():
            if parse_instant(date) > at_ns:
                yield f"the rate card of {model.name} for {hardware} holds from {date} on; until then it prices nothing"


def _card(model: str, entry: CardEntry) -> RateCard:
    hardware = entry.instance_type or entry.family
    assert hardware is not None
    cached_prompt = entry.prompt if entry.cached_prompt is None else entry.cached_prompt
    return RateCard(
        model=model,
        hardware=hardware,
        prompt=usd_to(entry.prompt, PICO_USD_PER_USD),
        cached_prompt=usd_to(cached_prompt, PICO_USD_PER_USD),
        completion=usd_to(entry.completion, PICO_USD_PER_USD),
        other={kind: usd_to(amount, PICO_USD_PER_USD) for kind, amount in sorted(entry.other.items())},
        per_request=usd_to(entry.per_request, PICO_USD_PER_USD),
        date=entry.date,
        source=entry.source,
    )


def _price(entry: PriceEntry) -> InstancePrice:
    return InstancePrice(
        instance_type=entry.instance_type,
        uusd_per_hour=usd_to(entry.usd_per_hour, MICRO_USD_PER_USD),
        date=entry.date,
        source=entry.source,
        region=entry.region,
        purchase_option=entry.purchase_option,
        valid_from_ns=parse_instant(entry.date),
    )
