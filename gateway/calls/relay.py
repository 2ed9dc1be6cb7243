"""Carries out the call machine's actions; the half that every driver shares.

Events come from the upstream's callbacks, the journal's flush, the seats, the sweep and the client's side;
each is fed to the machine on the loop, at once and in order. What goes to the client goes to a `Client`:
plain.py sends it by ASGI under any server, direct.py writes it to the connection itself.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from backends.errors import BackendError, BackendUnavailable
from backends.registry import Entry, Registry
from backends.upstream import Attempt
from gateway.api import errors, response_ids
from gateway.api.errors import GatewayError
from gateway.api.forms import FormAsk, splice_form
from gateway.api.wire import Ask, Fields, splice
from gateway.calls import events as machine
from gateway.calls.bounds import LoopLag
from gateway.calls.call import Call
from gateway.calls.queueing import Seats, Ticket
from gateway.calls.routing import Target
from metering.journal.recorder import Recorder
from metering.journal.refusals import Refusal, Refusals
from metering.journal.turns import Entry as Waiting
from metering.journal.unwritten import Unwritable
from metering.logs import log
from metering.pages.families import Bound
from metering.record import CallRecord, Line

logger = logging.getLogger("weighbridge.relay")

_ADMITTED, _SEALED = machine.Admitted(), machine.Sealed()


class Services(msgspec.Struct, kw_only=True):
    """What every call of this worker shares.

    recorder: replaced when the journal is opened again; a call keeps to the one that it began with.
    open: calls not over yet; clock: monotonic ns; lag: of the loop; exceeded: told of bounds that were passed.
    """

    recorder: Recorder | Unwritable
    refusals: Refusals
    seats: Seats
    registry: Registry
    clock: Callable[[], int]
    open: "set[Relay]"
    lag: LoopLag
    exceeded: Callable[[Bound], None]


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What goes up, whichever backend takes it. lines: its headers; ask: None: the body goes as it is.

    salt: the `cache_salt` for those that know it, as JSON; bound: name and value of the bound that is written. None: as
    the client has it.
    """

    path: str
    lines: bytes
    body: bytes
    ask: Ask | FormAsk | None
    method: str = "POST"
    salt: bytes | None = None
    bound: tuple[str, bytes] | None = None


class Limits(Protocol):
    """What one call has to do with the limits that apply to it: it asks, and is settled at its end.

    asks: no: none does, and it is only told how the call ends. lines: headers that tell its client how they stand.
    """

    @property
    def asks(self) -> bool:
        """Is it to be asked before the call begins?"""

    @property
    def lines(self) -> bytes:
        """As they go on the wire; none before there is an answer."""

    def ask(self, answered: Callable[[GatewayError | None], None]) -> None:
        """Ask for room. answered: called with None if there is, later, never from within; unless it is given up."""

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""

    def sealed(self, line: CallRecord) -> None:
        """The record goes into the journal."""

    def unrecorded(self) -> None:
        """It never came there."""

    def end(self) -> None:
        """The call is over, whichever way."""


class Recording(Protocol):
    """A way into the journal."""

    def append(self, entry: Waiting) -> None:
        """As Recorder.append."""


class Client(Protocol):
    """Where the answer of a call goes. One that is too slow calls the relay's `pause` and `resume`.

    write_chunk: as `write`, with its chunk's framing around it; None: the body is not chunked, or not by us.
    """

    write_chunk: Callable[[bytes], None] | None

    def open(self, status: int, lines: bytes) -> None:
        """Status and header lines, once. Without a content-length the body is chunked."""

    def write(self, data: bytes) -> None:
        """Bytes of the body, never empty."""

    def finish(self, data: bytes) -> None:
        """The last bytes, and the end of the answer; nothing follows."""

    def reply(self, status: int, lines: bytes, data: bytes) -> None:
        """A whole answer: `open` and `finish` in one. The lines hold its content-length."""


class Relay:
    """One call on its way through this worker. limits: those that apply to it; None: nobody is asked or told of it."""

    __slots__ = (
        "_attempt", "_busy", "_client", "_events", "_paused", "_recorder", "_request", "_resumed", "_sealing",
        "_seated", "_services", "_ticket", "call", "limits",
    )  # fmt: skip

    def __init__(self, services: Services, call: Call, request: Request, client: Client) -> None:
        self.call = call
        self.limits: Limits | None = None
        self._services = services
        self._recorder: Recording = services.recorder
        self._request = request
        self._client = client
        self._ticket: Ticket | None = None  # once it had to wait for a seat
        self._seated = call.facts.operation.answer.costs_tokens
        """Seats are of a server's batch; its tokenizer works beside that."""
        self._events: list[machine.Event] = []
        self._busy = False
        self._attempt: Attempt | None = None
        self._paused = False
        self._resumed = False  # since the last sweep
        self._sealing = False  # its record is what is waited for

    def start(self) -> None:
        """Begin; the client hears of it later, never from within."""
        services = self._services
        services.open.add(self)
        begin = self.call.start if self.limits is None or not self.limits.asks else self.call.ask
        for action in begin(services.clock()):
            ACTIONS[type(action)](self, action)

    def record_by(self, recorder: Recording) -> None:
        """Have its lines go this way into the journal; before `start`."""
        self._recorder = recorder

    def pause(self) -> None:
        """The client takes no more for now: the backend is not read, be it one that is still to be asked."""
        if not self._paused:
            self._paused = True
            self._services.exceeded(Bound.BUFFER)
            if self._attempt is not None:
                self._attempt.pause()

    def resume(self) -> None:
        """The client takes more."""
        if self._paused:
            self._paused = False
            self._resumed = True
            if self._attempt is not None:
                self._attempt.resume()

    def gone(self) -> None:
        """The client has left. What its backend still sends is read: its usage may be in it."""
        self.resume()
        self.feed(machine.ClientGone())

    # -- events

    def feed(self, event: machine.Event) -> None:
        """Give the machine an event and do what it says. Events that this brings about are taken in turn."""
        if self._busy:
            self._events.append(event)
            return
        self._busy = True
        try:
            for action in self.call.handle(event, self._services.clock()):
                ACTIONS[type(action)](self, action)
            while self._events:
                self._handle(self._events.pop(0))
        except Exception as error:  # noqa: BLE001  our own mistake must still end in one record and a free seat
            self._events.clear()
            call_id = self.call.facts.call_id
            log(logger, logging.ERROR, "fault in a call", call_id=call_id, error=repr(error))
            self._handle(machine.Stopping(error=errors.Fault("internal error")))
        finally:
            self._busy = False

    def _handle(self, event: machine.Event) -> None:
        for action in self.call.handle(event, self._services.clock()):
            ACTIONS[type(action)](self, action)

    def data(self, attempt: int, data: bytes) -> None:
        """What an attempt's backend has sent: what needs no second look goes on at once, the rest is an event."""
        if not self._busy and self.call.passes(attempt, data, 0, len(data), self._services.clock()):
            self._client.write(data)
        else:
            self.feed(machine.Data(attempt, data=data))

    def sweep(self, now_ns: int) -> None:
        """Called ten times a second: has the call's deadline passed?

        While the client is too slow to take what has come, the backend is not read: its silence is not its fault.
        What it sent meanwhile is read before the next sweep, and counts first.
        """
        waited, self._resumed = self._paused or self._resumed, False
        deadline_ns = self.call.unread_deadline_ns if waited else self.call.deadline_ns
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.feed(machine.Timer())

    def _granted(self, backend: str) -> None:
        self.feed(machine.Granted(backend=backend))

    # -- the journal: the call waits for its `admitted` line, and at its end for its record

    def line(self, seq: int, prev: str) -> Line:
        """The line that is waited for."""
        if not self._sealing:
            return self.call.admitted(seq, prev)
        record = self.call.record(seq, prev, self._services.clock())
        if self.limits is not None:
            self.limits.sealed(record)
        return record

    def written(self) -> None:
        """It is in the file."""
        if self._sealing:
            self.feed(_SEALED)
            return
        wanted = self.call.wanted
        backend = self._services.seats.take(wanted) if self._seated else wanted[0]
        self.feed(_ADMITTED if backend is None else machine.Seated(backend=backend))

    def failed(self, _error: OSError) -> None:
        """It never will be."""
        if self.limits is not None:
            self.limits.unrecorded()
        self.feed(machine.Unrecorded())

    # -- limits

    def _answered(self, error: GatewayError | None) -> None:
        self.feed(machine.Allowed() if error is None else machine.Refused(error=error))

    def _ask_limits(self, _action: machine.AskLimits) -> None:
        assert self.limits is not None
        self.limits.ask(self._answered)

    def _give_up(self, _action: machine.GiveUp) -> None:
        assert self.limits is not None
        self.limits.give_up()

    def _turn_away(self, action: machine.TurnAway) -> None:
        error, facts = action.error, self.call.facts
        refusal = Refusal(
            at_ns=time.time_ns(),
            error_code=error.code,
            key_id=facts.key_id,
            limit=error.limit,
            model=facts.model,
            operation=facts.operation.name,
            reason=type(error).__name__,
            request_id=facts.request_id,
            status=int(error.status),
            tenant=facts.tenant,
        )
        self._services.refusals.refuse(refusal)

    # -- actions

    def _admit(self, _action: machine.Admit) -> None:
        self._recorder.append(self)

    def _ask(self, action: machine.Ask) -> None:
        """A seat that is free is granted at once: nothing is to be done behind an `Ask`."""
        wants = action.wants
        backend = self._services.seats.take(wants) if self._seated else wants[0]
        if backend is None:
            self._wait(wants)
        else:
            if self._ticket is not None:
                self._services.seats.leave(self._ticket)
            for each in self.call.handle(machine.Granted(backend=backend), self._services.clock()):
                ACTIONS[type(each)](self, each)

    def _wait(self, wants: tuple[str, ...]) -> None:
        facts = self.call.facts
        if self._ticket is None:
            self._ticket = Ticket(facts.tenant, facts.model, self._granted)
        self._services.seats.wait(self._ticket, wants)

    def _leave(self, _action: machine.Leave) -> None:
        if self._ticket is not None:
            self._services.seats.leave(self._ticket)

    def _connect(self, action: machine.Connect) -> None:
        entry = self._services.registry.entries[action.target.name]
        if entry.hold is not None and (busy := self._busy_now(entry)) is not None:
            self.feed(machine.Lost(action.attempt, error=busy))
            return
        request = self._request
        body = self._body(action.target, salted=entry.backend.cache_salt)
        listener = _Listener(self, action.attempt)
        self._attempt = entry.upstream.send(request.method, request.path, request.lines, body, listener)
        if self._paused:
            self._attempt.pause()

    def _busy_now(self, entry: Entry) -> BackendUnavailable | None:
        """Has the backend become busy since the call was planned? Those that waited for a seat are told, not sent."""
        now_ns = self._services.clock()
        hold = entry.held(now_ns)
        if hold is None:
            return None
        wait_s = hold.left_s(now_ns)
        return BackendUnavailable(entry.backend.name, "busy", status=hold.status, retry_after_s=wait_s)

    def _body(self, target: Target, *, salted: bool) -> bytes:
        request = self._request
        ask = request.ask
        if ask is None:
            return request.body
        if (  # nearly all that are not streamed go up as they came
            not ask.stream
            and target.served_model == ask.model
            and request.salt is None
            and request.bound is None
            and not self.call.facts.operation.keeps
        ):
            return request.body
        model = None if target.served_model == ask.model else target.served_model
        include_usage = ask.stream and not ask.include_usage
        if not isinstance(ask, Ask):
            return splice_form(request.body, ask, model=model, include_usage=include_usage)
        fields: Fields = ()
        if request.salt is not None and salted:
            fields = (("cache_salt", request.salt),)
        if request.bound is not None:
            fields = (*fields, request.bound)
        named = self._response_id(target) if ask.keeping is not None and ask.keeping.stored else None
        return splice(
            request.body, ask, model=model, include_usage=include_usage, response_id=named, fields=fields
        )

    def _response_id(self, target: Target) -> str:
        facts = self.call.facts
        return response_ids.mint(facts.call_id, tenant=facts.tenant, model=facts.model, backend=target.name)

    def _abort(self, _action: machine.Abort) -> None:
        if self._attempt is not None:
            self._attempt.abort()

    def _release(self, action: machine.Release) -> None:
        if not self._seated:
            return
        seats = self._services.seats
        if self._ticket is not None:
            seats.settle(self._ticket, self.call.work)
        waiting = seats.release(action.backend)
        if waiting is not None:
            waiting.granted(action.backend)

    def _connect_failed(self, action: machine.ConnectFailed) -> None:
        self._services.registry.connect_failed(action.backend, action.reason)

    def _hold_back(self, action: machine.HoldBack) -> None:
        now_ns = self._services.clock()
        self._services.registry.busy(action.backend, action.status, action.retry_after_s, now_ns)

    def _warmed(self, action: machine.Answered) -> None:
        self._services.registry.answered(action.backend)

    def _open(self, action: machine.Open) -> None:
        lines = action.lines if self.limits is None else action.lines + self.limits.lines
        self._client.open(action.status, lines)

    def _write(self, action: machine.Write) -> None:
        self._client.write(action.data)

    def _seal(self, _action: machine.Seal) -> None:
        self._sealing = True
        self._recorder.append(self)

    def _finish(self, action: machine.Finish) -> None:
        self._part()
        self._client.finish(action.data)

    def _reply(self, action: machine.Reply) -> None:
        lines = action.lines if self.limits is None else action.lines + self.limits.lines
        self._part()
        self._client.reply(action.status, lines, action.data)

    def _part(self) -> None:
        """The call is over, and nothing is kept for it, when its client sees its end."""
        self._services.open.discard(self)
        if self.limits is not None:
            self.limits.end()
        # Both lead back here: without them a call is freed at its end, and the cycle collector has nothing to find.
        self._attempt = None
        if self._ticket is not None:
            self._ticket.granted = _over


NewRelay = Callable[[Services, Call, Request, Client], Relay]
"""Makes a call that is to be carried; it is not started yet."""


def _over(_backend: str) -> None:
    raise AssertionError("a seat was granted to a call that is over")


ACTIONS: dict[type[machine.Action], Callable[[Relay, Any], None]] = {
    machine.AskLimits: Relay._ask_limits,
    machine.GiveUp: Relay._give_up,
    machine.TurnAway: Relay._turn_away,
    machine.Admit: Relay._admit,
    machine.Ask: Relay._ask,
    machine.Leave: Relay._leave,
    machine.Connect: Relay._connect,
    machine.Abort: Relay._abort,
    machine.Release: Relay._release,
    machine.ConnectFailed: Relay._connect_failed,
    machine.HoldBack: Relay._hold_back,
    machine.Answered: Relay._warmed,
    machine.Open: Relay._open,
    machine.Write: Relay._write,
    machine.Seal: Relay._seal,
    machine.Finish: Relay._finish,
    machine.Reply: Relay._reply,
}


class _Listener:
    """Turns an attempt's callbacks into events that carry its number."""

    __slots__ = ("_number", "_relay")

    def __init__(self, relay: Relay, number: int) -> None:
        self._relay = relay
        self._number = number

    def connected(self) -> None:
        relay, event = self._relay, machine.Connected(self._number)
        if relay._busy:  # mostly: it is told from within `_connect`, and there is nothing to do on it
            relay.call.handle(event, relay._services.clock())
        else:
            relay.feed(event)

    def head(self, status: int, headers: machine.Headers) -> None:
        self._relay.feed(machine.Head(self._number, status=status, headers=headers))

    def data(self, data: bytes) -> None:
        self._relay.data(self._number, data)

    def chunk(self, read: bytes, at: int) -> bool:
        """As `Relay.data`, for what may leave with the framing that it came with. Called for most events."""
        relay = self._relay
        write_chunk = relay._client.write_chunk
        if write_chunk is None or relay._busy:
            return False
        if not relay.call.passes(self._number, read, at, len(read) - 2, relay._services.clock()):
            return False
        write_chunk(read)
        return True

    def end(self) -> None:
        self._relay.feed(machine.End(self._number))

    def whole(self, status: int, headers: machine.Headers, data: bytes) -> None:
        self._relay.feed(machine.Whole(self._number, status=status, headers=headers, data=data))

    def lost(self, error: BackendError) -> None:
        self._relay.feed(machine.Lost(self._number, error=error))
