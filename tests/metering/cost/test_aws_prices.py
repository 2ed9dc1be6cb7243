"""AWS' price list in both shapes: which rows are taken, at which price."""

import json
import pathlib
from typing import Any

import pytest

from metering.cost import aws_prices
from metering.cost.aws_prices import Lease
from metering.cost.price_import import ImportRefused

DATA = pathlib.Path(__file__).parent.parent.parent / "data" / "aws-prices"
SHAPES = ("bulk.json", "get_products.json")
YEARS = Lease("3yr", "standard", "All Upfront")


def accelerated(instance_type: str) -> bool:
    return not instance_type.startswith("m5")


def told(data: bytes, lease: Lease | None = None) -> list[tuple[str, str | None, str, int]]:
    found = aws_prices.read(data, accelerated, lease)
    return [
        (one.price.instance_type, one.price.region, one.price.purchase_option, one.price.uusd_per_hour)
        for one in found.offers
    ]


def bulk() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((DATA / "bulk.json").read_text())
    return read


@pytest.mark.parametrize("shape", SHAPES)
def test_running_linux_instances_are_taken_and_nothing_else(shape: str) -> None:
    data = (DATA / shape).read_bytes()
    assert told(data) == [
        ("inf2.48xlarge", "us-east-1", "on-demand", 13_100_000),
        ("trn1.32xlarge", "eu-north-1", "on-demand", 22_000_000),
    ]
    found = aws_prices.read(data, accelerated)
    assert found.passed_over["with another system, licence or tenancy"] == 3
    assert found.passed_over["without a price in USD"] == 1  # 0 is what AWS writes where it asks nothing
    assert found.passed_over["of instance types that are not asked for"] == 1
    (first, _) = found.offers
    assert (first.where, first.since_ns) == ("SKU AAAAAAAAAAAAAAA1 (inf2.48xlarge)", None)
    assert (first.price.date, first.price.source) == ("2026-11-01", "AWS price list of 2026-11-15, on demand")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_reservations_fee_is_spread_over_its_hours(shape: str) -> None:
    data = (DATA / shape).read_bytes()
    expected = round(147_378 / (3 * 8_760) * 1e6)  # 5.607991 USD/h
    assert ("inf2.48xlarge", "us-east-1", "reserved", expected) in told(data, YEARS)
    hourly = told(data, Lease("1yr", "standard", "No Upfront"))
    assert ("inf2.48xlarge", "us-east-1", "reserved", 8_178_000) in hourly
    assert len(told(data, Lease("1yr", "convertible", "No Upfront"))) == 2


def test_the_list_alone_is_as_good_as_the_answer() -> None:
    answer = json.loads((DATA / "get_products.json").read_text())
    assert told(json.dumps(answer["PriceList"]).encode()) == told((DATA / "bulk.json").read_bytes())


def test_what_is_in_another_currency_has_no_price() -> None:
    data = bulk()
    for terms in data["terms"]["OnDemand"].values():
        for term in terms.values():
            for dimension in term["priceDimensions"].values():
                dimension["pricePerUnit"] = {"CNY": "90.0"}
    with pytest.raises(ImportRefused, match="3 without a price in USD"):
        told(json.dumps(data).encode())


def test_two_hourly_prices_in_one_term_are_none_that_could_be_told() -> None:
    data = bulk()
    (term,) = data["terms"]["OnDemand"]["AAAAAAAAAAAAAAA1"].values()
    (dimension,) = term["priceDimensions"].values()
    term["priceDimensions"]["another"] = dimension | {"beginRange": "100"}
    assert [one[0] for one in told(json.dumps(data).encode())] == ["trn1.32xlarge"]


def test_a_fee_that_cannot_be_read_makes_no_price() -> None:
    data = bulk()
    for term in data["terms"]["Reserved"]["AAAAAAAAAAAAAAA1"].values():
        for dimension in term["priceDimensions"].values():
            if dimension["description"] == "Upfront Fee":
                dimension["pricePerUnit"] = {"USD": "a lot"}
    assert "reserved" not in [one[2] for one in told(json.dumps(data).encode(), YEARS)]


def test_no_region_no_terms_no_dates() -> None:
    data = bulk()
    del data["products"]["AAAAAAAAAAAAAAA2"]["attributes"]["regionCode"]
    del data["terms"]["OnDemand"]["AAAAAAAAAAAAAAA9"]
    del data["terms"]["Reserved"]
    data["publicationDate"] = "soon"
    (term,) = data["terms"]["OnDemand"]["AAAAAAAAAAAAAAA1"].values()
    term["effectiveDate"] = ""
    found = aws_prices.read(json.dumps(data).encode(), accelerated, YEARS)
    (only,) = found.offers
    assert (only.price.date, only.price.source) == (None, "AWS price list of an unknown day, on demand")
    assert found.passed_over["without a region"] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b'{"products":1,"terms":{}}',
        b'{"PriceList":["{"]}',
        b"{" * 5000,
        b'["\xff"]',
    ],
)
def test_what_is_no_price_list_is_refused(data: bytes) -> None:
    with pytest.raises(ImportRefused):
        aws_prices.read(data, accelerated)


def test_a_file_of_other_types_says_what_it_has() -> None:
    with pytest.raises(ImportRefused, match="4 of instance types that are not asked for"):
        aws_prices.read((DATA / "bulk.json").read_bytes(), lambda _: False)
