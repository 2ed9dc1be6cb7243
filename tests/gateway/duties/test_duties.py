"""The clerk: each task fails alone, and the log says so once."""

import itertools
import logging
from collections.abc import Iterable, Mapping

import pytest

from gateway.duties.duties import RETRY_S, Clerk, Duty, Task
from gateway.processes.logs import FACTS


class Work:
    """Tasks by name, some of which fail."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.failing: dict[str, Exception] = {}
        self.done: list[str] = []

    def do(self, name: str) -> None:
        if error := self.failing.get(name):
            raise error
        self.done.append(name)

    def tasks(self) -> Iterable[Task]:
        self.do("list")
        for name in self.names:
            yield Task(name, lambda name=name: self.do(name))


def patient(duties: list[Duty]) -> Clerk:
    """A clerk whose rounds are far apart."""
    return Clerk(duties, itertools.count(0, RETRY_S).__next__)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    found = [(one.message, getattr(one, FACTS)) for one in caplog.records]
    caplog.clear()
    return found


@pytest.fixture
def work(caplog: pytest.LogCaptureFixture) -> Work:
    caplog.set_level(logging.INFO)
    return Work("a", "b")


def test_tasks_are_done_in_order_in_each_round(work: Work) -> None:
    other = Work("c")
    clerk = Clerk([Duty("one", work.tasks), Duty("two", other.tasks)])
    clerk.round()
    clerk.round()
    assert work.done == ["list", "a", "b"] * 2
    assert other.done == ["list", "c"] * 2


def test_a_task_that_fails_is_said_once_and_does_not_end_the_others(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    work.failing["a"] = OSError(28, "No space left on device")
    clerk = patient([Duty("seal", work.tasks)])
    clerk.round()
    clerk.round()
    assert work.done == ["list", "b"] * 2
    facts = {"duty": "seal", "about": "a"}
    assert said(caplog) == [("duty failed", facts | {"reason": "[Errno 28] No space left on device"})]
    work.failing["a"] = KeyError("x")
    clerk.round()
    assert said(caplog) == [("duty failed", facts | {"reason": "fault: KeyError('x')"})]
    work.failing.clear()
    clerk.round()
    clerk.round()
    assert said(caplog) == [("duty works again", facts)]


def test_what_a_duty_cannot_list_fails_alone(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    work.failing["list"] = OSError(5, "Input/output error")
    other = Work("c")
    clerk = Clerk([Duty("one", work.tasks), Duty("two", other.tasks)])
    clerk.round()
    assert other.done == ["list", "c"]
    assert said(caplog) == [("duty failed", {"duty": "one", "reason": "[Errno 5] Input/output error"})]


def test_a_task_that_is_there_no_more_is_forgotten(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    work.failing["a"] = OSError(5, "Input/output error")
    clerk = patient([Duty("one", work.tasks)])
    clerk.round()
    work.names.remove("a")
    clerk.round()
    work.names.append("a")
    said(caplog)
    clerk.round()
    assert [event for event, _ in said(caplog)] == ["duty failed"], "it is news again"


def test_what_failed_is_left_alone_for_a_while(work: Work) -> None:
    now = [0.0]
    work.failing["a"] = OSError(5, "Input/output error")
    clerk = Clerk([Duty("one", work.tasks)], lambda: now[0])
    clerk.round()
    work.failing.clear()
    now[0] = RETRY_S - 1
    clerk.round()
    assert work.done == ["list", "b"] * 2
    now[0] = RETRY_S
    clerk.round()
    assert work.done[4:] == ["list", "a", "b"]


def test_how_many_fail_is_shown_when_it_has_changed(work: Work) -> None:
    shown: list[Mapping[str, int]] = []
    duties = [Duty("one", work.tasks), Duty("two", Work("c").tasks)]
    clerk = Clerk(duties, itertools.count(0, RETRY_S).__next__, show=shown.append)
    clerk.round()
    work.failing |= {"a": OSError(5, "Input/output error"), "b": OSError(5, "Input/output error")}
    clerk.round()
    clerk.round()
    work.failing.clear()
    clerk.round()
    assert shown == [{"one": 0, "two": 0}, {"one": 2, "two": 0}, {"one": 0, "two": 0}]


def test_what_cannot_be_shown_is_shown_later(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    shown: list[Mapping[str, int]] = []

    def show(failures: Mapping[str, int]) -> None:
        work.do("show")
        shown.append(failures)

    work.failing["show"] = OSError(28, "No space left on device")
    clerk = Clerk([Duty("one", work.tasks)], itertools.count(0, RETRY_S).__next__, show=show)
    clerk.round()
    assert [event for event, _ in said(caplog)] == ["duty failed"]
    work.failing.clear()
    clerk.round()
    assert shown == [{"one": 0}]
