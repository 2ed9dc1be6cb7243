"""The call as a machine: events in, actions out. Pure: time is an argument, chance is not needed.

A driver (relay.py) feeds events and carries out actions; it decides nothing. All transitions stand in TABLE.

    ADMITTING ─▶ QUEUED ─▶ CONNECTING ─▶ WAITING ─┬▶ HELD ─▶ STREAMING ─▶ ENDING ─┐   a stream
                   ▲            │          │      ├▶ SIZED ──────────────────────┼▶ SEALING ─▶ DONE
                   └────────────┴──────────┴──────┴▶ REJECTED ───────────────────┘   a 4xx
                    the next attempt: only before the commit point

The commit point is the entry into STREAMING (the first event with choices) or the end of a sized body, which is
held whole: until then nothing has gone to the client and another backend may be tried; after it, never.
From DRAINING (the client left when only the usage event was due) it goes to SEALING too.

Seal, then release: `Seal` puts the record into this turn's write; the end of the answer leaves on `Sealed`, not before.
The outcome is decided by `record()`, which the flush calls: a client that left before it is `client_gone`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from backends import dialects
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
from backends.sized import Sized, read_sized
from gateway import errors, routing, tally
from gateway.errors import GatewayError
from gateway.events import (
    Abort,
    Action,
    Admit,
    Admitted,
    Ask,
    ClientGone,
    Connect,
    Connected,
    ConnectFailed,
    Data,
    End,
    Event,
    Finish,
    Granted,
    Head,
    Leave,
    Lost,
    Open,
    Release,
    Seal,
    Sealed,
    State,
    Stopping,
    Timer,
    Unrecorded,
    Write,
)
from gateway.routing import Candidate, Plan, Step
from gateway.tally import Facts, Tally
from metering import record, units
from metering.record import AttemptOutcome, CallRecord, Outcome

END_WAIT_NS = units.NS_PER_S
"""How long the backend's end is waited for after [DONE], and its usage after the client has gone."""

REJECTED_BYTES_MAX = 1024 * 1024

OUR_KEY_REFUSED = (401, 403)
"""A backend's answers that are about the gateway's key, not about the request."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines in nanoseconds, patience_ns by tier; bytes of one event, and of an answer that is held whole."""

    connect_ns: int
    first_event_ns: int
    between_events_ns: int
    total_ns: int
    queue_ns: int
    attempts_max: int
    patience_ns: tuple[int, ...]
    event_bytes_max: int
    answer_bytes_max: int


class _Result(msgspec.Struct, kw_only=True):
    """How the call will end, once sealed. head: to be sent first; None: it has been. tail: the last bytes."""

    outcome: Outcome
    status: int | None
    error_code: str | None
    head: Open | None
    tail: bytes


Handler = Callable[["Call", Any, int], list[Action]]


class Call:
    """One admitted request and its answer.

    `deadline_ns` (monotonic; None: no deadline) is when the driver must feed `Timer`.
    """

    __slots__ = (
        "_asked_ns", "_base_tier", "_body", "_body_bytes", "_events_seen", "_gone", "_longer_than", "_number",
        "_opened", "_plan", "_queue_deadline_ns", "_reader", "_result", "_tally", "_tried", "_upto_tier",
        "deadline_ns", "facts", "limits", "state",
    )  # fmt: skip

    def __init__(self, facts: Facts, plan: Plan, limits: Limits) -> None:
        assert plan.able
        self.facts = facts
        self.limits = limits
        self.state = State.ADMITTING
        self.deadline_ns: int | None = None
        self._plan = plan
        self._tally = Tally(facts=facts, plan=plan, fallback=plan.unable)
        self._tried: set[str] = set()
        self._longer_than: int | None = None  # only walls longer than this, once one was too short
        self._number = 0
        self._asked_ns = 0
        self._queue_deadline_ns = 0
        self._base_tier = 0
        self._upto_tier = 0
        self._reader: StreamReader | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._events_seen = 0
        self._opened = False
        self._gone = False
        self._result: _Result | None = None

    def start(self, now_ns: int) -> list[Action]:
        """Begin: the `admitted` line goes into this turn's write."""
        self._tally.admitted_ns = now_ns
        return [Admit()]

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Take an event; return what is to be done, in order. Events of a past attempt are ignored."""
        if event.attempt and event.attempt != self._number:
            return []
        return TABLE[self.state, type(event)](self, event, now_ns)

    # -- admission and queue

    def _admitted(self, _event: Admitted, now_ns: int) -> list[Action]:
        if self._gone:
            return self._conclude(Outcome.CLIENT_GONE, None, None)
        return self._queue(now_ns)

    def _not_admitted(self, _event: Unrecorded, _now_ns: int) -> list[Action]:
        self.state = State.DONE
        return self._answer(errors.JournalFull("the call could not be recorded; try again", retry_after_s=5))

    def _queue(self, now_ns: int) -> list[Action]:
        """Ask for a seat in the lowest tier that has somebody untried."""
        self.state = State.QUEUED
        self._asked_ns = now_ns
        self._queue_deadline_ns = now_ns + self.limits.queue_ns
        self._base_tier = self._upto_tier = min(candidate.tier for candidate in self._untried())
        return self._ask(now_ns)

    def _ask(self, now_ns: int) -> list[Action]:
        later = [candidate.tier for candidate in self._untried() if candidate.tier > self._upto_tier]
        while later and self.limits.patience_ns[self._upto_tier] == 0:
            self._upto_tier = min(later)
            later = [tier for tier in later if tier > self._upto_tier]
        self.deadline_ns = min(self._queue_deadline_ns, self.total_deadline_ns)
        if later:
            self.deadline_ns = min(self.deadline_ns, now_ns + self.limits.patience_ns[self._upto_tier])
        wants = (candidate for candidate in self._untried() if candidate.tier <= self._upto_tier)
        return [Ask(tuple(candidate.target.name for candidate in wants))]

    def _waited(self, _event: Timer, now_ns: int) -> list[Action]:
        """Patience is over: spill to the next tier; or there is no time left: shed."""
        later = [candidate.tier for candidate in self._untried() if candidate.tier > self._upto_tier]
        if later and now_ns < min(self._queue_deadline_ns, self.total_deadline_ns):
            self._upto_tier = min(later)
            return self._ask(now_ns)
        self._tally.queue_wait_ns += now_ns - self._asked_ns
        error = errors.NoBackend("all servers of this model are full; try again", retry_after_s=1)
        return [Leave(), *self._conclude_with(error, Outcome.SHED)]

    def _untried(self) -> list[Candidate]:
        return [
            candidate
            for candidate in self._plan.able
            if candidate.target.name not in self._tried
            and (self._longer_than is None or (candidate.target.max_model_len or 0) > self._longer_than)
        ]

    def _granted(self, event: Granted, now_ns: int) -> list[Action]:
        candidate = next(c for c in self._plan.able if c.target.name == event.backend)
        self._tally.spill = "full" if candidate.tier > self._base_tier else None
        self._tally.queue_wait_ns += now_ns - self._asked_ns
        self._tally.begin_attempt(candidate.target, candidate.tier, now_ns)
        self._tried.add(event.backend)
        self._number += 1
        self._reader = None
        self._body, self._body_bytes = [], 0
        self.state = State.CONNECTING
        self.deadline_ns = min(now_ns + self.limits.connect_ns, self.total_deadline_ns)
        return [Connect(candidate.target, self._number)]

    @property
    def _backend(self) -> str:
        """The name of the running attempt's backend."""
        assert self._tally.target is not None
        return self._tally.target.name

    @property
    def total_deadline_ns(self) -> int:
        """When the call must be over, wherever it is (monotonic)."""
        return self.facts.received_ns + self.limits.total_ns

    # -- the attempt, before the commit point

    def _connected(self, _event: Connected, now_ns: int) -> list[Action]:
        if self._tally.dispatched_ns is None:
            self._tally.dispatched_ns = now_ns
        self._tally.reconnected = self.state is State.WAITING  # once more: a reused connection was dead
        self.state = State.WAITING
        # An answer that is not streamed comes when all of it is generated: only the total bounds it.
        first_ns = self.limits.first_event_ns if self.facts.stream else self.limits.total_ns
        self.deadline_ns = min(now_ns + first_ns, self.total_deadline_ns)
        return []

    def _head(self, event: Head, now_ns: int) -> list[Action]:
        self._tally.status = event.status
        if 200 <= event.status < 300:
            kind = next((value for name, value in event.headers if name == b"content-type"), b"")
            if self.facts.stream and kind.lower().startswith(b"text/event-stream"):
                self._reader = reader_for(
                    self.facts.operation.answer,
                    strip_usage=not self.facts.include_usage,
                    event_bytes_max=self.limits.event_bytes_max,
                )
                self.state = State.HELD
            else:
                self.state = State.SIZED
            return []
        reason = f"status {event.status}"
        if event.status in (429, 503):
            return self._fail(BackendUnavailable(self._backend, reason), now_ns)
        if 400 <= event.status < 500 and event.status not in OUR_KEY_REFUSED:
            self.state = State.REJECTED
            return []
        return self._fail(BackendFaulted(self._backend, reason), now_ns)

    def _held_data(self, event: Data, now_ns: int) -> list[Action]:
        assert self._reader is not None
        out = self._reader.feed(event.data)
        if self._tally.first_event_ns is None and self._reader.events:
            self._tally.first_event_ns = now_ns
        if out:
            self._body.append(out)
        if self._reader.error is not None:
            return self._fail(self._faulty_event(), now_ns)
        if not self._reader.committed:
            if self._reader.done:
                return self._fail(BackendFaulted(self._backend, "empty stream"), now_ns)
            return self._gather_limit(len(event.data), now_ns)
        return self._commit(now_ns)

    def _commit(self, now_ns: int) -> list[Action]:
        """From here on the answer is this backend's."""
        self.state = State.STREAMING
        self._tally.served = self._opened = True
        held = b"".join(self._body)
        self._body = []
        head = Open(200, self._headers(b"text/event-stream; charset=utf-8", stream=True))
        return [head, *self._read(held, now_ns)]

    def _gather(self, event: Data, now_ns: int) -> list[Action]:
        self._tally.first_event_ns = self._tally.first_event_ns or now_ns
        self._body.append(event.data)
        return self._gather_limit(len(event.data), now_ns)

    def _faulty_event(self) -> BackendFaulted:
        assert self._reader is not None
        return BackendFaulted(self._backend, "event too large" if self._reader.too_large else "error event")

    def _gather_limit(self, more_bytes: int, now_ns: int) -> list[Action]:
        self._body_bytes += more_bytes
        limit = REJECTED_BYTES_MAX if self.state is State.REJECTED else self.limits.answer_bytes_max
        if self._body_bytes > limit:
            return self._fail(BackendFaulted(self._backend, "answer too large"), now_ns)
        return []

    def _held_end(self, _event: End, now_ns: int) -> list[Action]:
        """The whole stream came before the commit point: a last event without its blank line may still commit."""
        assert self._reader is not None
        self._reader.close()
        if self._reader.error is not None or not self._reader.finish_reasons:
            return self._fail(BackendFaulted(self._backend, "empty stream"), now_ns, ended=True)
        return self._commit(now_ns) + self._complete(now_ns, ended=True)

    def _sized_end(self, _event: End, now_ns: int) -> list[Action]:
        body = b"".join(self._body)
        answer = read_sized(self.facts.operation.answer, body)
        if not answer.ok:
            return self._fail(BackendFaulted(self._backend, "answer not readable"), now_ns, ended=True)
        self._tally.usage, self._tally.finish_reasons = answer.usage, answer.finish_reasons
        self._tally.mended = _usage_flags(answer)
        self._tally.served = True
        released = self._end_attempt(AttemptOutcome.COMPLETED, None, now_ns, ended=True)
        head = Open(200, self._headers(b"application/json", length=len(body)))
        return released + self._conclude(Outcome.COMPLETED, 200, None, head=head, tail=body)

    def _rejected_end(self, _event: End, now_ns: int) -> list[Action]:
        assert self._tally.status is not None
        body = b"".join(self._body)
        error = BackendRejected(self._backend, f"status {self._tally.status}")
        error.context_length = dialects.is_context_length(self._tally.status, body)
        return self._fail(error, now_ns, ended=True, body=body)

    def _lost(self, event: Lost, now_ns: int) -> list[Action]:
        return self._fail(event.error, now_ns, ended=True)

    def _too_slow(self, _event: Timer, now_ns: int) -> list[Action]:
        if self.state is State.CONNECTING:
            return self._fail(BackendUnavailable(self._backend, "connect timeout"), now_ns)
        return self._fail(BackendTimeout(self._backend, "timeout"), now_ns)

    def _fail(
        self, error: BackendError, now_ns: int, *, ended: bool = False, body: bytes | None = None
    ) -> list[Action]:
        """The attempt failed: try another backend, or give up. ended: the connection is over already.

        body: of a rejected request's answer, which is the client's to read.
        """
        actions = self._end_attempt(_attempt_outcome(error), error.reason, now_ns, ended=ended)
        if isinstance(error, BackendUnavailable) and self._tally.status is None:
            actions.append(ConnectFailed(self._backend, error.reason))
        longer = self._longer_than
        if isinstance(error, BackendRejected) and error.context_length:
            assert self._tally.target is not None
            self._longer_than = self._tally.target.max_model_len or 0
        untried = self._untried() if now_ns < self.total_deadline_ns else []
        left = min(self.limits.attempts_max - len(self._tally.attempts), len(untried))
        once = longer is None and bool(untried)
        step = routing.after(error, committed=self._opened, attempts_left=max(left, 0), longer_wall=once)
        if step is not Step.GIVE_UP:
            self._tally.fallback = routing.TOO_LONG if step is Step.LONGER_WALL else error.reason
            self._tally.spill = None
            return actions + self._queue(now_ns)
        return actions + self._give_up(error, body)

    def _give_up(self, error: BackendError, body: bytes | None) -> list[Action]:
        if isinstance(error, BackendRejected):
            assert self._tally.status is not None
            tail, code = errors.rejected(self._tally.status, body or b"", self.facts.operation.errors)
            head = Open(self._tally.status, self._headers(b"application/json", length=len(tail)))
            return self._conclude(Outcome.REFUSED, self._tally.status, code, head=head, tail=tail)
        timed_out = isinstance(error, BackendTimeout)
        outcome = Outcome.TIMED_OUT if timed_out else Outcome.BACKEND_FAILED
        return self._conclude_with(errors.from_backend(error), outcome)

    # -- after the commit point

    def _stream_data(self, event: Data, now_ns: int) -> list[Action]:
        assert self._reader is not None
        return self._read(self._reader.feed(event.data), now_ns)

    def _read(self, out: bytes, now_ns: int) -> list[Action]:
        """After a read: pass on what may go, and see where the stream stands."""
        reader = self._reader
        assert reader is not None
        actions: list[Action] = []
        if out:
            self._tally.response_bytes += len(out)
            actions.append(Write(out))
        if reader.events != self._events_seen:  # a comment is no sign of life
            self._events_seen = reader.events
            self.deadline_ns = min(now_ns + self.limits.between_events_ns, self.total_deadline_ns)
        if reader.token:
            self._tally.note_tokens(now_ns, finished=bool(reader.finish_reasons))
        if reader.error is not None:
            return actions + self._fail(self._faulty_event(), now_ns)
        if reader.done:
            self.state = State.ENDING
            self.deadline_ns = now_ns + END_WAIT_NS
        return actions

    def _stream_end(self, _event: End, now_ns: int) -> list[Action]:
        """The backend's body ended cleanly; it is an answer only if it says why it finished."""
        assert self._reader is not None
        self._reader.close()
        if self._reader.error is not None:
            return self._fail(self._faulty_event(), now_ns, ended=True)
        if not self._reader.finish_reasons and not self._reader.done:
            return self._fail(BackendDisconnected(self._backend, "ended early"), now_ns, ended=True)
        return self._complete(now_ns, ended=True)

    def _ending_data(self, event: Data, _now_ns: int) -> list[Action]:
        assert self._reader is not None
        self._reader.feed(event.data)  # dropped, and counted as mended
        return []

    def _ending_over(self, _event: Event, now_ns: int) -> list[Action]:
        """[DONE] was seen; the connection's end, or its absence, changes nothing."""
        return self._complete(now_ns, ended=isinstance(_event, End | Lost))

    def _complete(self, now_ns: int, *, ended: bool) -> list[Action]:
        assert self._reader is not None
        released = self._end_attempt(AttemptOutcome.COMPLETED, None, now_ns, ended=ended)
        return released + self._conclude(Outcome.COMPLETED, 200, None, tail=self._reader.end)

    # -- the client has gone, the gateway stops

    def _gone_early(self, _event: ClientGone, _now_ns: int) -> list[Action]:
        self._gone = True
        return []

    def _gone_queued(self, _event: ClientGone, now_ns: int) -> list[Action]:
        self._gone = True
        self._tally.queue_wait_ns += now_ns - self._asked_ns
        return [Leave(), *self._conclude(Outcome.CLIENT_GONE, None, None)]

    def _gone_in_attempt(self, _event: ClientGone, now_ns: int) -> list[Action]:
        """Stop the backend at once, unless only its usage is due."""
        self._gone = True
        if self.state is State.STREAMING and self._reader is not None and self._reader.finish_reasons:
            self.state = State.DRAINING
            self.deadline_ns = now_ns + END_WAIT_NS
            return []
        self._tally.served = self.state is not State.CONNECTING  # the work was begun for this client
        released = self._end_attempt(AttemptOutcome.CLIENT_GONE, None, now_ns, ended=False)
        return released + self._conclude(Outcome.CLIENT_GONE, self._tally.status, None)

    def _gone_ending(self, _event: ClientGone, now_ns: int) -> list[Action]:
        self._gone = True
        return self._drained(_event, now_ns)

    def _draining_data(self, event: Data, now_ns: int) -> list[Action]:
        assert self._reader is not None
        self._reader.feed(event.data)
        return self._drained(event, now_ns) if self._reader.done else []

    def _drained(self, event: Event, now_ns: int) -> list[Action]:
        ended = isinstance(event, End | Lost)
        released = self._end_attempt(AttemptOutcome.CLIENT_GONE, None, now_ns, ended=ended)
        return released + self._conclude(Outcome.CLIENT_GONE, self._tally.status, None)

    def _gone_sealing(self, _event: ClientGone, _now_ns: int) -> list[Action]:
        self._gone = True
        return []

    def _stopping_queued(self, event: Stopping, now_ns: int) -> list[Action]:
        self._tally.queue_wait_ns += now_ns - self._asked_ns
        return [Leave(), *self._conclude_with(event.error, Outcome.BACKEND_FAILED)]

    def _stopping(self, event: Stopping, now_ns: int) -> list[Action]:
        released = self._end_attempt(AttemptOutcome.FAILED, event.error.code or "fault", now_ns, ended=False)
        return released + self._conclude_with(event.error, Outcome.BACKEND_FAILED)

    # -- the end

    def _end_attempt(
        self, outcome: AttemptOutcome, reason: str | None, now_ns: int, *, ended: bool
    ) -> list[Action]:
        """Close the books of the running attempt; its seat goes back at once."""
        if self._reader is not None:
            self._tally.usage = self._reader.usage
            self._tally.finish_reasons = self._reader.finish_reasons
        self._tally.end_attempt(outcome, reason, now_ns)
        release = Release(self._backend)
        return [release] if ended else [Abort(), release]

    def _conclude_with(self, error: GatewayError, outcome: Outcome) -> list[Action]:
        """End with an error of ours: as an answer if nothing has been sent, else as an event in the stream."""
        if self._opened:
            return self._conclude(outcome, 200, error.code, tail=self._error_event(error))
        body = errors.error_body(error, self.facts.operation.errors)
        head = Open(int(error.status), self._error_headers(error, len(body)))
        return self._conclude(outcome, int(error.status), error.code, head=head, tail=body)

    def _conclude(
        self,
        outcome: Outcome,
        status: int | None,
        code: str | None,
        *,
        head: Open | None = None,
        tail: bytes = b"",
    ) -> list[Action]:
        self.state = State.SEALING
        self.deadline_ns = None
        self._result = _Result(outcome=outcome, status=status, error_code=code, head=head, tail=tail)
        return [Seal()]

    def _sealed(self, _event: Sealed, _now_ns: int) -> list[Action]:
        """The record is in the file: now the end may leave."""
        self.state = State.DONE
        result = self._result
        assert result is not None
        if self._gone:
            return [Finish(b"")]
        actions: list[Action] = [] if result.head is None else [result.head]
        return [*actions, Finish(result.tail)]

    def _unsealed(self, _event: Unrecorded, _now_ns: int) -> list[Action]:
        """The record was lost: the client must not take this for the end of a good answer."""
        self.state = State.DONE
        error = errors.JournalFull("the call could not be recorded")
        if self._opened:
            return [Finish(self._error_event(error))]
        return self._answer(error)

    def _error_event(self, error: GatewayError) -> bytes:
        """An error as the stream's last event; half an event that has gone out is ended first."""
        torn = self._reader is not None and self._reader.torn
        return (b"\n\n" if torn else b"") + errors.error_event(error, self.facts.operation.errors)

    def _answer(self, error: GatewayError) -> list[Action]:
        body = errors.error_body(error, self.facts.operation.errors)
        return [Open(int(error.status), self._error_headers(error, len(body))), Finish(body)]

    def _ignore(self, _event: Event, _now_ns: int) -> list[Action]:
        return []

    # -- what is written

    def _headers(
        self, kind: bytes, *, length: int | None = None, stream: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Headers of an answer that a backend gave."""
        headers = [(b"content-type", kind), *self._own_headers()]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if stream:
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        assert self._tally.target is not None
        family = self._tally.target.host.instance_family or "unknown"
        headers.append((b"x-weighbridge-served-by", family.encode()))
        if self._tally.fallback is not None:
            headers.append((b"x-weighbridge-fallback", self._tally.fallback.encode()))
        if self._tally.spill is not None:
            headers.append((b"x-weighbridge-spill", self._tally.spill.encode()))
        if ignored := self._tally.ignored():
            headers.append((b"x-weighbridge-ignored", ",".join(ignored).encode()))
        return headers

    def _error_headers(self, error: GatewayError, length: int) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json"), *self._own_headers()]
        headers.append((b"content-length", b"%d" % length))
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        return headers

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"x-request-id", self.facts.request_id.encode()),
            (b"x-weighbridge-call-id", self.facts.call_id.encode()),
        ]

    def admitted(self, seq: int, prev: str) -> record.Admitted:
        """The `admitted` line."""
        return self._tally.admitted(seq, prev)

    def record(self, seq: int, prev: str, now_ns: int) -> CallRecord:
        """The fact of the call, as it stands at the flush: a client that has left by now saw no end."""
        result = self._result
        assert result is not None
        outcome = result.outcome
        if self._gone and outcome is Outcome.COMPLETED:
            outcome = Outcome.CLIENT_GONE
        if not self._gone:
            self._tally.response_bytes += len(result.tail)
        if self._reader is not None:
            self._tally.mended = self._reader.mended + _usage_flags(self._reader)
        end = tally.End(outcome=outcome, status=result.status, error_code=result.error_code, now_ns=now_ns)
        return self._tally.record(end, seq, prev)


def _attempt_outcome(error: BackendError) -> AttemptOutcome:
    match error:
        case BackendUnavailable():
            return AttemptOutcome.UNAVAILABLE
        case BackendTimeout():
            return AttemptOutcome.TIMED_OUT
        case BackendRejected():
            return AttemptOutcome.REFUSED
    return AttemptOutcome.FAILED


def _usage_flags(answer: StreamReader | Sized) -> tuple[str, ...]:
    """A count that was none is ignored, a part larger than its whole is cut to it; the record says so."""
    invalid = ("usage_invalid",) if answer.usage_invalid else ()
    return (*invalid, "usage_clamped") if answer.usage_clamped else invalid


def _seat_too_late(_call: Call, event: Granted, _now_ns: int) -> list[Action]:
    return [Release(event.backend)]


def _impossible(call: Call, event: Event, _now_ns: int) -> list[Action]:
    raise AssertionError(f"{type(event).__name__} in {call.state}")


def _table() -> dict[tuple[State, type[Event]], Handler]:
    """All pairs. What a driver cannot bring about by the order of its work is impossible; a late event is ignored."""
    c, s = Call, State
    table: dict[tuple[State, type[Event]], Handler] = {}
    for state in State:
        for event in (Admitted, Connected, Head, Data, End, Lost, Sealed, Unrecorded):
            table[state, event] = _impossible
        for late in (Timer, ClientGone, Stopping):
            table[state, late] = c._ignore
        table[state, Granted] = _seat_too_late
    table |= {
        (s.ADMITTING, Admitted): c._admitted,
        (s.ADMITTING, Unrecorded): c._not_admitted,
        (s.ADMITTING, ClientGone): c._gone_early,
        (s.QUEUED, Granted): c._granted,
        (s.QUEUED, Timer): c._waited,
        (s.QUEUED, ClientGone): c._gone_queued,
        (s.QUEUED, Stopping): c._stopping_queued,
        (s.CONNECTING, Connected): c._connected,
        (s.WAITING, Connected): c._connected,
        (s.WAITING, Head): c._head,
        (s.HELD, Data): c._held_data,
        (s.HELD, End): c._held_end,
        (s.SIZED, Data): c._gather,
        (s.SIZED, End): c._sized_end,
        (s.REJECTED, Data): c._gather,
        (s.REJECTED, End): c._rejected_end,
        (s.STREAMING, Data): c._stream_data,
        (s.STREAMING, End): c._stream_end,
        (s.ENDING, Data): c._ending_data,
        (s.ENDING, End): c._ending_over,
        (s.ENDING, Lost): c._ending_over,
        (s.ENDING, Timer): c._ending_over,
        (s.ENDING, ClientGone): c._gone_ending,
        (s.ENDING, Stopping): c._ending_over,
        (s.DRAINING, Data): c._draining_data,
        (s.DRAINING, End): c._drained,
        (s.DRAINING, Lost): c._drained,
        (s.DRAINING, Timer): c._drained,
        (s.DRAINING, Stopping): c._drained,
        (s.SEALING, ClientGone): c._gone_sealing,
        (s.SEALING, Sealed): c._sealed,
        (s.SEALING, Unrecorded): c._unsealed,
    }
    for state in (s.CONNECTING, s.WAITING, s.HELD, s.SIZED, s.REJECTED, s.STREAMING):
        table[state, Lost] = c._lost
        table[state, Timer] = c._too_slow
        table[state, ClientGone] = c._gone_in_attempt
        table[state, Stopping] = c._stopping
    return table


TABLE = _table()
