"""Money as integers: reading it, rounding it, showing it."""

import fractions
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.units import (
    MICRO_USD_PER_USD,
    NS_PER_HOUR,
    PICO_USD_PER_USD,
    div_half_up,
    micro_hours,
    usd_text,
    usd_to,
)


@given(st.integers(0, 10**40), st.integers(1, 10**20))
def test_halves_go_up(numerator: int, denominator: int) -> None:
    exact = fractions.Fraction(numerator, denominator)
    assert div_half_up(numerator, denominator) == math.floor(exact + fractions.Fraction(1, 2))


@given(st.integers(0, 10**9 * PICO_USD_PER_USD))
def test_what_is_shown_is_read_back(amount: int) -> None:
    assert usd_to(usd_text(amount), PICO_USD_PER_USD) == amount


@pytest.mark.parametrize(
    ("text", "parts", "amount"),
    [
        ("0.15", PICO_USD_PER_USD, 150_000_000_000), ("12.98127", MICRO_USD_PER_USD, 12_981_270),
        ("1.", 1, 1), (".5", 10, 5), ("0", 1, 0), ("1000000000", 1, 10**9),
        ("0.1500000000000", PICO_USD_PER_USD, 15 * 10**10),
    ],
)  # fmt: skip
def test_amounts(text: str, parts: int, amount: int) -> None:
    assert usd_to(text, parts) == amount


@pytest.mark.parametrize(
    "text", ["", ".", "-1", "+1", "1e3", "1,5", "1.2.3", " 1", "1_0", "1/2", "inf", "\u0661"]
)
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount in USD"):
        usd_to(text, PICO_USD_PER_USD)


@pytest.mark.parametrize("text", ["0.0000000000001", "0.15" + "0" * 40 + "1"])
def test_finer_than_the_unit_is_not_rounded(text: str) -> None:
    with pytest.raises(ValueError, match="is finer than"):
        usd_to(text, PICO_USD_PER_USD)


def test_above_the_largest_price() -> None:
    with pytest.raises(ValueError, match="above the largest price"):
        usd_to("1000000000.01", PICO_USD_PER_USD)


def test_shown_with_12_places() -> None:
    assert usd_text(150_000) == "0.000000150000"
    assert usd_text(-1) == "-0.000000000001"
    assert usd_text(PICO_USD_PER_USD) == "1.000000000000"


@given(st.lists(st.integers(0, 10**19), min_size=2), st.integers(0, 500_000))
def test_micro_hours_of_adjacent_spans_add_up(moments: list[int], hour: int) -> None:
    moments.sort()
    pieces = sum(micro_hours(*pair) for pair in itertools.pairwise(moments))
    assert pieces == micro_hours(moments[0], moments[-1])
    assert abs(pieces - fractions.Fraction(moments[-1] - moments[0], 3_600_000)) < 1
    assert micro_hours(hour * NS_PER_HOUR, (hour + 1) * NS_PER_HOUR) == 1_000_000
