"""A slow client, by the plain driver: whose silence a deadline counts."""

import asyncio
from types import SimpleNamespace
from typing import Any

from gateway.api.operations import OPERATIONS
from gateway.calls import events as machine
from gateway.calls.bounds import LoopLag
from gateway.calls.plain import PlainClient
from gateway.calls.relay import Relay, Services
from metering.pages.families import Bound

BUFFER_BYTES = 256 * 1024


def services_of(passed: list[Bound]) -> Services:
    """A worker's, whose clock stands at 20; the bounds that were passed go to `passed`."""
    lag = LoopLag(interval_ns=1, lag_ns_max=1)
    return Services(
        recorder=None,
        refusals=None,
        seats=None,
        registry=None,
        clock=lambda: 20,
        open=set(),
        lag=lag,
        exceeded=passed.append,
    )


class Machine:
    """Stands for a call whose backend's next event is late, and which has time left; notes what it is fed."""

    deadline_ns, unread_deadline_ns = 10, 1_000
    facts = SimpleNamespace(model="m", call_id="c-1", operation=OPERATIONS["/v1/chat/completions"])

    def __init__(self) -> None:
        self.fed: list[machine.Event] = []

    def handle(self, event: machine.Event, _now_ns: int) -> list[machine.Action]:
        self.fed.append(event)
        return []


class Reading:
    """An attempt: is its connection read?"""

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


def test_a_backend_that_was_not_read_is_read_before_it_is_late() -> None:
    async def play() -> None:
        call, attempt = Machine(), Reading()
        passed: list[Bound] = []
        services = services_of(passed)
        client = PlainClient(BUFFER_BYTES)
        client._relay = relay = Relay(services, call, None, client)
        relay._attempt = attempt
        relay._write(machine.Write(b"x" * (BUFFER_BYTES + 1)))
        assert attempt.paused
        assert passed == [Bound.BUFFER]
        relay.sweep(20)
        assert call.fed == [], "its client is slow, not the backend"

        async def send(_message: dict[str, Any]) -> None:
            pass

        await client._send_down(send)
        assert not attempt.paused
        relay.sweep(20)
        assert call.fed == [], "what it has sent meanwhile has not been read yet"
        relay.sweep(21)
        assert call.fed == [machine.Timer()]

    asyncio.run(play())


def test_a_client_that_has_left_no_longer_keeps_its_backend_unread() -> None:
    call, attempt = Machine(), Reading()
    relay = Relay(services_of([]), call, None, None)
    relay._attempt = attempt
    relay.pause()
    assert attempt.paused
    relay.gone()
    assert not attempt.paused
    assert call.fed == [machine.ClientGone()]


def test_a_client_that_takes_nothing_does_not_outlive_the_whole_calls_time() -> None:
    async def play() -> None:
        call = Machine()
        client = PlainClient(BUFFER_BYTES)
        client._relay = relay = Relay(services_of([]), call, None, client)
        relay._attempt = Reading()
        relay._write(machine.Write(b"x" * (BUFFER_BYTES + 1)))
        relay.sweep(call.unread_deadline_ns)
        assert call.fed == [machine.Timer()]

    asyncio.run(play())
