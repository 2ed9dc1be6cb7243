"""The call as a machine: events in, actions out. Pure: time is an argument, chance is not needed.

A driver (relay.py) feeds events and carries out actions; it decides nothing. All transitions stand in TABLE.

    ASKING ─▶ ADMITTING                                                               only where limits apply
       └─────────────────────────────────────────────────────────────────────▶ DONE   refused: a line, no call

    ADMITTING ─▶ QUEUED ─▶ CONNECTING ─▶ WAITING ─┬▶ HELD ─▶ STREAMING ─▶ ENDING ─┐   a stream
                   ▲            │          │      ├▶ SIZED ──────────────────────┼▶ SEALING ─▶ DONE
                   └────────────┴──────────┴──────┴▶ REJECTED ───────────────────┘   a 4xx, a 500
                    the next attempt: only before the commit point

A seat that is free when the `admitted` line is in the file is taken at once: from ADMITTING to CONNECTING in one step.

The commit point is the entry into STREAMING (the first event with choices) or the end of a sized body, which is
held whole: until then nothing of an answer has gone to the client and another backend may be tried; after it, never.
From DRAINING (the client left when only the usage event was due) it goes to SEALING too.

A stream that is silent for `keepalive_ns` gets a comment, wherever the call is. The first one sends the head, and
commits to nothing; a failure can from then on only be said by an event.

Seal, then release: `Seal` puts the record into this turn's write; the end of the answer leaves on `Sealed`, not before.
The outcome is decided by `record()`, which the flush calls: a client that left before it is `client_gone`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backends import dialects, retry_after
from backends.answers import reader_for
from backends.errors import (
    BackendDisconnected,
    BackendError,
    BackendFaulted,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
)
from backends.reader import StreamReader
from backends.sized import packed_headers, read_packed, read_sized
from gateway.api import errors
from gateway.api.errors import GatewayError
from gateway.calls import heads, routing
from gateway.calls.events import (
    Abort,
    Action,
    Admit,
    Admitted,
    Allowed,
    Answered,
    Ask,
    AskLimits,
    ClientGone,
    Connect,
    Connected,
    ConnectFailed,
    Data,
    End,
    Event,
    Finish,
    GiveUp,
    Granted,
    Head,
    Headers,
    HoldBack,
    Leave,
    Lost,
    Open,
    Refused,
    Release,
    Reply,
    Seal,
    Sealed,
    Seated,
    State,
    Stopping,
    Timer,
    TurnAway,
    Unrecorded,
    Whole,
    Write,
)
from gateway.calls.routing import Busy, Course, Plan, Step
from gateway.calls.tally import Facts, Tally
from metering import record, units
from metering.record import AttemptOutcome, CallRecord, Outcome

END_WAIT_NS = units.NS_PER_S
"""How long the backend's end is waited for after [DONE], and its usage after the client has gone."""

REJECTED_BYTES_MAX = 1024 * 1024

INTERNAL_ERROR = 500
"""It is read too: some servers say so that a prompt is too long."""

OUR_KEY_REFUSED = (401, 403)
"""A backend's answers that are about the gateway's key, not about the request."""


(
    ADMITTING,
    QUEUED,
    CONNECTING,
    WAITING,
    HELD,
    SIZED,
    REJECTED,
    STREAMING,
    ENDING,
    DRAINING,
    SEALING,
    DONE,
    ASKING,
) = State

_SPEAKING = frozenset({QUEUED, CONNECTING, WAITING, HELD, STREAMING})
"""Where a stream that has been silent for too long gets a comment."""

_APART = frozenset({ASKING, QUEUED, CONNECTING, ENDING, DRAINING})
"""Where what is waited for does not depend on how fast the client takes what it gets."""

_ANSWERING = frozenset({HELD, REJECTED, STREAMING, ENDING})
"""Where an answer that is not sized is being read."""

_NEVER_NS = 2**63
"""Later than any clock."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines in nanoseconds, patience_ns by tier; bytes of one event, and of an answer that is held whole.

    sized_answer_ns: until the first byte of a generated answer that is not streamed; first_event_ns: of any other.
    keepalive_ns: the longest silence of a stream; 0: no comments.
    """

    connect_ns: int
    first_event_ns: int
    sized_answer_ns: int
    between_events_ns: int
    total_ns: int
    queue_ns: int
    keepalive_ns: int
    attempts_max: int
    patience_ns: tuple[int, ...]
    event_bytes_max: int
    answer_bytes_max: int


class _Result(msgspec.Struct, gc=False):
    """How the call will end, once sealed. head: to be sent first; None: it has been. tail: the last bytes."""

    outcome: Outcome
    status: int | None
    error_code: str | None
    head: Open | None
    tail: bytes


Actions = Sequence[Action]
Handler = Callable[["Call", Any, int], Actions]

_NOTHING: Actions = ()
_ADMIT: Actions = (Admit(),)
_ASK_LIMITS: Actions = (AskLimits(),)
_SEAL: Actions = (Seal(),)
_GONE: Actions = (Finish(b""),)


class Call:
    """One request and its answer. total_deadline_ns: when it must be over, wherever it is (monotonic)."""

    __slots__ = (
        "_asked_ns", "_body", "_body_bytes", "_busy", "_comment_ns", "_committed", "_course", "_due_ns", "_events_seen",
        "_gone", "_number", "_opened", "_packed", "_queue_deadline_ns", "_reader", "_result", "_silence_ns", "_stop",
        "_tally", "facts", "limits", "state", "total_deadline_ns",
    )  # fmt: skip

    _asked_ns: int  # when a seat was asked for last
    _queue_deadline_ns: int
    _body: list[bytes]  # of an answer that is held; from its head on
    _body_bytes: int
    _packed: Headers | None  # of a sized answer that is not JSON: what describes it
    _events_seen: int  # of a stream; from its head on

    def __init__(self, facts: Facts, plan: Plan, limits: Limits) -> None:
        self.facts = facts
        self.limits = limits
        self.state = ADMITTING
        self.total_deadline_ns = facts.received_ns + limits.total_ns
        self._course = Course(plan, limits.patience_ns)
        self._tally = Tally(facts, plan)
        self._number = 0  # of the running attempt
        self._due_ns = _NEVER_NS
        self._silence_ns = limits.keepalive_ns if facts.stream else 0  # the longest; 0: any
        self._comment_ns = _NEVER_NS  # when the stream has been silent for too long
        self._reader: StreamReader | None = None
        self._opened = False  # the head has gone to the client
        self._committed = False
        self._gone = False
        self._busy: tuple[Busy, ...] = ()  # what was said by those that took no call
        self._stop: GatewayError | None = None
        self._result: _Result | None = None

    @property
    def deadline_ns(self) -> int | None:
        """When the driver must feed `Timer` (monotonic); None: never, as it stands."""
        self._catch_up()
        due_ns = self._due_ns
        if self._comment_ns < due_ns and self.state in _SPEAKING:
            due_ns = self._comment_ns
        return None if due_ns == _NEVER_NS else due_ns

    @property
    def unread_deadline_ns(self) -> int:
        """The same while a slow client keeps its backend from being read: that one's silence is not its fault.

        As long as no backend has been reached, and once all of the answer has been read or the client has left, there
        is nobody to be patient with.
        """
        return self._due_ns if self.state in _APART else self.total_deadline_ns

    def start(self, now_ns: int) -> Actions:
        """Begin: the `admitted` line goes into this turn's write."""
        self._tally.admitted_ns = now_ns
        if self._silence_ns:  # as `_spoken`, for each call
            self._comment_ns = now_ns + self._silence_ns
        self._course.set_out()
        return _ADMIT

    @property
    def wanted(self) -> tuple[str, ...]:
        """Where a seat is to be asked for, the best first; from `start` on."""
        return self._course.wants()

    def ask(self, now_ns: int) -> Actions:
        """Begin where limits apply: `start` follows once they have room."""
        self.state = ASKING
        self._due_ns = self._within_total(now_ns + self.limits.queue_ns)
        return _ASK_LIMITS

    def handle(self, event: Event, now_ns: int) -> Actions:
        """Take an event; return what is to be done, in order. Events of a past attempt are ignored."""
        if event.attempt and event.attempt != self._number:
            return _NOTHING
        return _ROWS[self.state][type(event)](self, event, now_ns)

    def passes(self, attempt: int, data: bytes, at: int, upto: int, now_ns: int) -> bool:
        """May data[at:upto] of the backend go to the client as it is, with nothing else to be done?

        It is `Data` for what makes up most of a stream: whole events that hold tokens and nothing else. True: they
        have been taken in, as `handle` would, which would answer with one `Write` of them.
        """
        if self.state is not STREAMING or attempt != self._number:
            return False
        assert self._reader is not None
        if not self._reader.passes(data, at, upto):
            return False
        tally = self._tally
        tally.response_bytes += upto - at
        tally.last_token_ns = now_ns
        return True

    def _catch_up(self) -> None:
        """Move the deadlines on by what has passed: `passes` leaves that to those who look at them."""
        passed_ns = self._tally.last_token_ns
        if self.state is STREAMING and passed_ns is not None:
            due_ns = self._within_total(passed_ns + self.limits.between_events_ns)
            self._due_ns = max(self._due_ns, due_ns)
            if self._silence_ns:
                self._comment_ns = max(self._comment_ns, passed_ns + self._silence_ns)

    def _within_total(self, due_ns: int) -> int:
        """This deadline, or the call's own if that comes first."""
        total_ns = self.total_deadline_ns
        return due_ns if due_ns < total_ns else total_ns  # cheaper than `min`, three times a call

    # -- limits

    def _allowed(self, _event: Allowed, now_ns: int) -> Actions:
        self.state, self._due_ns = ADMITTING, _NEVER_NS
        return self.start(now_ns)

    def _refused(self, event: Refused, _now_ns: int) -> Actions:
        return self._turn_away(event.error)

    def _turn_away(self, error: GatewayError) -> Actions:
        """An answer and a line; there is no call."""
        self.state, self._due_ns = DONE, _NEVER_NS
        head, body = heads.refusal(error, self.facts)
        return (TurnAway(error=error), head, Finish(body))

    def _unanswered(self, _event: Timer, now_ns: int) -> Actions:
        if now_ns < self._due_ns:
            return _NOTHING
        error = errors.LimitsUnavailable(
            "the limits of this key could not be looked at in time", retry_after_s=1
        )
        return (GiveUp(), *self._turn_away(error))

    def _gone_asking(self, _event: ClientGone, _now_ns: int) -> Actions:
        """Nothing was admitted, and nobody was refused: there is no line."""
        self.state, self._due_ns = DONE, _NEVER_NS
        return (GiveUp(), *_GONE)

    def _stopping_asking(self, event: Stopping, _now_ns: int) -> Actions:
        return (GiveUp(), *self._turn_away(event.error))

    # -- admission and queue

    def _admitted(self, _event: Admitted | Seated, now_ns: int) -> Actions:
        if self._gone:
            return self._conclude_gone()
        if self._stop is not None:
            return self._conclude_with(self._stop, Outcome.BACKEND_FAILED)
        return self._queue(now_ns)

    def _seated(self, event: Seated, now_ns: int) -> Actions:
        if self._gone or self._stop is not None:
            return (Release(event.backend), *self._admitted(event, now_ns))
        self._asked_ns = now_ns
        return self._granted(event, now_ns)

    def _not_admitted(self, _event: Unrecorded, _now_ns: int) -> Actions:
        self.state = DONE
        return self._answer(errors.JournalFull("the call could not be recorded; try again", retry_after_s=5))

    def _queue(self, now_ns: int) -> Actions:
        """Ask for a seat in the lowest tier that has somebody untried."""
        self.state = QUEUED
        self._asked_ns = now_ns
        self._due_ns = self._queue_deadline_ns = self._within_total(now_ns + self.limits.queue_ns)
        return self._ask(self._course.set_out(), now_ns)

    def _ask(self, patience_ns: int | None, now_ns: int) -> Actions:
        if patience_ns is not None:
            self._due_ns = min(self._queue_deadline_ns, now_ns + patience_ns)
        return (Ask(self._course.wants()),)

    def _waited(self, now_ns: int) -> Actions:
        """Patience is over: spill to the next tier; or there is no time left: shed."""
        if self._course.patience_ns is not None and now_ns < self._queue_deadline_ns:
            self._course.spill()
            self._due_ns = self._queue_deadline_ns
            return self._ask(self._course.patience_ns, now_ns)
        self._tally.queue_wait_ns += now_ns - self._asked_ns
        error = errors.NoBackend("all servers of this model are full; try again", retry_after_s=1)
        return [Leave(), *self._conclude_with(error, Outcome.SHED)]

    def _granted(self, event: Granted | Seated, now_ns: int) -> Actions:
        course, tally = self._course, self._tally
        candidate = course.take(event.backend)
        tally.spill = "full" if candidate.tier > course.base_tier else None
        tally.queue_wait_ns += now_ns - self._asked_ns
        tally.begin_attempt(candidate.target, candidate.tier, now_ns)
        self._number += 1
        self._reader = None  # of an attempt before this one
        self.state = CONNECTING
        self._due_ns = self._within_total(now_ns + self.limits.connect_ns)
        return (Connect(candidate.target, self._number),)

    # -- time

    def _timer(self, event: Timer, now_ns: int) -> Actions:
        """A wait is over, or a stream has been silent for too long."""
        self._catch_up()
        if now_ns < self._due_ns and now_ns >= self._comment_ns:
            return self._keep_alive(now_ns)
        return self._overdue(event, now_ns)

    def _overdue(self, _event: Timer, now_ns: int) -> Actions:
        if now_ns < self._due_ns:
            return _NOTHING
        if self.state is QUEUED:
            return self._waited(now_ns)
        if self.state is CONNECTING:
            return self._fail(BackendUnavailable(self._backend, "connect timeout"), now_ns)
        return self._fail(BackendTimeout(self._backend, "timeout"), now_ns)

    def _spoken(self, now_ns: int) -> None:
        """The client hears something, or begins to wait: from here its silence is counted."""
        if self._silence_ns:
            self._comment_ns = now_ns + self._silence_ns

    def _keep_alive(self, now_ns: int) -> Actions:
        """A comment, so that nobody between here and the client takes the silence for an end."""
        self._spoken(now_ns)
        if self._torn:
            return _NOTHING  # within an event a comment is a part of it
        self._tally.response_bytes += len(heads.KEEPALIVE)
        comment = Write(heads.KEEPALIVE)
        if self._opened:
            return (comment,)
        self._opened = True
        return (heads.waiting_head(self.facts), comment)

    @property
    def _torn(self) -> bool:
        """Is a part of an event that has not ended with the client?"""
        return self._committed and self._reader is not None and self._reader.torn

    @property
    def _backend(self) -> str:
        """The name of the running attempt's backend."""
        assert self._tally.target is not None
        return self._tally.target.name

    # -- the attempt, before the commit point

    def _connected(self, _event: Connected, now_ns: int) -> Actions:
        tally, facts, limits = self._tally, self.facts, self.limits
        if tally.dispatched_ns is None:
            tally.dispatched_ns = now_ns
        if self.state is WAITING:
            tally.reconnected = True  # once more: a reused connection was dead
        self.state = WAITING
        first_ns = limits.first_event_ns
        if not facts.stream and facts.operation.answer.generates:
            first_ns = limits.sized_answer_ns  # it comes when all of it is generated
        self._due_ns = self._within_total(now_ns + first_ns)
        return _NOTHING

    def _whole(self, event: Whole, now_ns: int) -> Actions:
        """All of the answer at once: as its head, its body and its end, one behind the other."""
        data, facts = event.data, self.facts
        if (  # a good answer in JSON, not too long, to a call that wants no stream: as nearly all are
            not facts.stream
            and 200 <= event.status < 300
            and 0 < len(data) <= self.limits.answer_bytes_max
            and packed_headers(facts.operation.answer, event.headers) is None
        ):
            self._tally.status = event.status
            self._tally.first_event_ns = now_ns
            return self._take_sized(data, None, now_ns)
        actions = self._head(event, now_ns)
        if self.state is SIZED:
            actions = (event.data and self._gather(event, now_ns)) or self._sized_end(event, now_ns)
        if event.data and self.state in _ANSWERING:
            actions = [*actions, *self.handle(Data(event.attempt, data=event.data), now_ns)]
        if self.state in _ANSWERING:
            actions = [*actions, *self.handle(End(event.attempt), now_ns)]
        return [action for action in actions if type(action) is not Abort]  # its connection is over

    def _head(self, event: Head | Whole, now_ns: int) -> Actions:
        self._tally.status = event.status
        self._body, self._body_bytes, self._events_seen = [], 0, 0
        if 200 <= event.status < 300:
            if self.facts.stream and _is_event_stream(event.headers):
                self._reader = reader_for(
                    self.facts.operation.answer,
                    strip_usage=not self.facts.include_usage,
                    event_bytes_max=self.limits.event_bytes_max,
                )
                self.state = HELD
            elif self._opened:
                return self._fail(BackendFaulted(self._backend, "answer not a stream"), now_ns)
            else:
                self.state = SIZED
                self._packed = packed_headers(self.facts.operation.answer, event.headers)
            return _NOTHING
        reason = f"status {event.status}"
        if event.status in (429, 503):
            wait_s = retry_after.read(event.headers, (now_ns + self.facts.wall_offset_ns) // units.NS_PER_S)
            busy = BackendUnavailable(self._backend, reason, status=event.status, retry_after_s=wait_s)
            return self._fail(busy, now_ns)
        if event.status == INTERNAL_ERROR or (
            400 <= event.status < 500 and event.status not in OUR_KEY_REFUSED
        ):
            self.state = REJECTED
            self._due_ns = self._within_total(now_ns + END_WAIT_NS)
            return _NOTHING
        return self._fail(BackendFaulted(self._backend, reason), now_ns)

    def _held_data(self, event: Data, now_ns: int) -> Actions:
        assert self._reader is not None
        out = self._reader.feed(event.data)
        if self._tally.first_event_ns is None and self._reader.events:
            self._tally.first_event_ns = now_ns
        if out:
            self._body.append(out)
        if self._reader.committed:  # an error that came in the same read comes after it
            return self._commit(now_ns)
        if self._reader.error is not None:
            return self._fail(self._faulty_event(), now_ns)
        if self._reader.done:
            return self._fail(BackendFaulted(self._backend, "empty stream"), now_ns)
        return self._gather_limit(len(event.data), now_ns)

    def _commit(self, now_ns: int) -> Actions:
        """From here on the answer is this backend's."""
        self.state = STREAMING
        self._tally.served = self._committed = True
        held = b"".join(self._body)
        self._body = []
        actions: list[Action] = self._answered()
        if not self._opened:
            self._opened = True
            actions.append(heads.stream_head(self.facts, self._tally))
        return [*actions, *self._read(held, now_ns)]

    def _answered(self) -> list[Action]:
        assert self._tally.target is not None
        return [Answered(self._backend)] if self._tally.target.cold else []

    def _gather(self, event: Data | Whole, now_ns: int) -> Actions:
        self._tally.first_event_ns = self._tally.first_event_ns or now_ns
        self._due_ns = self._within_total(now_ns + self.limits.between_events_ns)
        self._body.append(event.data)
        return self._gather_limit(len(event.data), now_ns)

    def _gather_page(self, event: Data, now_ns: int) -> Actions:
        self._body.append(event.data)
        return self._gather_limit(len(event.data), now_ns)

    def _faulty_event(self) -> BackendFaulted:
        assert self._reader is not None
        return BackendFaulted(self._backend, "event too large" if self._reader.too_large else "error event")

    def _gather_limit(self, more_bytes: int, now_ns: int) -> Actions:
        self._body_bytes += more_bytes
        limit = REJECTED_BYTES_MAX if self.state is REJECTED else self.limits.answer_bytes_max
        if self._body_bytes > limit:
            return self._fail(BackendFaulted(self._backend, "answer too large"), now_ns)
        return _NOTHING

    def _held_end(self, _event: End, now_ns: int) -> Actions:
        """The whole stream came before the commit point: a last event without its blank line may still commit."""
        assert self._reader is not None
        self._reader.close()
        if self._reader.error is not None or not self._reader.finish_reasons:
            return self._fail(BackendFaulted(self._backend, "empty stream"), now_ns, ended=True)
        return [*self._commit(now_ns), *self._complete(now_ns, ended=True)]

    def _sized_end(self, _event: End | Whole, now_ns: int) -> Actions:
        return self._take_sized(b"".join(self._body), self._packed, now_ns)

    def _take_sized(self, body: bytes, packed: Headers | None, now_ns: int) -> Actions:
        """All of an answer's body has come. packed: what describes it, if it is not JSON."""
        kind = self.facts.operation.answer
        answer = read_sized(kind, body) if packed is None else read_packed(kind, packed, body)
        if not answer.ok:
            return self._fail(BackendFaulted(self._backend, "answer not readable"), now_ns, ended=True)
        tally = self._tally
        tally.served = True
        tally.read_answer(answer)
        released = self._end_attempt(AttemptOutcome.COMPLETED, None, now_ns, ended=True)
        head = heads.sized_head(200, self.facts, tally, len(body), packed)
        self._conclude(Outcome.COMPLETED, 200, None, head=head, tail=body)
        assert tally.target is not None
        return (*self._answered(), *released, *_SEAL) if tally.target.cold else (*released, *_SEAL)

    def _rejected_over(self, event: End | Lost | Timer, now_ns: int) -> Actions:
        """The page that says why has come, or as much of it as will: the status alone is an answer."""
        status, body = self._tally.status, b"".join(self._body)
        assert status is not None
        error: BackendError
        if status == INTERNAL_ERROR:
            error = BackendFaulted(self._backend, f"status {status}")
            error.context_length = dialects.names_context_length(body)
        else:
            error = BackendRejected(self._backend, f"status {status}")
            error.context_length = dialects.is_context_length(status, body)
        return self._fail(error, now_ns, ended=not isinstance(event, Timer), body=body)

    def _lost(self, event: Lost, now_ns: int) -> Actions:
        return self._fail(event.error, now_ns, ended=True)

    def _fail(
        self, error: BackendError, now_ns: int, *, ended: bool = False, body: bytes | None = None
    ) -> Actions:
        """The attempt failed: try another backend, or give up. ended: the connection is over already.

        body: of a rejected request's answer, which is the client's to read.
        """
        # Before the seat is given back: who gets it should know.
        news = self._news(error) if isinstance(error, BackendUnavailable) else _NOTHING
        actions = [*news, *self._end_attempt(_attempt_outcome(error), error.reason, now_ns, ended=ended)]
        longer = error.context_length and self._outgrow()
        untried = len(self._course) if now_ns < self.total_deadline_ns else 0
        left = max(min(self.limits.attempts_max - len(self._tally.attempts), untried), 0)
        step = routing.after(error, committed=self._committed, attempts_left=left, longer_wall=longer)
        if step is not Step.GIVE_UP:
            self._tally.fallback = routing.TOO_LONG if step is Step.LONGER_WALL else error.reason
            self._tally.spill = None
            return [*actions, *self._queue(now_ns)]
        return [*actions, *self._give_up(error, body)]

    def _outgrow(self) -> bool:
        assert self._tally.target is not None
        return self._course.outgrow(self._tally.target.max_model_len or 0)

    def _news(self, error: BackendUnavailable) -> Actions:
        """What the registry should know of a backend that took no call."""
        if error.status is None:
            return (ConnectFailed(error.backend, error.reason),)
        self._busy += (Busy(status=error.status, retry_after_s=error.retry_after_s),)
        if self._tally.status is None:
            return _NOTHING  # it is held back already: it was not even asked
        return (HoldBack(error.backend, error.status, error.retry_after_s),)

    def _give_up(self, error: BackendError, body: bytes | None) -> Actions:
        if isinstance(error, BackendRejected):
            assert self._tally.status is not None
            if self._opened:
                refusal = errors.rejection(self._tally.status, body or b"")
                return self._conclude(Outcome.REFUSED, 200, refusal.code, tail=self._error_event(refusal))
            tail, code = errors.rejected(self._tally.status, body or b"", self.facts.operation.errors)
            head = heads.sized_head(self._tally.status, self.facts, self._tally, len(tail))
            return self._conclude(Outcome.REFUSED, self._tally.status, code, head=head, tail=tail)
        if isinstance(error, BackendUnavailable) and self._busy:
            plan, attempts = self._tally.plan, self._tally.attempts
            all_busy = (len(self._busy), len(plan.busy)) == (len(attempts), len(plan.left_out))
            refusal = routing.turned_away([*self._busy, *plan.busy], all_busy=all_busy)
            return self._conclude_with(refusal, Outcome.BACKEND_FAILED)
        timed_out = isinstance(error, BackendTimeout)
        outcome = Outcome.TIMED_OUT if timed_out else Outcome.BACKEND_FAILED
        return self._conclude_with(errors.from_backend(error), outcome)

    # -- after the commit point

    def _stream_data(self, event: Data, now_ns: int) -> Actions:
        assert self._reader is not None
        return self._read(self._reader.feed(event.data), now_ns)

    def _read(self, out: bytes, now_ns: int) -> Actions:
        """After a read: pass on what may go, and see where the stream stands."""
        reader = self._reader
        assert reader is not None
        actions: Actions = _NOTHING
        if out:
            self._tally.response_bytes += len(out)
            self._spoken(now_ns)
            actions = (Write(out),)
        if reader.events != self._events_seen:  # a comment is no sign of life
            self._events_seen = reader.events
            self._due_ns = self._within_total(now_ns + self.limits.between_events_ns)
            if reader.token:
                self._tally.note_tokens(now_ns, finished=bool(reader.finish_reasons))
        if reader.error is not None:
            return [*actions, *self._fail(self._faulty_event(), now_ns)]
        if reader.done:
            self.state = ENDING
            self._due_ns = now_ns + END_WAIT_NS
        return actions

    def _stream_end(self, _event: End, now_ns: int) -> Actions:
        """The backend's body ended cleanly; it is an answer only if it says why it finished."""
        assert self._reader is not None
        self._reader.close()
        if self._reader.error is not None:
            return self._fail(self._faulty_event(), now_ns, ended=True)
        if not self._reader.finish_reasons and not self._reader.done:
            return self._fail(BackendDisconnected(self._backend, "ended early"), now_ns, ended=True)
        return self._complete(now_ns, ended=True)

    def _ending_data(self, event: Data, _now_ns: int) -> Actions:
        assert self._reader is not None
        self._reader.feed(event.data)  # dropped, and counted as mended
        return _NOTHING

    def _ending_over(self, _event: Event, now_ns: int) -> Actions:
        """[DONE] was seen; the connection's end, or its absence, changes nothing."""
        return self._complete(now_ns, ended=isinstance(_event, End | Lost))

    def _complete(self, now_ns: int, *, ended: bool) -> Actions:
        assert self._reader is not None
        released = self._end_attempt(AttemptOutcome.COMPLETED, None, now_ns, ended=ended)
        return [*released, *self._conclude(Outcome.COMPLETED, 200, None, tail=self._reader.end)]

    # -- the client has gone, the gateway stops

    def _gone_early(self, _event: ClientGone, _now_ns: int) -> Actions:
        self._gone = True
        return _NOTHING

    def _gone_queued(self, _event: ClientGone, now_ns: int) -> Actions:
        self._gone = True
        self._tally.queue_wait_ns += now_ns - self._asked_ns
        return [Leave(), *self._conclude_gone()]

    def _gone_in_attempt(self, _event: ClientGone, now_ns: int) -> Actions:
        """Stop the backend at once, unless only its usage is due."""
        self._gone = True
        if self._only_usage_due:
            self.state = DRAINING
            self._due_ns = now_ns + END_WAIT_NS
            return _NOTHING
        self._tally.served = self.state not in (CONNECTING, REJECTED)  # the work was begun for this client
        if self._tally.served and self._reader is None:
            self._tally.read_nothing()
        released = self._end_attempt(AttemptOutcome.CLIENT_GONE, None, now_ns, ended=False)
        return [*released, *self._conclude_gone()]

    def _conclude_gone(self) -> Actions:
        return self._conclude(Outcome.CLIENT_GONE, None, None)

    @property
    def _only_usage_due(self) -> bool:
        if self.state is not STREAMING:
            return False
        assert self._reader is not None
        return len(self._reader.finish_reasons) >= (self.facts.params.n or 1)

    def _gone_ending(self, _event: ClientGone, now_ns: int) -> Actions:
        self._gone = True
        return self._drained(_event, now_ns)

    def _draining_data(self, event: Data, now_ns: int) -> Actions:
        assert self._reader is not None
        self._reader.feed(event.data)
        return self._drained(event, now_ns) if self._reader.done else _NOTHING

    def _drained(self, event: Event, now_ns: int) -> Actions:
        assert self._reader is not None
        if isinstance(event, End):
            self._reader.close()  # its last event may lack its blank line, and hold the usage
        ended = isinstance(event, End | Lost)
        released = self._end_attempt(AttemptOutcome.CLIENT_GONE, None, now_ns, ended=ended)
        return [*released, *self._conclude_gone()]

    def _stopping_early(self, event: Stopping, _now_ns: int) -> Actions:
        self._stop = event.error
        return _NOTHING

    def _stopping_queued(self, event: Stopping, now_ns: int) -> Actions:
        self._tally.queue_wait_ns += now_ns - self._asked_ns
        return [Leave(), *self._conclude_with(event.error, Outcome.BACKEND_FAILED)]

    def _stopping(self, event: Stopping, now_ns: int) -> Actions:
        released = self._end_attempt(AttemptOutcome.FAILED, event.error.code or "fault", now_ns, ended=False)
        return [*released, *self._conclude_with(event.error, Outcome.BACKEND_FAILED)]

    # -- the end

    def _end_attempt(
        self, outcome: AttemptOutcome, reason: str | None, now_ns: int, *, ended: bool
    ) -> list[Action]:
        """Close the books of the running attempt; its seat goes back at once."""
        tally = self._tally
        if self._reader is not None:
            tally.read_stream(self._reader)
        tally.end_attempt(outcome, reason, now_ns)
        assert tally.target is not None
        release = Release(tally.target.name)
        return [release] if ended else [Abort(), release]

    def _conclude_with(self, error: GatewayError, outcome: Outcome) -> Actions:
        """End with an error of ours: as an answer if nothing has been sent, else as an event in the stream."""
        if self._opened:
            return self._conclude(outcome, 200, error.code, tail=self._error_event(error))
        head, body = heads.error(error, self.facts)
        return self._conclude(outcome, int(error.status), error.code, head=head, tail=body)

    def _conclude(
        self,
        outcome: Outcome,
        status: int | None,
        code: str | None,
        *,
        head: Open | None = None,
        tail: bytes = b"",
    ) -> Actions:
        self.state = SEALING
        self._due_ns = _NEVER_NS
        self._result = _Result(outcome, status, code, head, tail)
        return _SEAL

    def _sealed(self, _event: Sealed, _now_ns: int) -> Actions:
        """The record is in the file: now the end may leave."""
        self.state = DONE
        result = self._result
        assert result is not None
        if self._gone:
            return _GONE
        head = result.head
        return (Finish(result.tail),) if head is None else (Reply(head.status, head.lines, result.tail),)

    def _unsealed(self, _event: Unrecorded, _now_ns: int) -> Actions:
        """The record was lost: the client must not take this for the end of a good answer."""
        self.state = DONE
        error = errors.JournalFull("the call could not be recorded")
        if self._opened and not self._gone:
            return (Finish(self._error_event(error)),)
        return self._answer(error)

    def _error_event(self, error: GatewayError) -> bytes:
        """An error as the stream's last event; half an event that has gone out is ended first."""
        sequence = self._reader.sequence if self._committed and self._reader is not None else 0
        event = errors.error_event(error, self.facts.operation.errors, sequence=sequence)
        return (b"\n\n" if self._torn else b"") + event

    def _answer(self, error: GatewayError) -> Actions:
        if self._gone:
            return _GONE
        head, body = heads.error(error, self.facts)
        return (Reply(head.status, head.lines, body),)

    def _ignore(self, _event: Event, _now_ns: int) -> Actions:
        return _NOTHING

    # -- the lines

    def admitted(self, seq: int, prev: str) -> record.Admitted:
        """The `admitted` line."""
        return self._tally.admitted(seq, prev)

    @property
    def work(self) -> int | None:
        """What the last attempt took, in work units; None: nobody knows."""
        return self._tally.work

    @property
    def tail(self) -> bytes:
        """The last bytes of the answer's body, which leave once its record is written; none to a client that left."""
        assert self._result is not None
        return b"" if self._gone else self._result.tail

    def record(self, seq: int, prev: str, now_ns: int) -> CallRecord:
        """The fact of the call, as it stands at the flush: a client that has left by now saw no end."""
        result = self._result
        assert result is not None
        outcome, status = result.outcome, result.status
        if not self._gone:
            self._tally.response_bytes += len(result.tail)
        else:
            status = 200 if self._opened else None
            if outcome is Outcome.COMPLETED:
                outcome = Outcome.CLIENT_GONE
        return self._tally.record(outcome, status, result.error_code, now_ns, seq=seq, prev=prev)


def _is_event_stream(headers: Headers) -> bool:
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    return kind.lower().startswith(b"text/event-stream")


def _attempt_outcome(error: BackendError) -> AttemptOutcome:
    match error:
        case BackendUnavailable():
            return AttemptOutcome.UNAVAILABLE
        case BackendTimeout():
            return AttemptOutcome.TIMED_OUT
        case BackendRejected():
            return AttemptOutcome.REFUSED
    return AttemptOutcome.FAILED


def _seat_too_late(_call: Call, event: Granted, _now_ns: int) -> Actions:
    return (Release(event.backend),)


def _impossible(call: Call, event: Event, _now_ns: int) -> Actions:
    raise AssertionError(f"{type(event).__name__} in {call.state.name}")


def _table() -> dict[tuple[State, type[Event]], Handler]:
    """All pairs. What a driver cannot bring about by the order of its work is impossible; a late event is ignored."""
    c = Call
    table: dict[tuple[State, type[Event]], Handler] = {}
    for state in State:
        for event in (
            Allowed,
            Refused,
            Admitted,
            Seated,
            Connected,
            Head,
            Data,
            End,
            Whole,
            Lost,
            Sealed,
            Unrecorded,
        ):
            table[state, event] = _impossible
        for late in (Timer, ClientGone, Stopping):
            table[state, late] = c._ignore
        table[state, Granted] = _seat_too_late
    for state in (CONNECTING, WAITING, HELD, SIZED, REJECTED, STREAMING):
        table[state, Lost] = c._lost
        table[state, Timer] = c._timer if state in _SPEAKING else c._overdue
        table[state, ClientGone] = c._gone_in_attempt
        table[state, Stopping] = c._stopping
    return table | {
        (ASKING, Allowed): c._allowed,
        (ASKING, Refused): c._refused,
        (ASKING, Timer): c._unanswered,
        (ASKING, ClientGone): c._gone_asking,
        (ASKING, Stopping): c._stopping_asking,
        (ADMITTING, Admitted): c._admitted,
        (ADMITTING, Seated): c._seated,
        (ADMITTING, Unrecorded): c._not_admitted,
        (ADMITTING, ClientGone): c._gone_early,
        (ADMITTING, Stopping): c._stopping_early,
        (QUEUED, Granted): c._granted,
        (QUEUED, Timer): c._timer,
        (QUEUED, ClientGone): c._gone_queued,
        (QUEUED, Stopping): c._stopping_queued,
        (CONNECTING, Connected): c._connected,
        (WAITING, Connected): c._connected,
        (WAITING, Head): c._head,
        (WAITING, Whole): c._whole,
        (HELD, Data): c._held_data,
        (HELD, End): c._held_end,
        (SIZED, Data): c._gather,
        (SIZED, End): c._sized_end,
        (REJECTED, Data): c._gather_page,
        (REJECTED, End): c._rejected_over,
        (REJECTED, Lost): c._rejected_over,
        (REJECTED, Timer): c._rejected_over,
        (STREAMING, Data): c._stream_data,
        (STREAMING, End): c._stream_end,
        (ENDING, Data): c._ending_data,
        (ENDING, End): c._ending_over,
        (ENDING, Lost): c._ending_over,
        (ENDING, Timer): c._ending_over,
        (ENDING, ClientGone): c._gone_ending,
        (ENDING, Stopping): c._ending_over,
        (DRAINING, Data): c._draining_data,
        (DRAINING, End): c._drained,
        (DRAINING, Lost): c._drained,
        (DRAINING, Timer): c._drained,
        (DRAINING, Stopping): c._drained,
        (SEALING, ClientGone): c._gone_early,
        (SEALING, Sealed): c._sealed,
        (SEALING, Unrecorded): c._unsealed,
    }


TABLE = _table()
_ROWS = tuple([{event: TABLE[state, event] for _, event in TABLE} for state in State])
