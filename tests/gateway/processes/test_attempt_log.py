"""Failed attempts in the log: each kind is said, none floods it."""

import logging

import pytest

from gateway.processes.attempt_log import QUIET_NS, AttemptLog
from metering.logs import FACTS
from metering.record import AttemptOutcome, AttemptRecord, CallRecord
from tests.support.lines import attempt, call, refused

FIRST_NS = 1_795_833_000_000_000_000


def failed(
    backend: str, outcome: AttemptOutcome = AttemptOutcome.FAILED, error: str = "status 500"
) -> AttemptRecord:
    return attempt(backend, outcome, error=error)


def record(at_ns: int, *attempts: AttemptRecord) -> CallRecord:
    return call(at_ns=at_ns, attempts=attempts)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, int]]:
    found = [getattr(one, FACTS) for one in caplog.records]
    return [(facts["backend"], facts["outcome"], facts.get("more", 0)) for facts in found]


def test_each_failed_attempt_of_a_call_is_a_warning_with_its_call(caplog: pytest.LogCaptureFixture) -> None:
    completed = failed("c", AttemptOutcome.COMPLETED)
    line = record(FIRST_NS, failed("a"), failed("b", AttemptOutcome.TIMED_OUT), completed)
    AttemptLog().fold(line, 7, "leaf")
    assert told(caplog) == [("a", "failed", 0), ("b", "timed_out", 0)]
    assert {(one.levelno, one.getMessage()) for one in caplog.records} == {
        (logging.WARNING, "attempt failed")
    }
    assert getattr(caplog.records[0], FACTS)["call_id"] == line.call_id


@pytest.mark.parametrize(
    ("error", "phrase"),
    [
        ("shutdown", "attempt cut by the gateway"),
        ("internal_error", "attempt cut by the gateway"),
        ("ended early", "attempt failed"),
        ("status 503", "attempt failed"),
    ],
)
def test_what_the_gateway_has_cut_itself_is_no_failure_of_the_backend(
    error: str, phrase: str, caplog: pytest.LogCaptureFixture
) -> None:
    AttemptLog().fold(record(FIRST_NS, failed("a", error=error)), 7, "leaf")
    assert [one.getMessage() for one in caplog.records] == [phrase]


@pytest.mark.parametrize(
    "outcome", [AttemptOutcome.COMPLETED, AttemptOutcome.CLIENT_GONE, AttemptOutcome.REFUSED]
)
def test_what_is_no_fault_of_a_backend_is_not_said(
    outcome: AttemptOutcome, caplog: pytest.LogCaptureFixture
) -> None:
    fold = AttemptLog()
    fold.fold(record(FIRST_NS, failed("a", outcome)), 7, "leaf")
    fold.turn(7, "leaf")
    assert told(caplog) == []


def test_a_kind_is_said_once_a_second_with_how_many_were_not(caplog: pytest.LogCaptureFixture) -> None:
    fold = AttemptLog()
    for number in range(100):
        fold.fold(record(FIRST_NS + number, failed("a")), number, "leaf")
    fold.fold(record(FIRST_NS + 100, failed("a", error="ended early")), 100, "leaf")
    fold.fold(record(FIRST_NS + QUIET_NS, failed("a")), 101, "leaf")
    assert told(caplog) == [("a", "failed", 0), ("a", "failed", 0), ("a", "failed", 99)]


def test_a_clock_that_is_set_back_silences_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fold = AttemptLog()
    for at_ns in (FIRST_NS, FIRST_NS - 3600 * QUIET_NS):
        fold.fold(record(at_ns, failed("a")), 1, "leaf")
    assert len(told(caplog)) == 2


def test_other_lines_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    AttemptLog().fold(refused(), 1, "leaf")
    assert told(caplog) == []
