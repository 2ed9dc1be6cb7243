"""The cards that a month keeps price each of its hours as all cards do."""

from hypothesis import given
from hypothesis import strategies as st

from metering.cost.charge_terms import Charged, ChargeTerms
from metering.cost.close_manifest import month_hours
from metering.cost.pricing import RateCard
from metering.export.focus.chargeback import cards_in_force
from tests.support import closed

JANUARY = month_hours("2026-01")
DAYS = ["2025-11-30", "2025-12-31", "2026-01-01", "2026-01-02", "2026-01-31", "2026-02-01", "2027-01-01"]


def card(hardware: str, date: str, prompt: int) -> RateCard:
    return RateCard(
        model="llama",
        hardware=hardware,
        prompt=prompt,
        cached_prompt=0,
        completion=0,
        date=date,
        source="ours",
    )


CARDS = st.lists(
    st.builds(
        card, st.sampled_from(["inf2", "inf2.48xlarge", "trn1"]), st.sampled_from(DAYS), st.integers(0, 99)
    ),
    max_size=9,
)


@given(CARDS, st.sampled_from([JANUARY.start, JANUARY.start + 24, JANUARY.stop - 1]))
def test_each_hour_is_priced_as_by_all_cards(cards: list[RateCard], hour: int) -> None:
    kept = ChargeTerms(cards=tuple(cards)).during(JANUARY)
    for family, type_ in (("inf2", "inf2.48xlarge"), ("inf2", "inf2.xlarge"), ("trn1", "trn1.2xlarge")):
        row = closed.row(hour, instance_family=family, instance_type=type_)
        assert cards_in_force(kept.cards)(row) == cards_in_force(cards)(row)


def test_cards_that_never_hold_are_not_kept_and_all_else_is() -> None:
    cards = [card("inf2", date, n) for n, date in enumerate(DAYS)]
    terms = ChargeTerms(account="a", issuer="i", chargeback=Charged.ALLOCATED, cards=tuple(reversed(cards)))
    kept = terms.during(JANUARY)
    assert [one.date for one in kept.cards] == ["2026-01-01", "2026-01-02", "2026-01-31"]
    assert (kept.account, kept.issuer, kept.chargeback) == ("a", "i", Charged.ALLOCATED)
