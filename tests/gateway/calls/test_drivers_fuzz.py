"""Both drivers against the same machine, in any world: the same script gives the same bytes, record and books.

The script (tests/support/driver_script.py) cuts a backend's answer anywhere; the client may leave or be slow, a
deadline pass, the gateway stop, a line be lost, at any step. It is played three times: to the direct driver, to the
plain one, and to the machine's own test world, which knows no relay and no client. Each law is held against a driver
that breaks it. A run is made of its seed alone, so a failure is played again by its number.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import BackendDisconnected, BackendTimeout, BackendUnavailable
from gateway.api.operations import OPERATIONS
from gateway.calls import events as m
from gateway.calls import relay as relays
from gateway.calls.call import Call
from gateway.calls.direct import DirectProtocol
from gateway.calls.plain import PlainClient
from gateway.calls.relay import Relay
from metering.record import CallRecord, Outcome
from tests.gateway.calls.test_call_fuzz import ALIVE, NAMES, TIERS, any_answer
from tests.support.driven import Direct, Plain
from tests.support.driver_fakes import Seen
from tests.support.driver_model import Modelled
from tests.support.driver_script import Script, Side
from tests.support.machine import LIMITS, facts, plan
from tests.support.voices import APIS

CONFIG = uvicorn.Config("none:none", interface="asgi3", lifespan="off", ws="none", log_config=None)
CONFIG.loaded, CONFIG.loaded_app, CONFIG.ws_protocol_class = True, None, None  # there is no application
LOSSES = [
    BackendDisconnected("x", "disconnected"),
    BackendUnavailable("x", "connect refused"),
    BackendTimeout("x", "timeout"),
]
SIDES: list[Callable[..., Side]] = [lambda *args: Direct(CONFIG, *args), Plain, Modelled]


def play(seed: int, make: Callable[..., Side]) -> Seen:
    """A whole call on one side, in a world made of the seed."""
    rng = random.Random(seed)
    api, stream, limits = rng.choice(APIS), rng.random() < 0.8, rng.choice([LIMITS, ALIVE])
    size = rng.choice([7, 50, 50, 300, 100_000])
    answers = {name: any_answer(rng, api, name, stream, size) for name in NAMES}
    taken = [name for name in NAMES if rng.random() < 0.3]
    rate, most = rng.choice([0.0, 0.02, 0.1, 0.2]), rng.choice([30, 200, 5_000])
    limited = rng.random() < 0.5
    script = Script(rng, answers, size, rate, whole=rng.random() < 0.2)
    asked = msgspec.structs.replace(facts(stream=stream), operation=OPERATIONS[api.path])
    return script.play(make(Call(asked, plan(*TIERS), limits), taken, NAMES, most, limited), LOSSES)


def run(seed: int) -> Seen:
    """The same script for each side; what they have seen is the same."""
    direct, plain, modelled = (play(seed, side) for side in SIDES)
    assert direct == plain
    assert plain == modelled
    return direct


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**64))
def test_both_drivers_do_as_the_machine_says(seed: int) -> None:
    run(seed)


def test_the_worlds_reach_every_outcome() -> None:
    """Or the test above would prove little."""
    runs = [run(seed) for seed in range(200)]
    lines = [line for seen in runs for line in seen.lines if isinstance(line, CallRecord)]
    assert {line.outcome for line in lines} == set(Outcome) - {Outcome.LOST}
    assert {len(seen.lines) for seen in runs} == {0, 1, 2}
    assert {reason for seen in runs for reason in seen.turned_away} == {
        "RateLimited", "LimitsUnavailable", "ShuttingDown",
    }  # fmt: skip
    assert {fate for seen in runs for _, fate in seen.fates} == {"over", "aborted"}
    assert {len(seen.fates) for seen in runs} == {0, 1, 2, 3}
    assert sum(line.outcome is Outcome.COMPLETED for line in lines) > len(lines) // 4


# -- drivers that break a law; each is found


def seal_unwritten(relay: Relay, action: m.Seal) -> None:
    """The end goes out before the record is in the file."""
    Relay._seal(relay, action)
    relay.feed(m.Sealed())


def keep_seat(_relay: Relay, _action: m.Release) -> None:
    """A seat is not given back."""


def keep_backend(_relay: Relay, _action: m.Abort) -> None:
    """A backend is left at work for nobody."""


def seat_twice(relay: Relay) -> None:
    """A seat is taken with the admission, and then another one is asked for."""
    if not relay._sealing:
        relay._services.seats.take(relay.call.wanted)
    relay.feed(m.Sealed() if relay._sealing else m.Admitted())


def keep_place(_relay: Relay, _action: m.Leave) -> None:
    """A call that is over waits for a seat still."""


def stay_open(relay: Relay, action: m.Finish) -> None:
    """A call that is over counts as open."""
    relay._client.finish(action.data)


def say_nothing(_relay: Relay, _action: m.HoldBack) -> None:
    """Nobody hears that a backend is busy."""


def ask_on(_relay: Relay, _action: m.GiveUp) -> None:
    """Nobody waits for what the limits say, and they still do."""


def turn_away_unseen(_relay: Relay, _action: m.TurnAway) -> None:
    """A refusal leaves no line."""


def unsettled(relay: Relay, action: m.Finish) -> None:
    """What a call took of limits is never given back."""
    relay.limits, limits = None, relay.limits
    FINISH_CALL(relay, action)
    relay.limits = limits


def unheaded(relay: Relay, action: m.Open) -> None:
    """A client does not hear how its limits stand."""
    relay._client.open(action.status, action.lines)


def twice(relay: Relay, action: m.Write) -> None:
    """A piece is written twice."""
    relay._client.write(action.data)
    relay._client.write(action.data)


def read_on(_relay: Relay) -> None:
    """A slow client's backend is read all the same."""


def impatient(relay: Relay, now_ns: int) -> None:
    """A backend that is not read is late."""
    if relay.call.deadline_ns is not None and now_ns >= relay.call.deadline_ns:
        relay.feed(m.Timer())


def record_lost(relay: Relay, _error: OSError) -> None:
    """Limits are not told that there is no record."""
    relay.feed(m.Unrecorded())


def pass_blindly(relay: Relay, attempt: int, data: bytes) -> None:
    """What needs a second look does not get one."""
    if relay.call.passes(attempt, data, 0, len(data), 0) or relay.call.state is m.State.STREAMING:
        relay._client.write(data)
    else:
        relay.feed(m.Data(attempt, data=data))


def no_last_chunk(protocol: Any, data: bytes) -> None:
    """The direct driver's stream has no end."""
    if protocol._chunked and data:
        protocol.write(data)
    elif not protocol._chunked:
        FINISH(protocol, data)
    protocol._relay = None


def end_with_no_body(protocol: Any, data: bytes) -> None:
    """The direct driver's last bytes are lost."""
    FINISH(protocol, b"" if protocol._chunked else data)


def end_twice(protocol: Any, data: bytes) -> None:
    """The direct driver writes behind its end."""
    FINISH(protocol, data)
    protocol.transport.write(b"0\r\n\r\n")


def unheard(protocol: Any, _exc: Exception | None) -> None:
    """The direct driver does not tell that the client has left."""
    protocol._relay = None


def nothing(_self: Any, *_: Any) -> None:
    """The direct driver's transport is full, or empty again, and nobody hears of it."""


def drop_small(client: PlainClient, data: bytes) -> None:
    """The plain driver drops a piece."""
    if len(data) > 20:
        WRITE(client, data)


def never_full(client: PlainClient, data: bytes) -> None:
    """The plain driver reads on, however much waits."""
    WRITE(client, data)
    client._down_bytes = 0


async def swallow(client: PlainClient, receive: Any) -> None:
    """The plain driver does not hear that the client has left."""
    await receive()


def forget_tail(client: PlainClient, _data: bytes) -> None:
    """The plain driver loses the last bytes."""
    END(client, b"")


FINISH_CALL = Relay._finish
FINISH, WRITE, END = DirectProtocol.finish, PlainClient.write, PlainClient.finish
BROKEN_ACTIONS = {
    m.Seal: seal_unwritten, m.Release: keep_seat, m.Abort: keep_backend, m.Leave: keep_place,
    m.Finish: stay_open, m.HoldBack: say_nothing, m.Write: twice, m.GiveUp: ask_on, m.TurnAway: turn_away_unseen,
    m.Open: unheaded,
}  # fmt: skip
BROKEN_METHODS: list[tuple[type, str, Any]] = [
    (Relay, "pause", read_on), (Relay, "resume", read_on), (Relay, "sweep", impatient),
    (Relay, "written", seat_twice), (Relay, "data", pass_blindly),
    (Relay, "failed", record_lost),
    (DirectProtocol, "finish", no_last_chunk), (DirectProtocol, "finish", end_with_no_body),
    (DirectProtocol, "finish", end_twice), (DirectProtocol, "connection_lost", unheard),
    (DirectProtocol, "pause_writing", nothing), (DirectProtocol, "resume_writing", nothing),
    (PlainClient, "write", drop_small), (PlainClient, "write", never_full),
    (PlainClient, "finish", forget_tail), (PlainClient, "_watch", swallow),
]  # fmt: skip


@pytest.mark.parametrize("action", BROKEN_ACTIONS, ids=lambda action: BROKEN_ACTIONS[action].__name__)
def test_a_relay_that_breaks_a_law_is_found(action: type[m.Action], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(relays.ACTIONS, action, BROKEN_ACTIONS[action])
    assert any(breaks(seed) for seed in range(300))


def test_a_relay_that_settles_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(relays.ACTIONS, m.Finish, unsettled)
    assert any(breaks(seed) for seed in range(300))


@pytest.mark.parametrize(("where", "name", "broken"), BROKEN_METHODS)
def test_a_driver_that_breaks_a_law_is_found(
    where: type, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    assert any(breaks(seed) for seed in range(300))


def breaks(seed: int) -> bool:
    try:
        run(seed)
    except AssertionError:
        return True
    return False
