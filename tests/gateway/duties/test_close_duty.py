"""When the clerk starts a run of the close, and what it makes of how it ended."""

import sys
import time

import pytest

from backends.model import Backend
from gateway.configuration.config import Config, Model, Tenant, Tier
from gateway.duties import close_duty
from gateway.duties.close_duty import (
    AFTER_HOUR_NS,
    AGAIN_NS,
    FIRST_NS,
    WAITS,
    CloseDuty,
    CloseRunError,
    next_ns,
)
from metering.units import NS_PER_HOUR

CONFIG = Config(
    tenants=(Tenant(name="acme"),),
    models=(Model(name="llama", tiers=(Tier(backends=("inf2-a",)),)),),
    backends=(Backend(name="inf2-a", url="http://127.0.0.1:1", model="llama"),),
)
HOUR_NS = 490_896 * NS_PER_HOUR
DEADLINE_S = 20.0


class Clock:
    def __init__(self) -> None:
        self.now_ns = HOUR_NS

    def __call__(self) -> int:
        return self.now_ns


def runs(status: int) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import sys; sys.exit({status})")


def ended(duty: CloseDuty) -> None:
    """Look at the duty until its run has ended."""
    deadline = time.monotonic() + DEADLINE_S
    while duty.is_running:
        assert time.monotonic() < deadline
        duty.close_if_due()


@pytest.mark.parametrize(
    ("waits", "due_ns"),
    [(False, HOUR_NS + NS_PER_HOUR + AFTER_HOUR_NS), (True, HOUR_NS + AGAIN_NS)],
)
def test_the_next_run_is_after_the_full_hour_or_soon(waits: bool, due_ns: int) -> None:
    assert next_ns(HOUR_NS, waits=waits) == due_ns


def test_near_the_full_hour_a_run_that_waits_comes_no_later() -> None:
    assert next_ns(HOUR_NS - 1, waits=True) == HOUR_NS + AFTER_HOUR_NS


def test_runs_are_started_one_after_the_other_when_they_are_due() -> None:
    clock = Clock()
    for status, next_due_ns in (
        (0, HOUR_NS + NS_PER_HOUR + AFTER_HOUR_NS),
        (WAITS, clock() + FIRST_NS + AGAIN_NS),
    ):
        clock.now_ns = HOUR_NS
        duty = CloseDuty(CONFIG, clock, runs(status))
        duty.close_if_due()
        assert not duty.is_running
        clock.now_ns += FIRST_NS
        duty.close_if_due()
        assert duty.is_running
        ended(duty)
        clock.now_ns = next_due_ns - 1
        duty.close_if_due()
        assert not duty.is_running
        clock.now_ns = next_due_ns
        duty.close_if_due()
        assert duty.is_running
        ended(duty)


def test_a_run_that_fails_is_told_and_tried_again() -> None:
    clock = Clock()
    duty = CloseDuty(CONFIG, clock, runs(1))
    clock.now_ns += FIRST_NS
    duty.close_if_due()
    with pytest.raises(CloseRunError, match="ended with status 1"):
        ended(duty)
    duty.close_if_due()
    assert duty.is_running
    with pytest.raises(CloseRunError):
        ended(duty)


def test_a_clock_that_was_set_back_does_not_stop_it() -> None:
    clock = Clock()
    duty = CloseDuty(CONFIG, clock, runs(0))
    clock.now_ns -= 3 * NS_PER_HOUR
    duty.close_if_due()
    assert duty.is_running
    ended(duty)
    assert close_duty.CLOSER[-1] == "gateway.duties.closer"
