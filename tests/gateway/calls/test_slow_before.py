"""A client that is slow before a backend is asked, with both drivers: all that it has heard by then are comments."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.calls import events as m
from gateway.calls import relay as relays
from gateway.calls.call import Call
from gateway.calls.events import State
from gateway.calls.relay import Relay
from tests.gateway.calls.test_drivers_fuzz import CONFIG
from tests.support.driven import Direct, Plain
from tests.support.machine import LIMITS, SECOND, facts, plan, target

NAMES = ["a", "b"]
TALKATIVE = msgspec.structs.replace(LIMITS, keepalive_ns=SECOND // 10)
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n'
HEAD = [(b"content-type", b"text/event-stream")]

Begin = Callable[[list[str]], Direct | Plain]


@pytest.fixture(params=["direct", "plain"])
def begin(request: pytest.FixtureRequest) -> Begin:
    """Begins a call when these backends are full; it is admitted, and its client takes nothing from then on."""

    def begun(full: list[str]) -> Direct | Plain:
        call = Call(facts(), plan(tuple(target(name) for name in NAMES)), TALKATIVE)
        made: tuple[Any, ...] = (call, full, NAMES, 20)
        side = Direct(CONFIG, *made) if request.param == "direct" else Plain(*made)
        request.addfinalizer(lambda: end(side))
        side.make()
        side.flush()
        side.take(False)
        return side

    return begun


def end(side: Direct | Plain) -> None:
    side.leave()
    if side.unwritten:
        side.make()
        side.flush()
    side.check_books()
    side.close()


def hear_comments(side: Direct | Plain) -> None:
    """Until more of them wait than may."""
    for _ in range(4):
        side.tick(to_the_end=False)
        side.settle()
    assert side.relay._paused


def test_the_backend_that_is_asked_then_is_not_read_until_it_takes_more(begin: Begin) -> None:
    side = begin(NAMES)
    hear_comments(side)
    side.grant("b")
    assert side.paused
    side.take(True)
    side.settle()
    assert not side.paused
    side.say("connected")
    side.say("head", 200, HEAD)
    side.say("data", ROLE)
    side.settle()
    assert side.body.endswith(ROLE)


def test_nor_is_the_one_that_is_asked_after_it(begin: Begin) -> None:
    side = begin([])
    hear_comments(side)
    assert side.paused
    side.tick(to_the_end=True)  # it cannot be reached, and that is not the client's doing
    assert [one.name for one in side.attempts] == ["a", "b"]
    assert side.paused


def test_its_wait_for_a_seat_has_an_end_as_any_others(begin: Begin) -> None:
    side = begin(NAMES)
    hear_comments(side)
    while side.call.state is State.QUEUED:
        side.tick(to_the_end=True)
    assert side.now_ns == LIMITS.queue_ns


def read_the_next(relay: Relay, action: m.Connect) -> None:
    """The backend that is asked is read, whatever its client does."""
    Relay._connect(relay, action)
    assert relay._attempt is not None
    relay._attempt.resume()


def test_a_relay_that_reads_it_is_found(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(relays.ACTIONS, m.Connect, read_the_next)
    for law in (
        test_the_backend_that_is_asked_then_is_not_read_until_it_takes_more,
        test_nor_is_the_one_that_is_asked_after_it,
    ):
        with pytest.raises(AssertionError):
            law(begin)
