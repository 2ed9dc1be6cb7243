"""Tokens past the gateway: found, kept over restarts, and never made up from what is in flight."""

from hypothesis import given
from hypothesis import strategies as st

from metering.ledger.bypass import LOOKS, Bypass


def test_before_the_first_look_nothing_is_known() -> None:
    assert Bypass().unmetered is None


def test_what_the_backend_had_counted_before_is_not_unmetered() -> None:
    bypass = Bypass()
    bypass.look(1_000_000, 0)
    assert bypass.unmetered == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 30)), max_size=60))
def test_it_is_never_below_what_passed_us_and_exact_after_a_quiet_moment(
    steps: list[tuple[int, int, int]],
) -> None:
    """Each step: tokens of calls that begin, of a bypass, and how many that were in flight are recorded."""
    bypass, counter, metered, passed = Bypass(), 0, 0, 0
    bypass.look(counter, metered)
    for begun, unmetered, recorded in steps:
        counter += begun + unmetered
        passed += unmetered
        metered += min(recorded, counter - passed - metered)
        bypass.look(counter, metered)
    for _ in range(LOOKS):
        bypass.look(counter, counter - passed)
    assert bypass.unmetered == passed


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=60))
def test_calls_through_us_alone_are_never_unmetered(steps: list[tuple[int, int]]) -> None:
    bypass, counter, metered = Bypass(), 0, 0
    for begun, recorded in [(0, 0), *steps]:
        counter += begun
        metered = min(counter, metered + recorded)
        bypass.look(counter, metered)
        quiet = counter == metered
        assert not quiet or bypass.unmetered == 0


def test_what_was_in_flight_at_the_first_look_is_made_up_for() -> None:
    bypass = Bypass()
    bypass.look(500, 0)  # 500 in flight
    bypass.look(500, 500)
    assert bypass.unmetered == 0
    bypass.look(600, 500)
    for _ in range(LOOKS):
        bypass.look(600, 500)
    assert bypass.unmetered == 100


def test_a_restart_of_the_backend_forgets_nothing() -> None:
    bypass = Bypass()
    bypass.look(0, 0)
    for _ in range(LOOKS):
        bypass.look(300, 200)
    assert bypass.unmetered == 100
    bypass.look(5, 200)
    assert bypass.unmetered == 100
    for _ in range(LOOKS):
        bypass.look(25, 200)
    assert bypass.unmetered == 120
