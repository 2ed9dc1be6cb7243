"""The judge of slots: a call counts until the server says that it has ended; one that was broken off, until that."""

from typing import Any

import pytest

from tests.support.crowd import SECOND_NS, Seen


def entry(request_id: str, came: int, ended: int | None, outcome: str = "completed") -> dict[str, Any]:
    """A server's, with times in ms."""
    return {
        "request_id": request_id, "received_ns": came * 1_000_000, "outcome": outcome,
        "ended_ns": None if ended is None else ended * 1_000_000,
        "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 5,
    }  # fmt: skip


def test_calls_that_meet_count_together() -> None:
    assert Seen([entry("a-1", 0, 10), entry("b-2", 9, 20)], {}).most() == 2
    assert Seen([entry("a-1", 0, 10), entry("b-2", 10, 20)], {}).most() == 1
    assert Seen([entry("a-1", 0, None, "open"), entry("b-2", 10, 20)], {}).most() == 2


def test_one_that_was_broken_off_counts_until_then_and_no_longer() -> None:
    log = [entry("a-1", 0, 30, "aborted"), entry("b-2", 12, 20)]
    seen = Seen(log, {"a-1": 10_000_000})
    assert (seen.most(), seen.late_ns, seen.finished) == (1, {"a-1": 20_000_000}, set())
    assert Seen(log, {"a-1": 13_000_000}).most() == 2, "its gateway still had it"


def test_a_server_that_finished_what_was_broken_off_is_shown() -> None:
    seen = Seen([entry("a-1", 0, 30), entry("b-2", 12, 20)], {"a-1": 10_000_000})
    assert (seen.most(), seen.finished) == (1, {"a-1"})


def test_one_that_nobody_is_known_to_have_broken_off_is_no_excuse() -> None:
    with pytest.raises(AssertionError, match="a-1"):
        Seen([entry("a-1", 0, 30, "aborted"), entry("b-2", 12, 20)], {"b-2": 10_000_000})


def test_one_that_was_broken_off_on_its_way_is_none() -> None:
    assert Seen([entry("a-1", 11, 30, "aborted"), entry("b-2", 12, 20)], {"a-1": 10_000_000}).most() == 1


def test_work_is_weighed() -> None:
    seen = Seen([entry("a-1", 0, 30), entry("a-2", 0, 2_000)], {})
    assert seen.ended(0, SECOND_NS) == {"a": [30.0]}
