"""Prices never go backwards: whatever is imported, what the book has answered for the past it answers for ever."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metering.cost import price_import
from metering.cost.price_book import InstancePrice, PriceBook
from metering.cost.price_import import Accepted, ImportRefused, Offer, accept
from metering.periods import instant_text
from metering.units import NS_PER_HOUR

DAY_NS = 24 * NS_PER_HOUR
NOW_NS = 10 * DAY_NS
REGIONS = (None, "us-east-1", "eu-west-1")


def price(uusd: int, region: str | None = None, since_ns: int = 0, day: int | None = None) -> InstancePrice:
    date = None if day is None else instant_text(day * DAY_NS)[:10]
    return InstancePrice(
        date=date, instance_type="inf2.48xlarge", region=region, source="list", uusd_per_hour=uusd,
        valid_from_ns=since_ns,
    )  # fmt: skip


def offer(
    uusd: int, region: str | None = None, *, since_day: int | None = None, day: int | None = None
) -> Offer:
    since_ns = None if since_day is None else since_day * DAY_NS
    return Offer("line 2", price(uusd, region, day=day), since_ns)


def since(book: PriceBook, one: Offer) -> int:
    (added,) = accept(book, [one], NOW_NS).added
    return added.valid_from_ns


def test_what_had_no_price_gets_one_for_the_past() -> None:
    assert since(PriceBook(), offer(5, since_day=3)) == 3 * DAY_NS
    assert since(PriceBook(), offer(5, day=3)) == 3 * DAY_NS
    assert since(PriceBook(), offer(5)) == NOW_NS
    abroad = PriceBook(shipped=[price(7, "us-east-1")])
    assert since(abroad, offer(5, "eu-west-1", since_day=3)) == 3 * DAY_NS


def test_another_price_for_the_past_is_refused_and_from_now_on_taken() -> None:
    book = PriceBook(shipped=[price(7, "us-east-1")])
    with pytest.raises(
        ImportRefused, match=r"line 2: from 1970-01-04T00:00:00Z on .* 0.000007000000 USD/h"
    ) as refused:
        accept(book, [offer(5, "us-east-1", since_day=3)], NOW_NS)
    assert "leave valid_from empty" in str(refused.value)
    assert since(book, offer(5, "us-east-1", since_day=10)) == NOW_NS
    assert since(book, offer(5, "us-east-1", since_day=11)) == 11 * DAY_NS
    assert since(book, offer(5, "us-east-1", day=3)) == NOW_NS  # it did not say since when


def test_the_same_price_for_the_past_changes_nothing() -> None:
    book = PriceBook(shipped=[price(7, "us-east-1")])
    assert since(book, offer(7, "us-east-1", day=3)) == 3 * DAY_NS


def test_a_price_for_everywhere_is_another_price_of_every_region() -> None:
    book = PriceBook(shipped=[price(7, "eu-west-1")])
    assert since(book, offer(5, day=3)) == NOW_NS
    with pytest.raises(ImportRefused):
        accept(book, [offer(5, since_day=3)], NOW_NS)


def test_a_price_that_came_between_is_history_too() -> None:
    book = PriceBook(imported=[price(7, since_ns=5 * DAY_NS)])
    assert since(book, offer(5, since_day=3)) == 3 * DAY_NS  # till the fifth day there was none
    covered = PriceBook(shipped=[price(7, since_ns=5 * DAY_NS)])
    with pytest.raises(ImportRefused):  # an import goes before the shipped price, from the fifth day on too
        accept(covered, [offer(5, since_day=3)], NOW_NS)


def test_what_was_imported_before_is_not_imported_again() -> None:
    book = PriceBook(imported=[price(7, since_ns=5 * DAY_NS)])
    assert accept(book, [offer(7), offer(7, since_day=6), offer(8)], NOW_NS) == Accepted(
        [price(8, since_ns=NOW_NS)], 2
    )


def test_one_file_does_not_contradict_itself() -> None:
    twice = [offer(5, since_day=11), Offer("line 3", price(6), 11 * DAY_NS)]
    with pytest.raises(
        ImportRefused, match=r"line 3: another price of inf2.48xlarge on-demand .* than line 2"
    ):
        accept(PriceBook(), twice, NOW_NS)
    same = [offer(5, since_day=11), offer(5, since_day=11)]
    assert len(accept(PriceBook(), same, NOW_NS).added) == 1


moments = st.sampled_from([0, 2, 4, 6]).map(DAY_NS.__mul__)
prices = st.builds(price, st.integers(1, 3), st.sampled_from(REGIONS), moments)
offers = st.builds(
    offer,
    st.integers(1, 3),
    st.sampled_from(REGIONS),
    since_day=st.none() | st.integers(0, 12),
    day=st.none() | st.integers(0, 12),
)


def answers(book: PriceBook) -> dict[tuple[str | None, int], int | None]:
    """Of every region, at every half day that has passed."""
    found = {}
    for region in (*REGIONS, "ap-south-1"):
        for at_ns in range(0, NOW_NS, DAY_NS // 2):
            one = book.instance_price("inf2.48xlarge", region, None, at_ns)
            found[region, at_ns] = None if one is None else one.uusd_per_hour
    return found


@given(st.lists(prices, max_size=3), st.lists(prices, max_size=3), st.lists(offers, min_size=1, max_size=3))
def test_no_answer_for_the_past_ever_changes(
    imported: list[InstancePrice], shipped: list[InstancePrice], offered: list[Offer]
) -> None:
    before = PriceBook((), imported, shipped)
    taken = []
    for one in offered:  # each by itself, as in a file of one line
        try:
            taken = accept(before, [one], NOW_NS).added
        except ImportRefused:
            continue
        was, now = answers(before), answers(PriceBook((), [*imported, *taken], shipped))
        assert {key: value for key, value in now.items() if was[key] is not None} == {
            key: value for key, value in was.items() if value is not None
        }


@given(st.lists(prices, max_size=3), st.lists(prices, max_size=3), st.lists(offers, min_size=2, max_size=3))
def test_nor_by_a_file_of_many(
    imported: list[InstancePrice], shipped: list[InstancePrice], offered: list[Offer]
) -> None:
    before = PriceBook((), imported, shipped)
    try:
        added = accept(before, offered, NOW_NS).added
    except ImportRefused:
        assume(False)
    was, now = answers(before), answers(PriceBook((), [*imported, *added], shipped))
    assert {key: value for key, value in now.items() if was[key] is not None} == {
        key: value for key, value in was.items() if value is not None
    }


def test_without_the_rule_history_would_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: whatever a file says is taken as it says it."""
    monkeypatch.setattr(price_import, "_first_change", lambda *_: None)
    book = PriceBook(shipped=[price(7)])
    added = accept(book, [offer(5, since_day=3)], NOW_NS).added
    assert answers(PriceBook((), added, [price(7)])) != answers(book)
    assert msgspec.structs.replace(added[0], valid_from_ns=0) == price(5)
