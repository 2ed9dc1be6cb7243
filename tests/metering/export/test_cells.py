"""Amounts and words as text: exact, and no formula for a spreadsheet."""

import fractions

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.export import cells

AMOUNTS = st.integers(-(10**24), 10**24)


@given(AMOUNTS)
def test_amounts_read_back(amount: int) -> None:
    assert fractions.Fraction(cells.usd(amount)) == fractions.Fraction(amount, 10**12)
    assert fractions.Fraction(cells.usd_of_atto(amount)) == fractions.Fraction(amount, 10**18)
    assert fractions.Fraction(cells.millionths(amount)) == fractions.Fraction(amount, 10**6)
    assert fractions.Fraction(cells.seconds(amount)) == fractions.Fraction(amount, 10**9)


@pytest.mark.parametrize(
    ("ausd", "text"),
    [
        (0, "0.000000000000"),
        (1_000_000, "0.000000000001"),
        (-1_500_000_000_000_000_000, "-1.500000000000"),
        (1, "0.000000000000000001"),
        (-1_000_001, "-0.000000000001000001"),
    ],
)
def test_costs_have_twelve_places_or_eighteen(ausd: int, text: str) -> None:
    assert cells.usd_of_atto(ausd) == text


def test_unknown_is_empty() -> None:
    assert cells.usd(None) == ""


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_formulas_become_words(text: str) -> None:
    assert cells.guarded(text) == "'" + text


@pytest.mark.parametrize("text", ["", "acme", "a=b", "1-2", "'=1"])
def test_words_stay(text: str) -> None:
    assert cells.guarded(text) == text
