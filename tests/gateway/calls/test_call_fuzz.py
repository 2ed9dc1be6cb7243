"""The laws of the call machine, in any world: any cut, any order, any step that fails.

A world (tests/support/machine.py) checks as it goes: an end comes after its record, a head before its body, no seat
without its attempt, nothing after the end, no wait without a deadline. What it cannot see from within stands here:
one voice, well-formed events, a bill of what was sent. Each law is held against a machine that breaks it.

A run is made of its seed alone, so a failure is played again by its number.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import BackendDisconnected, BackendTimeout, BackendUnavailable
from backends.reader import HOLD_BYTES_MAX
from gateway.api import errors
from gateway.api.operations import OPERATIONS
from gateway.calls import call as calls
from gateway.calls import events as m
from gateway.calls import heads
from gateway.calls.call import Call
from gateway.calls.events import State
from metering import record
from metering.record import Outcome
from metering.usage import UsageSource
from tests.support import sse
from tests.support.machine import HEAD_JSON, HEAD_SSE, LIMITS, SECOND, World, facts, plan, target
from tests.support.voices import APIS, TOKENS, Api

TIERS = ((target("a"), target("b"), target("c")), (target("gpu", family="g6e", length=8192),))
NAMES = [one.name for tier in TIERS for one in tier]
ALIVE = msgspec.structs.replace(LIMITS, keepalive_ns=4 * SECOND)
CHAT, *_ = APIS
PING, DONE, NULL = b": ping\n\n", b"data: [DONE]\n\n", b"data: null\n\n"
LENGTH = b'{"error":{"message":"maximum context length is 4096","type":"t","param":null,"code":400}}'
REFUSED = b'{"error":{"message":"bad","type":"t","param":null,"code":"c"}}'
STATUSES = [204, 302, 400, 404, 429, 500, 502, 503]
SIZES = [1, 7, 50, 100_000]


class Answer(msgspec.Struct, frozen=True):
    """What a backend says. closes: it ends its body, else it breaks off."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    closes: bool = True


def good(api: Api, voice: str, stream: bool) -> Answer:
    if stream:
        return Answer(200, HEAD_SSE, b"".join(api.streamed(voice, "")))
    return Answer(200, HEAD_JSON, api.whole(voice))


def status(number: int, body: bytes = b"<html>", *, closes: bool = True) -> Answer:
    return Answer(number, [*HEAD_JSON, (b"retry-after", b"7")], body, closes)


def any_answer(rng: random.Random, api: Api, voice: str, stream: bool, size: int) -> Answer:
    """A good one every other time; else a status, or something of a good one, with things in it that are none.

    size: of the writes that it will come in.
    """
    kind = rng.choice(["good", "good", "spoilt", "long", "status"])
    if kind == "good":
        return good(api, voice, stream)
    closes = rng.random() < 0.5
    if kind == "status":
        return status(rng.choice(STATUSES), rng.choice([b"", b"<html>", LENGTH, REFUSED]), closes=closes)
    if not stream:
        body = api.whole(voice)
        spoilt = rng.choice([b"", b"[]", REFUSED, body[: rng.randrange(len(body))]])
        return Answer(200, HEAD_JSON, spoilt, closes)
    # A long token goes to the client in parts, a good many of them.
    padding = "x" * min(HOLD_BYTES_MAX + 200 * size, 20_000) if kind == "long" else ""
    events = api.streamed(voice, padding)
    end = events[-1]
    for _ in range(rng.randint(0, 3)):
        at, gone = rng.randrange(len(events) + 1), rng.randint(0, 2)
        events[at : at + gone] = rng.choice([[], [PING], [api.error], [end], [NULL], [b"data: {\n\n"]])
    return Answer(200, rng.choice([HEAD_SSE, HEAD_SSE, HEAD_JSON]), b"".join(events), closes)


class Stage(World):
    """A world whose backends have their answers; each attempt says the next piece when it is told to.

    script: backend → its answer. direct: tokens pass by `Call.passes`, and an answer that one write holds
    comes as one event. sent: what each
    has said of its body.
    """

    direct = False

    def __init__(
        self, call: Call, script: Callable[[str], Answer], seats: dict[str, int], *, limited: bool = False
    ) -> None:
        self._script = script
        self._answer = status(500)
        self.sent: dict[str, bytes] = {}
        super().__init__(call, seats=seats, limited=limited)

    def _connect(self, action: m.Connect) -> None:
        super()._connect(action)
        self._answer = self._script(action.target.name)
        self.sent[action.target.name] = b""

    def go_on(self, size: int) -> None:
        """What comes next when nothing goes wrong. size: of a backend's writes."""
        if self.asking:
            self.allow()
        elif self.unwritten:
            self.flush()
        elif self.attempt:
            self._speak(size)
        else:
            self.tick()

    def _speak(self, size: int) -> None:
        number, state, name = self.attempt, self.call.state, self.connects[-1]
        said = len(self.sent[name])
        if state is State.CONNECTING:
            self.feed(m.Connected(number))
        elif state is State.WAITING and self.direct and self._answer.closes and len(self._answer.body) < size:
            answer, self.sent[name] = self._answer, self._answer.body
            self.feed(m.Whole(number, status=answer.status, headers=answer.headers, data=answer.body))
        elif state is State.WAITING:
            self.feed(m.Head(number, status=self._answer.status, headers=self._answer.headers))
        elif piece := self._answer.body[said : said + size]:
            self.sent[name] += piece
            if self.direct and self.call.passes(number, piece, 0, len(piece), self.now_ns):
                self._write(m.Write(piece))
            else:
                self.feed(m.Data(number, data=piece))
        elif self._answer.closes:
            self.feed(m.End(number))
        else:
            self.lose(BackendDisconnected(name, "disconnected"))

    def lose(self, error: Exception) -> None:
        """The connection of the running attempt is over."""
        if self.attempt:
            self.feed(m.Lost(self.attempt, error=error))


def reconnect(w: Stage) -> None:
    """A reused connection was dead, and a fresh one has been taken."""
    if w.call.state is State.WAITING:
        w.feed(m.Connected(w.attempt))


def wait(w: Stage) -> None:
    """Time passes; never within a turn."""
    if not w.unwritten:
        w.tick()


def refuse(w: Stage) -> None:
    """The limits have no room."""
    if w.asking:
        w.refuse()


def grant_the_last(w: Stage) -> None:
    if w.waiting:
        w.grant(w.waiting[-1])


DISASTERS: list[Callable[[Stage], None]] = [
    lambda w: w.feed(m.ClientGone()),
    lambda w: w.feed(m.Stopping(error=errors.ShuttingDown("the gateway is shutting down"))),
    lambda w: w.lose(BackendDisconnected("x", "disconnected")),
    lambda w: w.lose(BackendUnavailable("x", "connect refused")),
    lambda w: w.lose(BackendTimeout("x", "timeout")),
    lambda w: w.fail_flush(),
    reconnect,
    wait,
    refuse,
    grant_the_last,
]


def run(seed: int, make: type[Call] = Call, stage: type[Stage] = Stage) -> Stage:
    """A whole call in a world made of the seed."""
    rng = random.Random(seed)
    api = rng.choice(APIS)
    stream, limits, size = rng.random() < 0.7, rng.choice([LIMITS, ALIVE]), rng.choice(SIZES)
    seats = {name: rng.choice([1, 1, 0]) for name in NAMES}
    asked = msgspec.structs.replace(facts(stream=stream), operation=OPERATIONS[api.path])
    call = make(asked, plan(*TIERS), limits)
    script = lambda name: any_answer(rng, api, name, stream, size)  # noqa: E731
    w = stage(call, script, seats, limited=rng.random() < 0.5)
    w.direct = rng.random() < 0.5
    w.at_once = rng.random() < 0.5
    rate = rng.choice([0.0, 0.02, 0.2])
    for _ in range(40_000):
        if w.finished:
            break
        if rng.random() < (0.3 if w.asking else rate):  # that is one step of many
            rng.choice([*DISASTERS, wait, wait, wait])(w)
        else:
            w.go_on(size)
    check(w, api)
    return w


# -- the laws that a whole call keeps, seen from outside


def check(w: Stage, api: Api) -> None:
    assert w.finished
    if not w.allowed:
        check_turned_away(w)
        return
    assert w.turned_away == []
    if not any(isinstance(line, record.CallRecord) for line in w.lines):
        check_unrecorded(w, api)
        return
    w.check_books()
    line = w.record
    voices = [name for name in w.connects if f"<{name}>".encode() in w.client]
    assert voices in ([], w.connects[-1:]), "a second voice"
    assert b"10.0.0.5" not in w.client
    check_bill(w, line)
    if not w.gone:
        check_answer(w, line, api)


def check_turned_away(w: Stage) -> None:
    """It was no call: no line of one, no seat, nobody asked; whoever is still there knows why."""
    assert (w.lines, w.unwritten, w.holding, w.connects, w.asking) == ([], [], [], [], False)
    assert len(w.turned_away) == (0 if w.gone else 1)
    if w.gone:
        assert w.status is None
        return
    (error,) = w.turned_away
    assert w.status == error.status
    assert b"x-weighbridge-call-id" not in w.headers
    assert int(w.headers[b"content-length"]) == len(w.client)
    assert b'"error"' in w.client


def check_unrecorded(w: Stage, api: Api) -> None:
    """The journal took no record: nobody was told of a good end, and nothing is left behind."""
    assert (w.holding, w.attempt) == ([], 0)
    assert not any(api.is_end(event) for event in sse.parse(w.client))
    assert w.gone or w.status == 503 or b"could not be recorded" in w.client


def check_bill(w: Stage, line: record.CallRecord) -> None:
    """Billed is what the last backend has sent, and the prompt; nothing, where nothing was served."""
    usage = line.usage
    if usage.source is UsageSource.UNKNOWN and line.unpriced_reason is None:
        assert line.cost_pusd == 0
        return
    assert line.outcome not in (Outcome.SHED, Outcome.REFUSED)
    if usage.prompt_tokens is None:  # it has no estimate where the request is no text
        assert line.operation == "transcriptions"
        assert (line.cost_pusd, line.unpriced_reason) == (None, "usage_unknown")
    else:
        assert line.cost_pusd == usage.prompt_tokens + usage.completion_tokens
    if usage.completion_tokens is None:
        assert usage.other in (None, {"audio_s": 6})
        return
    sent = w.sent[w.connects[-1]]
    if usage.source is UsageSource.REPORTED:
        assert b'"usage":{' in sent
        assert (usage.prompt_tokens, usage.completion_tokens) == (10, TOKENS)
    else:
        reported = TOKENS if b'"usage":{' in sent else 0  # it stands beside what was counted
        assert usage.completion_tokens <= max(reported, sent.count(b"<"))


def check_answer(w: Stage, line: record.CallRecord, api: Api) -> None:
    """What the client got is an answer or an error, and it can tell which."""
    completed = line.outcome is Outcome.COMPLETED
    if not w.headers[b"content-type"].startswith(b"text/event-stream"):
        assert int(w.headers[b"content-length"]) == len(w.client)
        assert completed == (w.status == 200)
        assert completed or b'"error"' in w.client
        return
    assert w.status == 200
    assert w.client.endswith(b"\n\n")
    events = sse.parse(w.client)
    last = len(events) - 1
    assert not any(": keepalive" in event.data for event in events), "a comment within an event"
    unreadable = [at for at, event in enumerate(events) if not readable(event.data)]
    assert unreadable in ([], [] if completed else [last - 1])  # only half an event that an error follows
    assert [at for at, event in enumerate(events) if api.is_error(event)] == ([] if completed else [last])
    ends = [at for at, event in enumerate(events) if api.is_end(event)]
    if completed:
        assert ends == [last]
        assert line.error_code is None
    else:
        assert ends == []


def readable(data: str) -> bool:
    """Is it what a backend may say, or we? One says `{`, and nobody else."""
    if data in ("[DONE]", "{"):
        return True
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError:
        return False
    return True


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 2**64))
def test_the_laws_hold_in_any_world(seed: int) -> None:
    run(seed)


def test_the_worlds_reach_every_state_and_every_outcome() -> None:
    """Or the test above would prove little."""
    runs = [run(seed) for seed in range(600)]
    turned_away = [w for w in runs if not w.allowed]
    assert {type(error) for w in turned_away for error in w.turned_away} == {
        errors.RateLimited, errors.LimitsUnavailable, errors.ShuttingDown,
    }  # fmt: skip
    assert any(w.gone for w in turned_away)
    lines = [line for w in runs for line in w.lines if isinstance(line, record.CallRecord)]
    assert {line.outcome for line in lines} == set(Outcome) - {Outcome.LOST}
    assert {line.usage.source for line in lines} == set(UsageSource)
    assert {len(line.attempts) for line in lines} == {0, 1, 2, 3}
    assert sum(line.outcome is Outcome.COMPLETED for line in lines) > len(lines) // 4


# -- fail the Nth step, for every N


def journeys() -> dict[str, Callable[[str], Answer]]:
    """Calls that go well in the end."""
    return {
        "stream": lambda name: good(CHAT, name, True),
        "sized": lambda name: good(CHAT, name, False),
        "stream, third try": lambda name: (
            good(CHAT, name, True) if name == "c" else status(429 if name == "a" else 502)
        ),
        "sized, longer wall": lambda name: good(CHAT, name, False) if name == "gpu" else status(400, LENGTH),
    }


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("disaster", range(len(DISASTERS)))
@pytest.mark.parametrize("journey", journeys())
def test_the_nth_step_may_fail_whichever_it_is(journey: str, disaster: int, limited: bool) -> None:
    for steps in range(1_000):
        stream = journey.startswith("stream")
        call = Call(facts(stream=stream), plan(*TIERS), ALIVE)
        w = Stage(call, journeys()[journey], {}, limited=limited)
        for _ in range(steps):
            if not w.finished:
                w.go_on(25)
        over = w.finished
        if not over:
            DISASTERS[disaster](w)
        while not w.finished:
            w.go_on(25)
        check(w, CHAT)
        if over:
            assert steps > 10
            assert w.record.outcome is Outcome.COMPLETED
            return
    raise AssertionError("it never ends")


# -- machines and worlds that break a law; each is found


class SecondVoice(Call):
    """It goes on to another backend after the commit point."""

    def _commit(self, now_ns: int) -> Any:
        actions = super()._commit(now_ns)
        self._committed = False
        return actions


class SeatKept(Call):
    """A failed attempt keeps its seat."""

    def _end_attempt(self, *args: Any, **kwargs: Any) -> Any:
        actions = super()._end_attempt(*args, **kwargs)
        return [
            action
            for action in actions
            if not (isinstance(action, m.Release) and len(self._tally.attempts) > 1)
        ]


class BackendKept(Call):
    """A backend that is too slow is left at work."""

    def _end_attempt(self, *args: Any, **kwargs: Any) -> Any:
        return [action for action in super()._end_attempt(*args, **kwargs) if not isinstance(action, m.Abort)]


class TwoRecords(Call):
    """A failure is written down twice."""

    def _conclude_with(self, *args: Any, **kwargs: Any) -> Any:
        return [*super()._conclude_with(*args, **kwargs), m.Seal()]


class TooOften(Call):
    """It tries one backend more than it may."""

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        limits, self.limits = self.limits, msgspec.structs.replace(self.limits, attempts_max=9)
        try:
            return super()._fail(*args, **kwargs)
        finally:
            self.limits = limits


class BodyFirst(Call):
    """A comment goes out without a head."""

    def _keep_alive(self, now_ns: int) -> Any:
        return [action for action in super()._keep_alive(now_ns) if not isinstance(action, m.Open)]


class Torn(Call):
    """It does not see that half an event is with the client."""

    _torn = False


class GoodEnd(Call):
    """A failed stream ends like a good one."""

    def _error_event(self, error: Any) -> bytes:
        return DONE


class Forgetful(Call):
    """A backend that was reached may answer when it likes."""

    @property
    def deadline_ns(self) -> int | None:
        return None if self.state is State.WAITING else super().deadline_ns


class Overbilled(Call):
    """Tokens are counted twice where nobody reported them."""

    def record(self, *args: Any) -> Any:
        line = super().record(*args)
        if line.usage.source is not UsageSource.COUNTED:
            return line
        usage = msgspec.structs.replace(line.usage, completion_tokens=line.usage.completion_tokens * 2 + 1)
        return msgspec.structs.replace(
            line, usage=usage, cost_pusd=usage.prompt_tokens + usage.completion_tokens
        )


class AllBilled(Call):
    """What a failed attempt has done is billed too."""

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        self._tally.served = True
        self._tally.read_nothing()
        return super()._fail(*args, **kwargs)


class ToNobody(Call):
    """It goes on writing when the client has left."""

    def _sealed(self, *args: Any) -> Any:
        self._gone = False
        return super()._sealed(*args)

    def handle(self, event: m.Event, now_ns: int) -> Any:
        return self._sealed(event, now_ns) if isinstance(event, m.Sealed) else super().handle(event, now_ns)


class SneakedIn(Call):
    """A call that has no room is admitted all the same."""

    def _turn_away(self, error: Any) -> Any:
        self.state = State.ADMITTING
        return self.start(0)


class AskedFor(Call):
    """A call that is given up still has its place with the limits."""

    def handle(self, event: m.Event, now_ns: int) -> Any:
        return [action for action in super().handle(event, now_ns) if not isinstance(action, m.GiveUp)]


class Unrefused(Call):
    """A refusal leaves no line."""

    def _turn_away(self, error: Any) -> Any:
        return [action for action in super()._turn_away(error) if not isinstance(action, m.TurnAway)]


class TwiceTold(Call):
    """A refusal that is no call's has a call's id."""

    def _turn_away(self, error: Any) -> Any:
        self.state = State.DONE
        head, body = heads.error(error, self.facts)
        return (m.TurnAway(error=error), head, m.Finish(body))


class Patient(Call):
    """What the limits say is waited for for ever."""

    @property
    def deadline_ns(self) -> int | None:
        return None if self.state is State.ASKING else super().deadline_ns


class Released(Stage):
    """A driver: it lets the end go before the record is in the file."""

    def _seal(self, action: m.Seal) -> None:
        super()._seal(action)
        make, _ = self.unwritten.pop()
        self.feed(m.Sealed())
        self.lines.append(make())

    def _finish(self, action: m.Finish) -> None:
        assert any(isinstance(line, record.CallRecord) for line in self.lines), "an end before its record"
        super()._finish(action)


BROKEN = [
    SecondVoice, SeatKept, BackendKept, TwoRecords, TooOften, BodyFirst, Torn, GoodEnd, Forgetful, Overbilled,
    AllBilled, ToNobody, SneakedIn, AskedFor, Unrefused, TwiceTold, Patient,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_machine_that_breaks_a_law_is_found(broken: type[Call]) -> None:
    assert any(breaks(seed, broken) for seed in range(3_000))


def keep_the_seat(call: Call, event: m.Seated, now_ns: int) -> Any:
    """A seat that came with the admission is kept by a call that is over by then."""
    return [action for action in Call._seated(call, event, now_ns) if not isinstance(action, m.Release)]


def test_a_machine_that_keeps_the_seat_of_its_admission_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls._ROWS[State.ADMITTING], m.Seated, keep_the_seat)
    assert any(breaks(seed, Call) for seed in range(3_000))


def breaks(seed: int, broken: type[Call]) -> bool:
    try:
        run(seed, broken)
    except (AssertionError, ValueError):
        return True
    return False


def test_a_driver_that_releases_before_the_write_is_found() -> None:
    with pytest.raises(AssertionError, match="before its record"):
        run(0, stage=Released)
