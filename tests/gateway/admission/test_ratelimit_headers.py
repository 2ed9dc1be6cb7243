import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.ratelimit_headers import NAMES, duration, lines
from metering.limits.asks import Rate


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0s"), (17, "17ms"), (999, "999ms"), (1_000, "1s"), (1_500, "1.5s"), (8_640, "8.64s"), (60_000, "1m0s"),
        (72_500, "1m12.5s"), (360_000, "6m0s"), (3_600_000, "1h0m0s"), (90_061_001, "25h1m1.001s"),
    ],
)  # fmt: skip
def test_a_span_is_worded_as_openai_words_it(ms: int, shown: str) -> None:
    assert duration(ms) == shown


UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def in_ms(text: str) -> int:
    """What a client makes of it."""
    total = 0.0
    for number, unit in re.findall(r"([0-9.]+)(ms|h|m|s)", text):
        total += float(number) * UNITS_MS[unit]
    return round(total)


@given(st.integers(0, 10**9))
def test_a_client_reads_what_was_meant(ms: int) -> None:
    assert in_ms(duration(ms)) == ms
    assert re.fullmatch(r"([0-9]+h)?([0-9]+m)?[0-9]+(\.[0-9]+)?s|[0-9]+ms", duration(ms))


def test_a_limit_that_is_not_there_has_no_header() -> None:
    assert lines(None, None) == b""
    assert lines(Rate(60, 59, 1000), None) == (
        b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\nx-ratelimit-reset-requests: 1s\r\n"
    )
    assert lines(None, Rate(9, -3, 0)).splitlines()[1] == b"x-ratelimit-remaining-tokens: 0"


def test_all_names_are_those_that_are_told_of() -> None:
    told = lines(Rate(1, 1, 1), Rate(1, 1, 1)).decode()
    assert tuple(line.partition(":")[0] for line in told.splitlines()) == NAMES
