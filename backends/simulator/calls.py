"""One call: from its sequences' tokens to the bytes of its answer, faults included.

    begin ─▶ (slow_head: wait) ─▶ head of a stream ─▶ token… ─▶ the stream's end      completed
        │                                 │              └─▶ strike                   faulted:<kind>
        └─ busy                           └─ client gone ─▶                           aborted

An answer that is no stream is written when its last token is there. Everything sent is in the log entry.
"""

import abc
import asyncio
import time
from collections.abc import Iterable, Sequence

import msgspec

from backends.simulator.answers import Choice, Piece, StreamWriter, Usage, Writer
from backends.simulator.asks import Ask, Body
from backends.simulator.driver import Driver
from backends.simulator.engine import Generated
from backends.simulator.faults import BUSY_STATUS, GARBAGE, Fault, Kind
from backends.simulator.http import Connection
from backends.simulator.log import Log, Recording
from backends.simulator.refusals import Refused

FAILED = Refused(500, "Internal server error", "InternalServerError")
BUSY_MESSAGE = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
BUSY_TYPE = {429: "TooManyRequestsError", 503: "ServiceUnavailableError"}


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a call works with. fault: the one that befalls it; None: it goes well."""

    ask: Ask
    body: Body
    connection: Connection
    driver: Driver
    fault: Fault | None
    log: Log
    recording: Recording
    writer: Writer


class Call(abc.ABC):
    """A sink of its sequences' tokens; the two kinds of answer are below."""

    def __init__(self, context: Context) -> None:
        ask, entry = context.ask, context.recording.entry
        self._ask = ask
        self._body = context.body
        self._entry = entry
        self._log = context.log
        self._recording = context.recording
        self._connection = context.connection
        self._driver = context.driver
        self._fault = context.fault
        self._late: asyncio.TimerHandle | None = None
        self._stalled = False
        self._sequences = [
            Generated(
                prompt=prompt,
                index=position * ask.n + number,
                plan=ask.plan(prompt, number),
                salt=ask.salt,
                sink=self,
                reads=ask.reads,
            )
            for position, prompt in enumerate(ask.prompts)
            for number in range(ask.n)
        ]
        self._unfinished = len(self._sequences)
        entry.prompt_tokens = sum(len(prompt) for prompt in ask.prompts)
        entry.fault = None if self._fault is None else self._fault.kind

    def begin(self) -> None:
        if self._fault is not None and self._fault.kind in BUSY_STATUS:
            self._turn_away(self._fault)
            return
        self._connection.on_lost = self._gone
        if self._fault is not None and self._fault.kind is Kind.SLOW_HEAD:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._fault.delay_ms / 1_000, self._start)
        else:
            self._start()

    def token(self, sequence: Generated, text: str, finish_reason: str | None) -> None:
        """From the engine: the next token of one sequence. Not called again once all are aborted or held."""
        if not sequence.reads:
            self._entry.completion_tokens += 1
        if finish_reason is not None:
            self._unfinished -= 1
        if self._entry.cached_tokens is None:
            self._entry.cached_tokens = self._sequences[0].cached
            if self._strikes_before_head():
                self._strike()
                return
        self._take(sequence, text, finish_reason)

    @abc.abstractmethod
    def _take(self, sequence: Generated, text: str, finish_reason: str | None, /) -> None:
        """Make something of a token."""

    @abc.abstractmethod
    def _send_part(self) -> None:
        """Send what a fault lets through that is not sent yet."""

    @abc.abstractmethod
    def _fail(self) -> None:
        """Answer with the server's own error."""

    @abc.abstractmethod
    def _garble(self) -> None:
        """Send what is no answer, and end it as one."""

    def _turn_away(self, fault: Fault) -> None:
        """The engine hears nothing of it."""
        status = BUSY_STATUS[fault.kind]
        after = () if fault.retry_after_s is None else (f"retry-after: {fault.retry_after_s}",)
        busy = Refused(status, BUSY_MESSAGE, BUSY_TYPE[status])
        self._respond(status, self._body.error(busy), after)
        self._close(f"faulted:{fault.kind}")

    def _start(self) -> None:
        self._late = None
        self._driver.submit(self._sequences)

    def _usage(self) -> Usage:
        assert self._entry.prompt_tokens is not None
        return Usage(
            prompt_tokens=self._entry.prompt_tokens,
            completion_tokens=self._entry.completion_tokens,
            cached_tokens=self._entry.cached_tokens or 0,
        )

    def _respond(self, status: int, body: bytes, extra: Sequence[str] = ()) -> None:
        self._entry.status = status
        self._recording.sent(body)
        self._connection.respond(status, body, extra=extra)

    def _respond_with_error(self) -> None:
        self._respond(FAILED.status, self._body.error(FAILED))

    def _strikes_before_head(self) -> bool:
        return self._fault is not None and self._fault.before_head

    def _strikes_after(self) -> int | None:
        """Events after which the fault strikes; None: none does, or before the head."""
        return self._fault.after_events if self._fault is not None and self._fault.strikes else None

    def _strike(self) -> None:
        assert self._fault is not None
        kind = self._fault.kind
        if kind is Kind.STALL:
            self._stalled = True
            self._driver.hold(self._sequences)
            self._send_part()
            return  # its entry is closed when the client leaves
        self._driver.abort(self._sequences)
        match kind:
            case Kind.DIE:
                self._send_part()
                self._connection.close()
            case Kind.RESET:
                self._send_part()
                self._connection.reset()
            case Kind.ERROR_500:
                self._fail()
            case Kind.GARBAGE:
                self._garble()
        self._close(f"faulted:{kind}")

    def _gone(self) -> None:
        """The client left: the engine is told at once, as vLLM's is."""
        if self._late is not None:
            self._late.cancel()  # it had not begun: the engine knows nothing of it
        else:
            self._driver.abort(self._sequences)
        self._close(f"faulted:{Kind.STALL}" if self._stalled else "aborted")

    def _close(self, outcome: str) -> None:
        self._log.close(self._recording, outcome, time.time_ns())


class StreamedCall(Call):
    """Server-sent events, one write each."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.writer, StreamWriter)
        self._writer: StreamWriter = context.writer
        self._opened = False

    def _start(self) -> None:
        if not self._strikes_before_head():
            self._entry.status = 200
            self._connection.start_stream(200)
        super()._start()
        if self._writer.early and not self._strikes_before_head():
            self._open()

    def _take(self, sequence: Generated, text: str, finish_reason: str | None, /) -> None:
        if not self._opened and not self._open():
            return
        piece = Piece(
            index=sequence.index,
            text=text,
            finish_reason=finish_reason,
            stop_reason=None if finish_reason is None else sequence.plan.stop_reason,
            usage=_usage_of(sequence),
        )
        if not self._events(self._writer.token(piece)):
            return
        self._entry.completion_tokens_sent += 1
        if self._unfinished == 0 and self._events(self._writer.end(self._usage())):
            self._connection.end()
            self._close("completed")

    def _open(self) -> bool:
        self._opened = True
        return self._events(self._writer.begin([_usage_of(each) for each in self._sequences]))

    def _events(self, events: Iterable[bytes]) -> bool:
        """False: the fault struck among them."""
        return all(map(self._event, events))

    def _event(self, event: bytes) -> bool:
        """Write one event; False: it was the fault's turn instead."""
        if self._strikes_after() == self._entry.events:
            self._strike()
            return False
        self._write(event)
        return True

    def _write(self, event: bytes) -> None:
        entry = self._entry
        if entry.first_event_ns is None:
            entry.first_event_ns = time.time_ns()
        entry.events += 1
        self._recording.sent(event)
        self._connection.chunk(event)

    def _send_part(self) -> None:
        """Nothing: its events went out as they came."""

    def _garble(self) -> None:
        if self._entry.status is None:
            self._entry.status = 200
            self._connection.start_stream(200)
        self._write(b"data: " + GARBAGE + b"\n\n")
        self._connection.end()

    def _fail(self) -> None:
        if self._entry.status is None:
            self._respond_with_error()
            return
        events = self._writer.fail(FAILED)
        if events is None:
            self._connection.close()
            return
        for event in events:
            self._write(event)
        self._connection.end()


class SizedCall(Call):
    """One JSON body."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._writer = context.writer
        self._texts: list[list[str]] = [[] for _ in self._sequences]

    def _start(self) -> None:
        super()._start()
        if not self._sequences:
            self._answer()

    def _take(self, sequence: Generated, text: str, _finish_reason: str | None, /) -> None:
        self._texts[sequence.index].append(text)
        if self._unfinished == 0:
            self._answer()

    def _answer(self) -> None:
        if self._strikes_before_head() or self._strikes_after() is not None:
            self._strike()
            return
        self._entry.completion_tokens_sent = self._entry.completion_tokens
        self._respond(200, self._whole())
        self._close("completed")

    def _whole(self) -> bytes:
        choices = [
            Choice(texts=texts, finish_reason=each.plan.finish_reason, stop_reason=each.plan.stop_reason)
            for texts, each in zip(self._texts, self._sequences, strict=True)
        ]
        return self._writer.sized(choices, self._usage())

    def _send_part(self) -> None:
        """Half of the body, if the fault lets anything through."""
        if self._strikes_before_head():
            return
        body = self._whole()
        half = body[: len(body) // 2]
        self._entry.status = 200
        self._recording.sent(half)
        self._connection.respond_in_part(200, half, len(body))

    def _garble(self) -> None:
        body = b"" if self._strikes_before_head() else self._whole()
        self._respond(200, body[: len(body) // 2] + GARBAGE)

    def _fail(self) -> None:
        self._respond_with_error()


def _usage_of(sequence: Generated) -> Usage:
    return Usage(prompt_tokens=len(sequence.prompt), completion_tokens=sequence.generated)
