"""Which backends serve a call, in which order, and what follows a failure."""

import pytest

from backends.errors import (
    BackendDisconnected,
    BackendError,
    BackendFaulted,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
)
from backends.health import State
from gateway.calls.routing import Busy, Course, Step, View, after, by_load, load, only, plan, turned_away
from metering.record import LeftOut
from tests.support.machine import target


def view(
    name: str, *, tier=0, state=State.READY, in_flight=0, cap: int | None = 8, length=4096, busy=None
) -> View:
    return View(
        target=target(name, length=length), tier=tier, state=state, in_flight=in_flight, cap=cap, busy=busy
    )


def names(views: list[View], max_tokens: int | None = None) -> list[str]:
    return [candidate.target.name for candidate in plan(views, max_tokens=max_tokens).able]


def test_tiers_then_load_per_slot_then_name() -> None:
    views = [
        view("gpu", tier=1),
        view("c", in_flight=2, cap=8),
        view("b", in_flight=1, cap=2),
        view("a", in_flight=4, cap=16),
        view("d"),
    ]
    assert names(views) == ["d", "a", "c", "b", "gpu"]


def test_a_backend_with_no_cap_is_ordered_by_its_calls() -> None:
    assert names([view("a", in_flight=3, cap=None), view("b", in_flight=2, cap=None)]) == ["b", "a"]


def test_those_left_out_carry_their_reasons() -> None:
    made = plan(
        [
            view("a", state=State.DOWN),
            view("b", state=State.STARTING),
            view("c", length=100),
            view("gpu", tier=1),
        ],
        max_tokens=100,
    )
    assert made.left_out == (
        LeftOut(backend="a", reason="down"),
        LeftOut(backend="b", reason="starting"),
        LeftOut(backend="c", reason="context length"),
    )
    assert made.unable == "down"  # why the first tier was passed over


def test_a_backend_that_is_busy_is_left_out_and_its_word_kept() -> None:
    word = Busy(status=429, retry_after_s=7)
    made = plan(
        [view("a", busy=word), view("b", busy=word, state=State.DOWN), view("gpu", tier=1)], max_tokens=None
    )
    assert [candidate.target.name for candidate in made.able] == ["gpu"]
    assert made.left_out == (LeftOut(backend="a", reason="busy"), LeftOut(backend="b", reason="down"))
    assert (made.busy, made.unable) == ((word,), "busy")


@pytest.mark.parametrize(("words", "all_busy", "status", "wait_s"), [
    ([Busy(status=429, retry_after_s=7), Busy(status=429, retry_after_s=3)], True, 429, 3),
    ([Busy(status=429, retry_after_s=7), Busy(status=503, retry_after_s=9)], True, 503, 7),
    ([Busy(status=429, retry_after_s=7)], False, 503, 7),  # another one is down
    ([Busy(status=429)], True, 429, 1),
])  # fmt: skip
def test_turned_away_by_all(words: list[Busy], all_busy: bool, status: int, wait_s: int) -> None:
    error = turned_away(words, all_busy=all_busy)
    assert (error.status, error.code, error.retry_after_s) == (status, "no_backend", wait_s)


def test_what_one_backend_holds_goes_to_no_other() -> None:
    made = only(plan([view("a", state=State.DOWN), view("b"), view("c", tier=1)], max_tokens=None), "c")
    assert [candidate.target.name for candidate in made.able] == ["c"]
    assert made.left_out == (
        LeftOut(backend="a", reason="down"),
        LeftOut(backend="b", reason="not the holder"),
    )
    assert made.unable is None  # another tier's state has nothing to do with it


def test_a_holder_that_is_not_able_leaves_its_own_reason_alone() -> None:
    words = [Busy(status=429, retry_after_s=7), Busy(status=503, retry_after_s=9)]
    views = [view("a", busy=words[0]), view("b", busy=words[1]), view("c", state=State.DOWN), view("d")]
    made = plan(views, max_tokens=None)
    for name, reason, busy in (("a", "busy", (words[0],)), ("b", "busy", (words[1],)), ("c", "down", ())):
        alone = only(made, name)
        assert (alone.able, alone.busy) == ((), busy)
        assert alone.left_out == (LeftOut(backend=name, reason=reason),)


def test_a_course_opens_tier_by_tier_and_tries_nobody_twice() -> None:
    made = plan([view("a"), view("b"), view("gpu", tier=1), view("far", tier=2)], max_tokens=None)
    course = Course(made, (5, 7, 9))
    course.set_out()
    assert (course.wants(), course.patience_ns) == (("a", "b"), 5)
    assert course.take("a").tier == course.base_tier
    course.set_out()
    assert (course.wants(), course.patience_ns) == (("b",), 5)
    course.spill()
    assert (course.wants(), course.patience_ns) == (("b", "gpu"), 7)
    assert course.take("gpu").tier > course.base_tier, "it spilled"
    course.spill()
    assert (course.wants(), course.patience_ns, len(course)) == (("b", "far"), None, 2)


def test_a_tier_without_patience_is_open_with_the_one_before() -> None:
    course = Course(plan([view("a"), view("gpu", tier=1), view("far", tier=2)], max_tokens=None), (0, 3, 0))
    course.set_out()
    assert (course.wants(), course.patience_ns) == (("a", "gpu"), 3)
    assert course.take("gpu").tier > course.base_tier, "it spilled"


def test_a_course_goes_on_once_to_a_longer_wall() -> None:
    views = [view("a"), view("b"), view("c", length=None), view("gpu", tier=1, length=8192)]
    course = Course(plan(views, max_tokens=None), (0, 0))
    assert course.outgrow(4096)
    assert len(course) == 1
    assert not course.outgrow(4096), "once"
    assert not Course(plan(views, max_tokens=None), (0, 0)).outgrow(8192), "nobody's is longer"


@pytest.mark.parametrize(("in_flight", "cap", "full"), [(2, 8, 0.25), (0, 8, 0.0), (3, None, 3.0)])
def test_load_is_by_seat_or_without_a_cap_by_call(in_flight: int, cap: int | None, full: float) -> None:
    assert load(in_flight, cap) == full


def test_a_standing_plan_is_ordered_by_another_load_and_tiers_stay() -> None:
    made = plan([view("a"), view("b"), view("c"), view("gpu", tier=1)], max_tokens=None)
    ordered = by_load(made, {"a": 2.0, "b": 0.5, "c": 0.5, "gpu": 0.0}.__getitem__)
    assert [candidate.target.name for candidate in ordered.able] == ["b", "c", "a", "gpu"]
    assert (ordered.left_out, ordered.unable, ordered.busy) == (made.left_out, made.unable, made.busy)


def test_a_course_takes_nobody_who_is_not_to_be_tried() -> None:
    course = Course(plan([view("a"), view("b")], max_tokens=None), (0,))
    course.take("b")
    with pytest.raises(AssertionError):
        course.take("b")


def test_a_later_tier_is_no_fallback_while_the_first_has_somebody() -> None:
    assert plan([view("a", state=State.DOWN), view("b"), view("gpu", tier=1)], max_tokens=None).unable is None


def test_nobody_able() -> None:
    made = plan([view("a", state=State.DOWN)], max_tokens=None)
    assert (made.able, made.unable) == ((), None)


def test_an_unknown_length_leaves_nobody_out() -> None:
    assert names([view("a", length=None)], max_tokens=10**9) == ["a"]


CONTEXT_LENGTH = BackendRejected("b", "status 400")
CONTEXT_LENGTH.context_length = True


@pytest.mark.parametrize(("error", "committed", "left", "longer", "step"), [
    (BackendUnavailable("b", "full"),      False, 2, False, Step.NEXT_BACKEND),
    (BackendTimeout("b", "timeout"),       False, 0, False, Step.GIVE_UP),      # out of attempts
    (BackendFaulted("b", "status 500"),    False, 1, False, Step.NEXT_BACKEND),
    (BackendRejected("b", "status 400"),   False, 2, True,  Step.GIVE_UP),      # the client's to mend
    (CONTEXT_LENGTH,                       False, 2, True,  Step.LONGER_WALL),  # only too long for this one
    (CONTEXT_LENGTH,                       False, 2, False, Step.GIVE_UP),      # too long for all
    (BackendDisconnected("b", "reset"),    True,  2, False, Step.GIVE_UP),      # half an answer is out
])  # fmt: skip
def test_after_a_failed_attempt(
    error: BackendError, committed: bool, left: int, longer: bool, step: Step
) -> None:
    assert after(error, committed=committed, attempts_left=left, longer_wall=longer) is step
