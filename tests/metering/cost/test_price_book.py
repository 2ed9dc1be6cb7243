"""Which price of an instance holds when: against a plain search, and the shipped tables against their rows."""

import csv
import fractions
import pathlib
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost.price_book import (
    ALWAYS_NS,
    InstancePrice,
    Origin,
    Priceable,
    PriceBook,
    PurchaseOption,
    shipped_prices,
)
from metering.periods import parse_instant
from metering.units import MICRO_USD_PER_USD

DATA = pathlib.Path(__file__).parent.parent.parent.parent / "metering" / "data"
INSTANCES, OTHERS = (DATA / "instances.csv").read_text(), (DATA / "other_prices.csv").read_text()
NOW_NS = parse_instant("2026-11-28")


def hourly(
    uusd: int = 12_981_270, region: str | None = None, since: int = 0, option: PurchaseOption = "on-demand"
) -> InstancePrice:
    return InstancePrice(
        date="2026-07-20", instance_type="inf2.48xlarge", purchase_option=option,
        region=region, source="list", uusd_per_hour=uusd, valid_from_ns=since,
    )  # fmt: skip


def asked(book: PriceBook, region: str | None, at_ns: int = 0, option: str | None = None) -> int | None:
    found = book.instance_price("inf2.48xlarge", region, option, at_ns)
    return None if found is None else found.uusd_per_hour


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ("eu-west-1", 3),  # named for the region
        ("us-east-1", 2),  # the operator's for everywhere before the list's for this one
        ("ap-south-1", 2),
        (None, 2),
    ],
)
def test_the_price_is_that_of_the_region(region: str | None, expected: int) -> None:
    book = PriceBook([hourly(2), hourly(3, "eu-west-1")], [], [hourly(4, "us-east-1")])
    assert asked(book, region) == expected


def test_another_regions_price_is_no_price() -> None:
    assert asked(PriceBook([hourly(5, "us-east-1")]), "eu-west-1") is None
    assert asked(PriceBook([hourly(5, "us-east-1")]), None) == 5  # what AWS quotes where it names no region
    assert asked(PriceBook([hourly(5, "eu-west-1")]), None) is None


def test_another_purchase_options_price_is_no_price() -> None:
    book = PriceBook([hourly(5), hourly(2, option="spot")])
    assert [asked(book, None, option=option) for option in (None, "on-demand", "spot")] == [5, 5, 2]
    assert asked(book, None, option="reserved") is None


def test_each_source_is_asked_for_what_it_has_in_force() -> None:
    book = PriceBook([hourly(1, since=30)], [hourly(2, since=20)], [hourly(3)])
    assert [asked(book, None, at_ns) for at_ns in (0, 19, 20, 29, 30)] == [3, 3, 2, 2, 1]
    of = Priceable("inf2.48xlarge", None, "on-demand")
    listed = book.listed(of, 40)
    assert listed is not None
    assert listed.uusd_per_hour == 2  # the operator's own aside
    assert book.imported(of, 19) is None
    assert book.moments("inf2.48xlarge") == {0, 20, 30}
    assert book.moments("trn1.2xlarge") == set()
    assert str(of) == "inf2.48xlarge on-demand"
    assert str(of._replace(region="us-east-1")) == "inf2.48xlarge@us-east-1 on-demand"


def test_of_two_prices_from_one_moment_the_later_counts() -> None:
    book = PriceBook([], [hourly(2), hourly(3)])
    assert asked(book, None) == 3
    assert [(origin, price.uusd_per_hour) for origin, price in book] == [(Origin.IMPORTED, 3)]


prices = st.builds(
    hourly,
    st.integers(1, 9),
    st.sampled_from([None, "us-east-1", "eu-west-1"]),
    st.integers(0, 5),
    st.sampled_from(["on-demand", "spot"]),
)
sources = st.tuples(st.lists(prices, max_size=4), st.lists(prices, max_size=4), st.lists(prices, max_size=4))


def plainly(held: tuple[list[InstancePrice], ...], region: str | None, option: str, at_ns: int) -> int | None:
    """The rule as it stands on the page, one source after another."""
    for source in held:
        for place in [region, None] if region else [None, "us-east-1"]:
            newest = None
            for price in source:
                fits = price.region == place and price.purchase_option == option
                held_by_then = fits and price.valid_from_ns <= at_ns
                if held_by_then and (newest is None or price.valid_from_ns >= newest.valid_from_ns):
                    newest = price
            if newest is not None:
                return newest.uusd_per_hour
    return None


@given(sources, st.sampled_from([None, "us-east-1", "eu-west-1", "ap-south-1"]), st.integers(0, 6))
def test_the_rule_for_any_prices(
    held: tuple[list[InstancePrice], ...], region: str | None, at_ns: int
) -> None:
    book = PriceBook(*held)
    for option in ("on-demand", "spot", "reserved"):
        assert asked(book, region, at_ns, option) == plainly(held, region, option, at_ns)


@pytest.mark.parametrize(
    "careless",
    [
        lambda of: of._replace(region=None),  # any region's
        lambda of: of._replace(purchase_option="on-demand"),  # any option's
    ],
)
def test_a_careless_book_would_be_found(
    monkeypatch: pytest.MonkeyPatch, careless: Callable[[Priceable], Priceable]
) -> None:
    """The mutants: prices are kept by less than what they are of."""
    held = ([hourly(1), hourly(2, "eu-west-1")], [hourly(3, option="spot")], [])
    questions = [(region, option) for region in (None, "eu-west-1") for option in ("on-demand", "spot")]
    right = [plainly(held, region, option, 0) for region, option in questions]
    assert [asked(PriceBook(*held), region, 0, option) for region, option in questions] == right
    of = InstancePrice.of.fget
    assert of is not None
    monkeypatch.setattr(InstancePrice, "of", property(lambda price: careless(of(price))))
    assert [asked(PriceBook(*held), region, 0, option) for region, option in questions] != right


@given(sources)
def test_the_digest_is_that_of_what_counts(held: tuple[list[InstancePrice], ...]) -> None:
    book, again = PriceBook(*held), PriceBook(*(list(source) for source in held))
    assert book.digest == again.digest
    assert re.fullmatch("sha256:[0-9a-f]{64}", book.digest)
    assert PriceBook([*held[0], hourly(99)], *held[1:]).digest != book.digest


def test_every_price_of_the_table_is_exact() -> None:
    book = PriceBook(shipped=shipped_prices(INSTANCES, OTHERS))
    rows = [row for row in csv.DictReader(INSTANCES.splitlines()) if row["usd_per_hour_on_demand"]]
    assert len(rows) > 50
    for row in rows:
        one = book.instance_price(row["instance_type"], "us-east-1", None, NOW_NS)
        assert one is not None
        assert fractions.Fraction(one.uusd_per_hour, MICRO_USD_PER_USD) == fractions.Fraction(
            row["usd_per_hour_on_demand"]
        )
        assert (one.date, one.valid_from_ns) == ("2026-07-20", ALWAYS_NS)
    assert book.instance_price("trn2.48xlarge", "us-east-1", None, NOW_NS) is None  # unknown, not 0


def test_other_prices_are_taken_only_where_they_are_one_number_of_a_day() -> None:
    found = [
        (price.instance_type, price.uusd_per_hour, price.date)
        for price in shipped_prices(INSTANCES, OTHERS)
        if price.purchase_option != "on-demand"
    ]
    assert sorted(found) == [
        ("p5en.48xlarge", 63_158_000, "2026-10-08"),
        ("trn1.32xlarge", 9_532_000, "2026-10-08"),
        ("trn2.3xlarge", 2_235_000, "2026-05-21"),
        ("trn2.48xlarge", 35_760_800, "2026-05-21"),
        ("trn2.48xlarge", 35_760_800, "2026-10-08"),
    ]
    unclear = OTHERS.splitlines()[0] + "\ntrn1.2xlarge,gift,0.1,,2026-10-08,somebody\n"
    assert shipped_prices(INSTANCES.splitlines()[0], unclear) == []
    book = PriceBook(shipped=shipped_prices(INSTANCES, OTHERS))
    block = book.instance_price("trn2.48xlarge", "us-east-2", "capacity-block", NOW_NS)
    assert block is not None
    assert (block.date, block.source.partition(",")[0]) == ("2026-10-08", "other_prices.csv: capacity block")
