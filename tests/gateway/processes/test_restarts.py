"""When a dead worker is started again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.processes.restarts import DELAY_NS_MAX, DELAY_NS_MIN, WINDOW_NS, Restart, Restarts
from metering.units import NS_PER_S

MS = NS_PER_S // 1_000


def test_a_first_death_is_answered_at_once_and_the_socket_stays_open() -> None:
    assert Restarts().died(0, 3_600 * NS_PER_S) == Restart(3_600 * NS_PER_S + DELAY_NS_MIN, listening=True)


def test_three_deaths_in_ten_seconds_close_the_socket() -> None:
    restarts = Restarts()
    found = [restarts.died(at, at + MS) for at in (0, NS_PER_S, 2 * NS_PER_S)]
    assert [one.listening for one in found] == [True, True, False]
    assert [one.at_ns - at - MS for one, at in zip(found, (0, NS_PER_S, 2 * NS_PER_S), strict=True)] == [
        DELAY_NS_MIN,
        2 * DELAY_NS_MIN,
        DELAY_NS_MAX,
    ]


@pytest.mark.parametrize(
    ("lived_ns", "listening"),
    [
        (WINDOW_NS - 1, False),  # the try that follows has not shown yet that it stays up
        (WINDOW_NS, True),
    ],
)
def test_a_failing_worker_has_its_socket_again_after_a_life_of_ten_seconds(
    lived_ns: int, listening: bool
) -> None:
    restarts = Restarts()
    for at in (0, 1, 2):
        restarts.died(at, at)
    assert restarts.failing
    assert restarts.died(10 * NS_PER_S, 10 * NS_PER_S + lived_ns).listening is listening
    assert restarts.failing is not listening


def test_deaths_further_apart_than_the_window_never_close_the_socket() -> None:
    restarts = Restarts()
    for number in range(20):
        at = number * (WINDOW_NS // 2)  # at most three of them stand in eleven seconds, two in ten
        assert restarts.died(at, at + 1).listening


@given(st.lists(st.tuples(st.integers(0, 30 * NS_PER_S), st.integers(0, 30 * NS_PER_S)), max_size=30))
def test_every_death_has_a_later_start_within_bounds(lives: list[tuple[int, int]]) -> None:
    restarts, now = Restarts(), 0
    for waited_ns, lived_ns in lives:
        started = now + waited_ns
        now = started + lived_ns
        found = restarts.died(started, now)
        assert DELAY_NS_MIN <= found.at_ns - now <= DELAY_NS_MAX
        assert found.listening is not restarts.failing
        if lived_ns >= WINDOW_NS:
            assert found == Restart(now + DELAY_NS_MIN, listening=True)
