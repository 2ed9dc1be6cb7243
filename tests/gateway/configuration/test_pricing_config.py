"""From the configuration to prices, and what it leaves unpriced."""

import msgspec

from backends.catalog import read_catalog
from backends.model import Backend
from gateway.configuration import pricing_config
from gateway.configuration.config import (
    CardEntry,
    Config,
    InstanceTypeEntry,
    Model,
    PriceEntry,
    Tenant,
    Tier,
    WorkUnitsEntry,
)
from gateway.configuration.config_load import catalog_of, instances_csv, price_tables
from metering.cost.pricing import PriceList, RateCard
from metering.periods import parse_instant

CATALOG = read_catalog(instances_csv())
NOW_NS = parse_instant("2026-11-28")


def backend(
    name: str, instance_type: str | None = None, slots: int | None = None, **fields: str | int
) -> Backend:
    return Backend(
        name=name, url="http://127.0.0.1:1", model="m", instance_type=instance_type, slots=slots, **fields
    )  # type: ignore[arg-type]


def configured(*backends: Backend, prices: tuple[PriceEntry, ...] = (), **fields: str | None) -> Config:
    card = {"family": "inf2", "prompt": "0.15", "completion": "0.6", "date": "2026-11-01", "source": "list"}
    entry = msgspec.convert(card | fields, CardEntry)
    tier = Tier(backends=tuple(one.name for one in backends))
    return Config(
        tenants=(Tenant(name="acme"),),
        models=(Model(name="llama", tiers=(tier, tier), rate_cards=(entry,), owner="team-a"),),
        backends=backends,
        prices=prices,
    )


def price_list(config: Config) -> PriceList:
    return pricing_config.price_list(config, pricing_config.price_book(config.prices, (), price_tables()))


def unpriced(config: Config) -> list[str]:
    return list(pricing_config.unpriced(config, CATALOG, price_list(config), NOW_NS))


def test_a_card_in_picodollars_per_million_tokens() -> None:
    config = configured(backend("b", "inf2.xlarge"))
    card = RateCard(
        model="llama",
        hardware="inf2",
        prompt=150_000_000_000,
        cached_prompt=150_000_000_000,  # not given: cached tokens cost what others do
        completion=600_000_000_000,
        date="2026-11-01",
        source="list",
    )
    prices = price_list(config)
    facts = pricing_config.model_facts(config.models[0])
    assert facts.owner == "team-a"
    host = pricing_config.identity.host(config.backends[0], facts, CATALOG, pricing_config.Probed())
    assert prices.tariff(host, NOW_NS) == card


def test_a_card_of_one_type_with_a_price_for_cached_tokens() -> None:
    config = configured(
        backend("b", "inf2.xlarge"), family=None, instance_type="inf2.xlarge", cached_prompt="0"
    )
    prices = price_list(config)
    host = pricing_config.identity.host(
        config.backends[0], pricing_config.model_facts(config.models[0]), CATALOG, pricing_config.Probed()
    )
    tariff = prices.tariff(host, NOW_NS)
    assert isinstance(tariff, RateCard)
    assert (tariff.hardware, tariff.cached_prompt) == ("inf2.xlarge", 0)


def test_the_operators_price_goes_before_the_lists() -> None:
    mine = PriceEntry(instance_type="g6e.xlarge", usd_per_hour="1.5", date="2026-11-01", source="contract")
    book = price_list(configured(backend("b", "g6e.xlarge"), prices=(mine,))).book
    found = book.instance_price("g6e.xlarge", "us-east-1", None, NOW_NS)
    assert found is not None
    assert (found.uusd_per_hour, found.source) == (1_500_000, "contract")


def test_a_card_for_hardware_that_no_backend_has_is_named() -> None:
    by_family = configured(backend("a", "inf2.xlarge"), backend("bare"))
    by_type = configured(backend("a", "inf2.xlarge"), family=None, instance_type="inf2.xlarge")
    assert [
        *pricing_config.idle_cards(by_family, CATALOG),
        *pricing_config.idle_cards(by_type, CATALOG),
    ] == []
    misspelt = configured(backend("a", "inf2.xlarge"), backend("b", "g6e.xlarge"), family="inf3")
    assert list(pricing_config.idle_cards(misspelt, CATALOG)) == [
        "the rate card of llama for inf3 prices nothing: no backend of it runs on that; did you mean inf2?"
    ]


def test_a_card_that_holds_from_a_later_day_on_is_named() -> None:
    config = configured(backend("a", "inf2.xlarge"), date="2026-11-29")
    assert list(pricing_config.later_cards(config, NOW_NS)) == [
        "the rate card of llama for inf2 holds from 2026-11-29 on; until then it prices nothing"
    ]
    (model,) = config.models
    (card,) = model.rate_cards
    earlier = msgspec.structs.replace(card, date="2026-11-28")
    both = msgspec.structs.replace(model, rate_cards=(card, earlier))
    assert list(pricing_config.later_cards(msgspec.structs.replace(config, models=(both,)), NOW_NS)) == []


def test_each_backend_whose_calls_have_no_price_is_named_once_with_the_cure() -> None:
    config = configured(
        backend("carded", "inf2.xlarge"),
        backend("derived", "g6e.xlarge", 4),
        backend("bare"),
        backend("slotless", "g6e.xlarge"),
        backend("dear", "trn2.48xlarge", 4),
        backend("typo", "g6e.2xlage", 4),
        backend("abroad", "g6e.xlarge", 4, region="eu-west-1"),
    )
    notes = unpriced(config)
    assert [note.split(" will be")[0] for note in notes] == [
        f"calls of llama on {name}" for name in ("bare", "slotless", "dear", "typo", "abroad")
    ]
    assert "--instance-type" in notes[0]
    assert "--slots" in notes[1]
    assert "no price of trn2.48xlarge" in notes[2]
    assert notes[3].endswith("did you mean g6e.2xlarge?")
    assert "for its region" in notes[4]


def test_an_instance_type_of_ones_own_is_as_good_as_the_tables() -> None:
    own = InstanceTypeEntry(
        name="trn9.48xlarge", family="trn9x", accelerator="trainium9", accelerator_count=16, cores=128
    )
    catalog = catalog_of([own])
    assert catalog["inf2.xlarge"] == CATALOG["inf2.xlarge"]
    facts = pricing_config.model_facts(configured(backend("b")).models[0])
    served_by = backend("b", "trn9.48xlarge", units=32, slots=8)
    host = pricing_config.identity.host(served_by, facts, catalog, pricing_config.Probed())
    (share,) = host.instances
    assert (host.instance_family, host.accelerator, host.cores) == ("trn9x", "trainium9", 32)
    assert (share.units, share.units_total) == (32, 128)
    unknown = pricing_config.identity.host(served_by, facts, CATALOG, pricing_config.Probed())
    assert (unknown.instance_family, unknown.accelerator) == ("trn9", None)


def test_weights_of_the_configuration_are_dated() -> None:
    entries = [
        {"family": "inf2", "date": "2026-11-01", "source": "measured"},
        {
            "instance_type": "inf2.48xlarge",
            "prompt": 2,
            "per_hour": 7,
            "date": "2026-11-01",
            "source": "measured",
        },
    ]
    config = configured(backend("b", "inf2.xlarge"))
    model = msgspec.structs.replace(
        config.models[0], work_units=tuple(msgspec.convert(entry, WorkUnitsEntry) for entry in entries)
    )
    table = pricing_config.work_units([model])
    of_family = table.at("llama", "inf2.xlarge", "inf2", NOW_NS)
    assert (of_family.id, of_family.prompt, of_family.completion) == ("llama/inf2@2026-11-01", 1000, 4000)
    of_type = table.at("llama", "inf2.48xlarge", "inf2", NOW_NS)
    assert (of_type.prompt, of_type.per_hour) == (2, 7)
