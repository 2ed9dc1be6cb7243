"""The state of a backend: the table in health.py, row by row."""

import pytest

from backends.health import HOLD_S_MAX, Health, Hold, State, busy, connect_failed, passed, said_no

STARTING, READY, DOWN = (Health(state=state) for state in State)


@pytest.mark.parametrize(
    ("before", "after_pass", "after_no", "after_connect"),
    [
        (STARTING, State.READY, State.STARTING, State.STARTING),
        (READY, State.READY, State.DOWN, State.READY),
        (DOWN, State.READY, State.DOWN, State.DOWN),
    ],
)
def test_the_table(before: Health, after_pass: State, after_no: State, after_connect: State) -> None:
    assert passed(before).state is after_pass
    assert said_no(before, "/health says 503").state is after_no
    assert connect_failed(before, "connect refused").state is after_connect


def test_the_third_connect_failure_in_a_row_is_down() -> None:
    health = passed(STARTING)
    for expected in (State.READY, State.READY, State.DOWN):
        health = connect_failed(health, "connect refused")
        assert health.state is expected
    assert (health.reason, health.words) == ("connect refused", "connect refused (3 in a row)")


def test_a_probe_that_passes_breaks_the_row() -> None:
    health = connect_failed(connect_failed(passed(STARTING), "x"), "x")
    health = connect_failed(passed(health), "x")
    assert health.state is State.READY


def test_a_long_compile_never_reads_as_death() -> None:
    health = STARTING
    for _ in range(1000):
        health = connect_failed(health, "connect refused")
    assert health.state is State.STARTING


@pytest.mark.parametrize(("said_s", "held_s"), [(0, 0), (1, 1), (HOLD_S_MAX, HOLD_S_MAX), (3600, HOLD_S_MAX)])
def test_a_busy_backend_is_held_as_long_as_it_says_within_bounds(said_s: int, held_s: int) -> None:
    assert busy(429, said_s, 5) == Hold(status=429, until_ns=5 + held_s * 1_000_000_000)


def test_without_a_time_nothing_is_held() -> None:
    assert busy(503, None, 5) is None
