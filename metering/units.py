"""Units of money and time, and the one rounding rule. Pure.

Money is an integer count of picodollars (10**-12 USD); instance prices are
integer micro-dollars per hour; time is an integer count of nanoseconds, paid
instance time of micro-hours. Floats appear only where a number is shown to a person.
"""

import fractions
from typing import NewType

PicoUsd = NewType("PicoUsd", int)
PICO_USD_PER_USD = 1_000_000_000_000
MICRO_USD_PER_USD = 1_000_000
PICO_USD_PER_MICRO_USD = 1_000_000
TOKENS_PER_MTOK = 1_000_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_HOUR = 3_600 * NS_PER_S
MICRO_HOURS_PER_HOUR = 1_000_000
NS_PER_MICRO_HOUR = NS_PER_HOUR // MICRO_HOURS_PER_HOUR

_USD_MAX = 1_000_000_000


def div_half_up(numerator: int, denominator: int) -> int:
    """Divide two non-negative integers, rounding halves up.

    Every price in the project rounds here and nowhere else, so a bill can be
    re-derived from the journal to the last picodollar.
    """
    assert numerator >= 0
    assert denominator > 0
    return (2 * numerator + denominator) // (2 * denominator)


def micro_hours(from_ns: int, to_ns: int) -> int:
    """Paid time from one moment to a later one (wall clock, ns since 1970) in micro-hours.

    The grid of micro-hours is fixed, so adjacent spans add up to the whole and a full hour is 1,000,000.
    """
    assert from_ns <= to_ns
    return to_ns // NS_PER_MICRO_HOUR - from_ns // NS_PER_MICRO_HOUR


def usd_to(text: str, parts_per_usd: int) -> int:
    """Read a decimal string in USD as an exact integer count of a smaller unit.

    text: digits with at most one point: "0.15", "12.98127"; no sign, no exponent.
    returns: e.g. picodollars for parts_per_usd = PICO_USD_PER_USD.
    Raises ValueError if `text` is no such number, is above 10**9 USD, or is finer than the unit.
    """
    if not text or not set(text) <= set("0123456789.") or text.count(".") > 1 or text == ".":
        raise ValueError(f'{text!r} is no amount in USD; write digits with a point, as in "0.15"')
    amount = fractions.Fraction(text)  # exact, however many digits; decimals round at 28
    if amount > _USD_MAX:
        raise ValueError(f"{text} USD is above the largest price, {_USD_MAX} USD")
    exact = amount * parts_per_usd
    if exact.denominator != 1:
        raise ValueError(f"{text} USD is finer than 1/{parts_per_usd} USD")
    return int(exact)


def usd_text(amount: int) -> str:
    """Picodollars as a decimal string in USD with 12 places, exact: 150_000 → "0.000000150000"."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    whole, rest = divmod(amount, PICO_USD_PER_USD)
    return f"{sign}{whole}.{rest:012d}"
