"""A connection's deadlines, by a clock that is an argument, and how late the loop may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.bounds import ROUNDS, Late, LoopLag, Patience, Phase, Watch
from gateway.configuration.config import Bounds
from metering.units import NS_PER_MS, NS_PER_S

PATIENCE = Patience.of(
    Bounds(idle_s=75, head_s=20, body_s=30, body_bytes_per_s_min=1000, linger_s=5, write_stall_s=60)
)


def look(watch: Watch, at_s: float, *, unsent: int = 0, heard: bool = True) -> Late | None:
    return watch.look(PATIENCE, round(at_s * NS_PER_S), unsent_bytes=unsent, heard=heard)


@pytest.mark.parametrize(
    ("phase", "deadline_s", "late"),
    [
        (Phase.IDLE, 75, Late.IDLE),
        (Phase.HEAD, 20, Late.HEAD),
        (Phase.BODY, 30, Late.BODY),
        (Phase.REST, 30, Late.BODY),
        (Phase.PARTING, 5, Late.PARTED),
    ],
)
def test_a_phase_has_its_deadline_from_when_it_is_first_seen(
    phase: Phase, deadline_s: int, late: Late
) -> None:
    watch = Watch()
    watch.enter(phase)
    assert look(watch, 100) is None
    assert look(watch, 99.999 + deadline_s) is None
    assert look(watch, 100 + deadline_s) is late


def test_a_new_connection_is_idle() -> None:
    watch = Watch()
    assert look(watch, 5) is None
    assert look(watch, 80) is Late.IDLE


def test_an_answer_has_no_deadline_here() -> None:
    watch = Watch()
    watch.enter(Phase.ANSWER)
    assert look(watch, 1) is None
    assert look(watch, 1_000_000) is None


def test_the_next_request_begins_anew_though_it_is_seen_in_the_same_phase() -> None:
    watch = Watch()
    watch.enter(Phase.HEAD)
    assert look(watch, 0) is None
    for phase in (Phase.BODY, Phase.ANSWER, Phase.IDLE, Phase.HEAD):  # between two looks
        watch.enter(phase)
    assert look(watch, 19) is None
    assert look(watch, 38.9) is None
    assert look(watch, 39) is Late.HEAD


def test_a_body_has_more_time_for_what_has_come() -> None:
    watch = Watch()
    watch.enter(Phase.BODY)
    assert look(watch, 0) is None
    watch.phase_bytes += 5_000
    assert look(watch, 34.9) is None
    assert look(watch, 35) is Late.BODY
    watch.phase_bytes += 1_000
    assert look(watch, 35.9) is None


def test_a_request_goes_from_phase_to_phase() -> None:
    watch = Watch()
    watch.enter(Phase.HEAD)
    watch.enter(Phase.BODY)
    watch.heard_out()
    assert watch.phase is Phase.ANSWER
    watch.answered()
    assert watch.phase is Phase.IDLE
    watch.answered()  # of a request that had been pipelined
    assert watch.phase is Phase.IDLE


def test_what_still_comes_of_an_answered_request_has_its_time_whatever_comes() -> None:
    watch = Watch()
    watch.enter(Phase.BODY)
    watch.answered()
    assert watch.phase is Phase.REST
    assert look(watch, 0) is None
    watch.phase_bytes += 1_000_000
    assert look(watch, 29.9) is None
    assert look(watch, 30) is Late.BODY
    watch.heard_out()
    assert watch.phase is Phase.IDLE


def parting() -> Watch:
    watch = Watch()
    watch.enter(Phase.PARTING)
    return watch


def test_a_client_that_still_sends_is_parted_from_when_it_is_silent() -> None:
    watch = parting()
    for at_s in range(0, 20, 4):
        watch.phase_bytes += 1
        assert look(watch, at_s) is None
    assert look(watch, 20.9) is None
    assert look(watch, 21) is Late.PARTED


def test_a_client_that_sends_and_sends_is_parted_from_in_the_end() -> None:
    watch = parting()
    for at_s in range(30):
        watch.phase_bytes += 1_000_000
        assert look(watch, at_s) is None
    watch.phase_bytes += 1_000_000
    assert look(watch, 30) is Late.PARTED


def test_a_client_is_not_parted_from_while_it_takes_its_answer() -> None:
    watch = parting()
    for at_s in range(0, 120, 10):
        assert look(watch, at_s, unsent=1_000 - at_s) is None
    assert look(watch, 120) is Late.PARTED
    watch = parting()
    for at_s in range(0, 40, 10):
        watch.phase_bytes += 1
        assert look(watch, at_s, unsent=1_000 - at_s) is None


def test_nobody_is_late_while_we_do_not_read() -> None:
    watch = Watch()
    watch.enter(Phase.BODY)
    for at_s in range(0, 100, 10):
        assert look(watch, at_s, heard=False) is None
    assert look(watch, 119) is None
    assert look(watch, 120) is Late.BODY


def test_a_client_that_takes_nothing_is_stalled_in_whatever_phase() -> None:
    for phase in (Phase.ANSWER, Phase.IDLE):
        watch = Watch()
        watch.enter(phase)
        assert look(watch, 0, unsent=500) is None
        assert look(watch, 30, unsent=900) is None  # more of ours came, nothing was taken
        assert look(watch, 59.9, unsent=900) is None
        assert look(watch, 60, unsent=900) is Late.STALLED


def test_a_client_that_takes_a_little_is_not_stalled() -> None:
    watch = Watch()
    watch.enter(Phase.ANSWER)
    for at_s in range(0, 600, 50):
        assert look(watch, at_s, unsent=10_000 - at_s) is None
    assert look(watch, 650, unsent=0) is None
    assert look(watch, 700, unsent=10_000) is None  # from here on
    assert look(watch, 759, unsent=10_000) is None
    assert look(watch, 760, unsent=10_000) is Late.STALLED


def test_what_is_still_to_be_sent_keeps_a_connection_from_being_idle() -> None:
    watch = Watch()
    assert look(watch, 0, unsent=9_000) is None
    assert look(watch, 50, unsent=100) is None
    assert look(watch, 80, unsent=50) is None
    assert look(watch, 81) is Late.IDLE


ON_THE_WAY = [phase for phase in Phase if phase is not Phase.PARTING]


@given(st.lists(st.tuples(st.floats(0, 19.9), st.sampled_from(ON_THE_WAY)), max_size=30))
def test_whoever_moves_on_in_time_is_never_late(steps: list[tuple[float, Phase]]) -> None:
    watch, at_s = Watch(), 0.0
    for wait_s, phase in steps:
        watch.enter(phase)
        assert look(watch, at_s) is None
        at_s += wait_s
        assert look(watch, at_s) is None


def ticked(*lateness_ms: int) -> LoopLag:
    lag, now_ns = LoopLag(interval_ns=100 * NS_PER_MS, lag_ns_max=500 * NS_PER_MS), 0
    lag.tick(now_ns)
    for late_ms in lateness_ms:
        now_ns += (100 + late_ms) * NS_PER_MS
        assert lag.tick(now_ns) == late_ms * NS_PER_MS
    return lag


@pytest.mark.parametrize(
    ("lateness_ms", "too_late"),
    [
        ((), False),
        ((501,), False),  # an accident
        ((501, 501), True),
        ((501, 500), False),
        ((501, 501, 0), False),  # over
        ((0, 900, 900), True),
    ],
)
def test_a_loop_is_too_late_when_it_is_so_twice_in_a_row(
    lateness_ms: tuple[int, ...], too_late: bool
) -> None:
    assert ticked(*lateness_ms).too_late is too_late


def test_a_round_that_comes_early_is_not_late() -> None:
    lag = LoopLag(interval_ns=100, lag_ns_max=1)
    lag.tick(0)
    assert lag.tick(50) == 0


def test_the_worst_lag_is_that_of_the_last_rounds() -> None:
    assert ticked(9, 7, 5).worst_ns == 9 * NS_PER_MS
    assert ticked(9, 7, *[5] * (ROUNDS - 1)).worst_ns == 7 * NS_PER_MS
    assert ticked().worst_ns == 0
