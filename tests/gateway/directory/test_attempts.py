"""Keys that are not known: so many a minute of an address, whatever else is tried."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.directory.attempts import Attempts

MINUTE_NS = 60 * 10**9
ONE, OTHER = ipaddress.ip_address("203.0.113.1"), ipaddress.ip_address("203.0.113.2")


def test_so_many_are_heard_and_then_one_each_step() -> None:
    attempts = Attempts(60)
    assert [attempts.failed(ONE, 5) for _ in range(60)] == [None] * 60
    assert attempts.failed(ONE, 5) == 1_000
    assert attempts.failed(ONE, 5 + 400_000_000) == 600
    assert attempts.failed(ONE, 5 + 10**9) is None
    assert attempts.failed(ONE, 5 + 10**9) == 1_000
    assert attempts.failed(OTHER, 5) is None  # each address for itself
    assert attempts.failed(None, 5) is None
    assert attempts.failed(ONE, 5 + 2 * MINUTE_NS) is None


@given(st.integers(1, 50), st.lists(st.integers(0, 3 * MINUTE_NS), max_size=200).map(sorted))
def test_no_minute_hears_more_than_twice_as_many(per_minute: int, times: list[int]) -> None:
    """Counted by a plain list: a full burst, and what a minute gives back."""
    attempts = Attempts(per_minute)
    heard = [at_ns for at_ns in times if attempts.failed(ONE, at_ns) is None]
    for first in heard:
        within = [at_ns for at_ns in heard if first <= at_ns < first + MINUTE_NS]
        assert len(within) <= 2 * per_minute
    if len(times) <= per_minute:
        assert heard == times


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),  # of one /64
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("203.0.113.1", "203.0.113.2", False),
    ],
)
def test_whose_address_it_is(one: str, other: str, same: bool) -> None:
    attempts = Attempts(1)
    assert attempts.failed(ipaddress.ip_address(one), 0) is None
    assert (attempts.failed(ipaddress.ip_address(other), 0) is not None) is same


def test_memory_is_bounded_and_the_newest_are_kept() -> None:
    attempts = Attempts(1, sources_max=100)
    for number in range(10_000):
        attempts.failed(ipaddress.ip_address(number), 0)
        attempts.failed(ONE, 0)
    assert len(attempts) == 100
    assert attempts.failed(ONE, 0) is not None
