"""A CSV of prices that a person wrote: every mistake named by its line."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost import price_table
from metering.cost.price_import import ImportRefused
from metering.periods import parse_instant

HEAD = "instance_type,region,purchase_option,usd_per_hour,valid_from,date,source\n"


def test_a_whole_row_and_the_least_there_can_be() -> None:
    text = (
        HEAD + "trn2.48xlarge,us-east-2,capacity-block,35.7608,2026-12-01T06:00:00Z,2026-10-08,order 1234\n"
    )
    (offer,) = price_table.read("\ufeff" + text)
    assert offer.where == "line 2"
    assert offer.since_ns == parse_instant("2026-12-01T06:00:00Z")
    price = offer.price
    assert (price.instance_type, price.region, price.purchase_option) == (
        "trn2.48xlarge",
        "us-east-2",
        "capacity-block",
    )
    assert (price.uusd_per_hour, price.date, price.source) == (35_760_800, "2026-10-08", "order 1234")
    (least,) = price_table.read("source,usd_per_hour,instance_type\nlist,1,inf2.xlarge\n")
    assert (least.price.region, least.price.purchase_option, least.since_ns) == (None, "on-demand", None)
    assert least.price.date is None
    (dated,) = price_table.read(HEAD + "inf2.xlarge,,,1,2026-12-01,,list\n")
    assert dated.price.date == "2026-12-01"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (",,,1,,,list", "instance_type is empty"),
        ("inf2.xlarge,,,,,,list", "usd_per_hour is empty"),
        ("inf2.xlarge,,,1,,,", "source is empty"),
        ("inf2.xlarge,,,1.5e3,,,list", "no amount in USD"),
        ("inf2.xlarge,,,0.1234567,,,list", "finer than"),
        ("inf2.xlarge,,,0,,,list", "usd_per_hour is 0"),
        ("inf2.xlarge,,lease,1,,,list", "no purchase option: there are on-demand"),
        ("inf2.xlarge,,,1,soon,,list", "'soon' is no time"),
        ("inf2.xlarge,,,1,,2026-13-01,list", "is no time"),
        ("inf2.xlarge,,,1,,01.11.2026,list", "is no date"),
        ("inf2 xlarge,,,1,,,list", "is no instance type"),
        (f"inf2.xlarge,,,1,,,{'x' * 257}", "at most 256 characters"),
        ("inf2.xlarge,,,1", "more or fewer cells"),
        ("inf2.xlarge,,,1,,,list,more", "more or fewer cells"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(row: str, message: str) -> None:
    with pytest.raises(ImportRefused, match=message) as refused:
        price_table.read(HEAD + "inf2.xlarge,,,1,,,list\n" + row + "\n")
    assert [mistake.partition(":")[0] for mistake in refused.value.mistakes] == ["line 3"]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("instance_type,source", "the column usd_per_hour is missing"),
        ("instance_type,usd_per_hour,source,regoin", "did you mean region?"),
        ("instance_type,usd_per_hour,source,colour", "there are instance_type"),
        ("instance_type,usd_per_hour,source,source", "a column stands twice"),
        ("", "the column instance_type is missing"),
    ],
)
def test_a_wrong_first_line(head: str, message: str) -> None:
    with pytest.raises(ImportRefused) as refused:
        price_table.read(head + "\n")
    assert message in str(refused.value)


def test_an_empty_table_and_a_broken_one() -> None:
    with pytest.raises(ImportRefused, match="there is no price in it"):
        price_table.read(HEAD)
    with pytest.raises(ImportRefused, match="is no CSV"):
        price_table.read(HEAD + '"inf2.xlarge"x,,,1,,,list\n')


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ImportRefused):
        assert price_table.read(HEAD + text)
