"""A driver of the call machine with no I/O: a world that answers its actions, and books that must balance.

The world grants seats, records lines and runs attempts as a script says; the books check what every
driver relies on, whatever the order of events. It uses the machine's own types, nothing else of the product.
"""

from collections.abc import Callable, Sequence

from backends.errors import BackendDisconnected
from gateway.api.errors import GatewayError, RateLimited
from gateway.api.operations import OPERATIONS
from gateway.calls import events as m
from gateway.calls.call import END_WAIT_NS, Call, Limits
from gateway.calls.routing import Candidate, Plan, Target
from gateway.calls.tally import Facts
from metering import record
from metering.cost.pricing import RateCard, Schedule
from metering.cost.work_units import WorkUnits

MS = 1_000_000
SECOND = 1000 * MS
NO_ROOM = RateLimited("too many requests", limit="requests_per_minute of key k1", wait_ms=1500)
HEAD_SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
HEAD_JSON = [(b"content-type", b"application/json")]


def target(name: str, *, length: int | None = 4096, family: str = "inf2", slots: int | None = 8) -> Target:
    """A backend whose price is 1 picodollar for each token it reports."""
    per_token = 1_000_000
    host = record.Host(
        backend=name, identity_source="config", instance_family=family, model="m1", served_model="m1",
        neuron_version="2.28.0", simulated=True,
    )  # fmt: skip
    card = RateCard(
        model="m1", hardware=family, prompt=per_token, cached_prompt=per_token, completion=per_token,
        date="2026-11-28", source="test",
    )  # fmt: skip
    return Target(
        name=name, served_model="m1", host=host, identity_digest="sha256:0", slots=slots, max_model_len=length,
        cold=False, tariffs=Schedule((), (card,)),
        work_units=WorkUnits(date="2026-01-01", hardware=family, model="m1", source="test"),
    )  # fmt: skip


def facts(*, stream: bool = True, include_usage: bool = False, keys: tuple[str, ...] = ()) -> Facts:
    """What is known of a call at its admission."""
    return Facts(
        call_id="wtest-1", request_id="req-1", trace_id=None, tenant="acme", project="search", key_id="k1",
        tags={"cost_center": "42"}, operation=OPERATIONS["/v1/chat/completions"], model="m1",
        model_requested="alias", stream=stream, include_usage=include_usage, keys=keys,
        params=record.Params(max_tokens=16, n=1), body_bytes=100, received_ns=0, wall_offset_ns=1_800_000_000 * SECOND,
    )  # fmt: skip


LIMITS = Limits(
    connect_ns=2 * SECOND, first_event_ns=60 * SECOND, sized_answer_ns=300 * SECOND,
    between_events_ns=10 * SECOND, total_ns=600 * SECOND,
    queue_ns=10 * SECOND, keepalive_ns=0, attempts_max=3, patience_ns=(SECOND // 2, SECOND // 2),
    event_bytes_max=1 << 20, answer_bytes_max=64 << 20,
)  # fmt: skip


def plan(*tiers: tuple[Target, ...]) -> Plan:
    """A plan of these tiers, in order."""
    able = tuple(Candidate(one, number) for number, tier in enumerate(tiers) for one in tier)
    return Plan(able=able, left_out=())


class World:
    """Carries out actions and keeps the books.

    seats: backend → free seats; a backend not named has no limit. Lines are "written" by `flush`. limited: limits
    apply to the call: it is `allow`ed or `refuse`d. at_once: a free seat is taken with the admission, not asked for.
    """

    at_once = True

    def __init__(self, call: Call, *, seats: dict[str, int] | None = None, limited: bool = False) -> None:
        self.call = call
        self.now_ns = 0
        self.seats = dict(seats or {})
        self.holding: list[str] = []
        self.waiting: tuple[str, ...] = ()
        self.attempt = 0  # number of the running attempt; 0: none
        self.lines: list[object] = []
        self.unwritten: list[tuple[Callable[[], object], m.Event]] = []
        self.client = b""
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.finished = False
        self.sealed = False
        self.connects: list[str] = []
        self.aborts = 0
        self.gone = False
        self.held_back: list[tuple[str, int | None]] = []
        self.warmed: list[str] = []
        self.asking = False  # what limits have to say
        self.allowed = not limited
        self.turned_away: list[GatewayError] = []
        self.perform(call.ask(self.now_ns) if limited else call.start(self.now_ns))

    def feed(self, event: m.Event) -> None:
        """Give the machine an event and carry out what it says."""
        if isinstance(event, m.End | m.Whole | m.Lost) and event.attempt == self.attempt:
            self.attempt = 0
        self.gone = self.gone or (isinstance(event, m.ClientGone) and not self.finished)
        self.perform(self.call.handle(event, self.now_ns))
        self.check_clock()

    def perform(self, actions: Sequence[m.Action]) -> None:
        """Carry out actions; each is checked against the books."""
        for action in actions:
            assert not self.finished, f"{action} after the end"
            getattr(self, f"_{type(action).__name__.lower()}")(action)

    def allow(self) -> None:
        """The limits have room."""
        assert self.asking
        self.asking, self.allowed = False, True
        self.feed(m.Allowed())

    def refuse(self) -> None:
        """They have none."""
        assert self.asking
        self.asking = False
        self.feed(m.Refused(error=NO_ROOM))

    def flush(self) -> None:
        """The turn's write: lines are made, then whoever waits for them is told."""
        entries, self.unwritten = self.unwritten, []
        for make, _ in entries:
            self.lines.append(make())
        for _, written in entries:
            self.sealed = self.sealed or isinstance(written, m.Sealed)
            self.feed(self._seated() if self.at_once and isinstance(written, m.Admitted) else written)

    def _seated(self) -> m.Event:
        """A free seat is taken with the admission, if there is one."""
        for backend in self.call.wanted:
            if self.seats.get(backend, 1) > 0:
                self.holding.append(backend)
                return m.Seated(backend=backend)
        return m.Admitted()

    def fail_flush(self) -> None:
        """The turn's write fails."""
        entries, self.unwritten = self.unwritten, []
        for _ in entries:
            self.feed(m.Unrecorded())

    def tick(self) -> None:
        """Let time pass up to the call's deadline, and say so."""
        if self.call.deadline_ns is not None:
            self.now_ns = max(self.now_ns, self.call.deadline_ns)
        self.feed(m.Timer())

    def grant(self, backend: str) -> None:
        """A seat came free and is this call's."""
        assert backend in self.waiting
        self.waiting = ()
        self.holding.append(backend)
        self.feed(m.Granted(backend=backend))

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], *pieces: bytes) -> None:
        """The running attempt connects and answers, as far as the machine still listens."""
        number = self.attempt
        self.feed(m.Connected(number))
        self.feed(m.Head(number, status=status, headers=headers))
        for piece in pieces:
            if self.attempt == number:
                self.feed(m.Data(number, data=piece))

    def end(self) -> None:
        """The running attempt's answer is complete."""
        if self.attempt:
            self.feed(m.End(self.attempt))

    def run_on(self) -> None:
        """Let the world go on until the call is over: lines are written, attempts break off, deadlines pass."""
        for _ in range(100):
            if self.finished:
                return
            if self.unwritten:
                self.flush()
            elif self.attempt:
                self.feed(m.Lost(self.attempt, error=BackendDisconnected("x", "disconnected")))
            else:
                self.tick()
        raise AssertionError(f"stuck in {self.call.state.name}")

    def check_clock(self) -> None:
        """Whoever waits for somebody else does so until a time that is to come, and not for longer than it may."""
        if self.finished or self.unwritten:
            return
        deadline_ns = self.call.deadline_ns
        assert deadline_ns is not None, f"{self.call.state.name} may last for ever"
        assert deadline_ns <= self.call.total_deadline_ns + END_WAIT_NS

    def check_books(self) -> None:
        """After the end: one record for the admission, no seat held, no attempt running, nobody waiting."""
        assert self.finished
        assert self.holding == []
        assert self.attempt == 0
        assert self.waiting == ()
        assert self.unwritten == []
        assert not self.asking, "nobody waits for what the limits say"
        kinds = [type(line).__name__ for line in self.lines]
        assert kinds == ["Admitted", "CallRecord"], kinds
        self._check_record(self.record)

    def _check_record(self, line: record.CallRecord) -> None:
        """The record says what the world saw."""
        assert [attempt.backend for attempt in line.attempts] == self.connects
        assert len(set(self.connects)) == len(self.connects) <= self.call.limits.attempts_max
        assert line.status == self.status
        if not self.gone:
            assert line.response_bytes == len(self.client)
            assert line.outcome is not record.Outcome.CLIENT_GONE
        elif line.outcome is record.Outcome.COMPLETED:
            raise AssertionError("completed, and nobody was there")
        if line.cost_pusd is not None and line.outcome in (record.Outcome.SHED, record.Outcome.REFUSED):
            assert line.cost_pusd == 0

    @property
    def record(self) -> record.CallRecord:
        """The record that was written."""
        found = [line for line in self.lines if isinstance(line, record.CallRecord)]
        assert len(found) == 1
        return found[0]

    # -- actions

    def _asklimits(self, _action: m.AskLimits) -> None:
        assert not self.asking
        self.asking = True

    def _giveup(self, _action: m.GiveUp) -> None:
        assert self.asking, "nothing to give up"
        self.asking = False

    def _turnaway(self, action: m.TurnAway) -> None:
        assert not self.allowed, "refused, and room is held for it"
        self.turned_away.append(action.error)

    def _admit(self, _action: m.Admit) -> None:
        assert self.allowed, "admitted without room"
        self.unwritten.append((lambda: self.call.admitted(2, "0" * 64), m.Admitted()))

    def _ask(self, action: m.Ask) -> None:
        for backend in action.wants:
            if self.seats.get(backend, 1) > 0:
                self.waiting = action.wants
                self.grant(backend)
                return
        self.waiting = action.wants

    def _leave(self, _action: m.Leave) -> None:
        self.waiting = ()

    def _connect(self, action: m.Connect) -> None:
        assert self.attempt == 0, "two attempts at once"
        assert any(isinstance(line, record.Admitted) for line in self.lines), "sent before it was admitted"
        assert action.target.name in self.holding
        self.attempt = action.attempt
        self.connects.append(action.target.name)

    def _abort(self, _action: m.Abort) -> None:
        assert self.attempt, "nothing to abort"
        self.attempt = 0
        self.aborts += 1

    def _release(self, action: m.Release) -> None:
        running = self.connects[-1] if self.attempt else None
        assert action.backend != running, "a seat was given back under a running attempt"
        self.holding.remove(action.backend)

    def _connectfailed(self, _action: m.ConnectFailed) -> None:
        pass

    def _holdback(self, action: m.HoldBack) -> None:
        assert action.status in (429, 503)
        self.held_back.append((action.backend, action.retry_after_s))

    def _answered(self, action: m.Answered) -> None:
        self.warmed.append(action.backend)

    def _open(self, action: m.Open) -> None:
        assert self.status is None, "a second head"
        self.status, self.headers = action.status, dict(action.headers)

    def _write(self, action: m.Write) -> None:
        assert self.status is not None, "a body before its head"
        assert not self.gone, "written to nobody"
        self.client += action.data

    def _reply(self, action: m.Reply) -> None:
        self._open(m.Open(action.status, action.lines))
        self._finish(m.Finish(action.data))

    def _seal(self, _action: m.Seal) -> None:
        self.unwritten.append((lambda: self.call.record(3, "1" * 64, self.now_ns), m.Sealed()))

    def _finish(self, action: m.Finish) -> None:
        assert self.gone or self.status is not None, "an end without a head"
        assert not (self.gone and action.data), "written to nobody"
        self.client += action.data
        self.finished = True
