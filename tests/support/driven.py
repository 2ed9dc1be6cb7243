"""One call, driven by the direct driver or by the plain one, as a script says.

The relay, the machine, the seats and both clients are the real ones. The upstream, the journal and the connection are
in memory and do what the script says, when it says so; each checks what it sees against the laws of its side.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import httptools
import uvicorn
from uvicorn.server import ServerState

from gateway.api.errors import GatewayError
from gateway.api.operations import OPERATIONS
from gateway.api.wire import read_ask
from gateway.calls.bounds import LoopLag
from gateway.calls.call import Call
from gateway.calls.direct import Door, protocol
from gateway.calls.events import State
from gateway.calls.plain import PlainClient
from gateway.calls.queueing import Seats
from gateway.calls.relay import Relay, Request, Services
from gateway.configuration.config import Bounds
from metering.record import CallRecord
from tests.support.driver_fakes import (
    STOPPING,
    FakeAttempt,
    FakeLimits,
    FakeRecorder,
    FakeRefusals,
    FakeRegistry,
    Laws,
    Pipe,
    Seen,
    later,
)

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m1","stream":true,"messages":[]}'
ASKED = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(BODY), BODY)


class Driven:
    """A real relay, whose client is a driver's. most: bytes that may wait for the client. limited: limits apply."""

    def __init__(
        self, call: Call, taken: list[str], names: list[str], most: int, limited: bool = False
    ) -> None:
        self.call = call
        self.now_ns = 0
        self.gone = False
        self.attempts: list[FakeAttempt] = []
        self.laws = Laws()
        self.recorder = FakeRecorder(self.laws)
        self.registry = FakeRegistry(names, self.attempts, self.laws)
        self.seats = Seats(dict.fromkeys(names, 1), calls_max=9, clock=lambda: self.now_ns)
        self.others = set(taken)
        for name in taken:
            assert self.seats.take((name,)) == name
        self.refusals = FakeRefusals()
        self.limits = FakeLimits(self.laws) if limited else None
        self.services = Services(
            recorder=self.recorder, refusals=self.refusals, seats=self.seats, registry=self.registry,
            clock=lambda: self.now_ns, open=set(), lag=LoopLag(interval_ns=1, lag_ns_max=1), exceeded=lambda _: None,
        )  # type: ignore[arg-type]  # fmt: skip
        self.most = most
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.ended = False

    def begin(self, client: Any) -> Relay:
        ask = read_ask(BODY, OPERATIONS[CHAT])
        self.relay = Relay(
            self.services, self.call, Request(path=CHAT, lines=b"", body=BODY, ask=ask), client
        )
        self.relay.limits = self.limits
        return self.relay

    # -- what the script asks

    @property
    def finished(self) -> bool:
        return self.relay not in self.services.open

    @property
    def running(self) -> FakeAttempt | None:
        return self.attempts[-1] if self.attempts and not self.attempts[-1].fate else None

    @property
    def attempt(self) -> bool:
        return self.running is not None

    @property
    def backend(self) -> str:
        return self.attempts[-1].name

    @property
    def paused(self) -> bool:
        return self.running is not None and self.running.paused

    @property
    def unwritten(self) -> bool:
        return self.recorder.entry is not None

    @property
    def asking(self) -> bool:
        return self.limits is not None and self.limits.asked

    @property
    def waiting(self) -> tuple[str, ...]:
        ticket = self.relay._ticket
        return ticket.wants if ticket is not None and self.call.state is State.QUEUED else ()

    # -- what the script does

    def say(self, what: str, *args: Any) -> None:
        """The running attempt's backend says something."""
        attempt = self.running
        assert attempt is not None
        if what in ("end", "whole", "lost"):
            attempt.fate = "over"
        getattr(attempt.listener, what)(*args)

    def answer(self, error: GatewayError | None) -> None:
        assert self.limits is not None
        self.limits.answer(error)

    def make(self) -> None:
        self.recorder.make()

    def flush(self) -> None:
        self.recorder.end()

    def fail(self) -> None:
        self.recorder.fail()

    @property
    def made(self) -> bool:
        return self.recorder.made is not None

    def stop(self) -> None:
        self.relay.feed(STOPPING)

    def tick(self, *, to_the_end: bool) -> None:
        self.now_ns = later(self.call, self.now_ns, to_the_end=to_the_end)
        self.relay.sweep(self.now_ns)

    def grant(self, name: str) -> None:
        self.others.discard(name)
        ticket = self.seats.release(name)
        assert ticket is not None
        ticket.granted(name)

    # -- the laws

    def check(self) -> None:
        """After each step."""
        assert not self.laws.broken
        assert not self.ended or self.recorder.over or self.refusals.lines, "an end before its record"
        assert self.gone or not self.taking or not self.paused, "it takes all, and its backend is not read"

    taking = True

    def check_books(self) -> None:
        """After the end."""
        assert self.finished, "still open"
        assert all(one.fate for one in self.attempts), "an attempt is left at work"
        taken = {name for name in self.registry.entries if self.seats.taken(name)}
        assert taken == self.others, "a seat was kept"
        assert self.seats.waiting("m1") == 0, "it waits still"
        assert self.recorder.entry is None
        assert self.gone or self.ended, "a client waits for ever"
        if self.limits is not None:
            records = [line for line in self.recorder.lines if isinstance(line, CallRecord)]
            assert self.limits.ends == 1, "never settled"
            assert [self.limits.record] == (records or [None]), "settled by another record"

    def seen(self, steps: int) -> Seen:
        fates = [(one.name, one.fate) for one in self.attempts]
        return Seen(
            status=self.status, headers=self.headers, body=self.body, ended=self.ended,
            lines=self.recorder.lines, fates=fates, told=self.registry.told,
            turned_away=[line.reason for line in self.refusals.lines], steps=steps,
        )  # fmt: skip


class Socket(asyncio.Transport):
    """The client's side of a connection: what is written is read as HTTP at once; what is taken, the pipe says."""

    def __init__(self, side: "Direct") -> None:
        super().__init__()
        self._side = side
        self.closing = False

    def write(self, data: Any) -> None:
        self._side.laws.hold(not self.closing, "written to nobody")
        self._side.written(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


class Direct(Driven):
    """The direct driver's own protocol over a connection in memory; it takes its request as bytes."""

    def __init__(self, config: uvicorn.Config, *args: Any) -> None:
        super().__init__(*args)
        self._loop = asyncio.new_event_loop()
        door = Door(Bounds())
        door.api = self  # type: ignore[assignment]
        self._protocol: Any = protocol(door)(config, ServerState(), {}, self._loop)  # type: ignore[call-arg]
        self.pipe = Pipe(self.most, self._protocol.pause_writing, self._protocol.resume_writing)
        self._parser: Any = httptools.HttpResponseParser(self)
        self._answers = 0
        self._raw: tuple[int | None, dict[bytes, bytes], bytes] = (None, {}, b"")
        self._socket = Socket(self)
        self._protocol.connection_made(self._socket)
        self._protocol.data_received(ASKED)

    # as its API

    body_bytes_max = 1000

    def visit(self, _path: str, headers: Any) -> Any:
        return SimpleNamespace(headers=dict(headers))

    def authorize(self, _visit: Any, _method: str, _origin: Any) -> None:
        pass

    def begin(self, _visit: Any, body: bytes, client: Any = None) -> Relay:
        assert body == BODY
        return super().begin(client)

    def refuse(self, error: Exception, _visit: Any) -> Any:
        raise error

    # as its client

    def written(self, data: bytes) -> None:
        status, _, before = self._raw
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.laws.hold(False, f"no HTTP: {error}")
        if status is None:
            self.pipe.open()
        self.pipe.write(len(self._raw[2]) - len(before))

    def on_message_begin(self) -> None:
        self._answers += 1
        self.laws.hold(self._answers == 1, "written after the end")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name != b"transfer-encoding":
            self._raw[1][name] = value

    def on_headers_complete(self) -> None:
        self._raw = (self._parser.get_status_code(), *self._raw[1:])

    def on_body(self, body: bytes) -> None:
        status, headers, before = self._raw
        self._raw = (status, headers, before + body)

    def on_message_complete(self) -> None:
        self.ended = True

    @property
    def taking(self) -> bool:  # type: ignore[override]
        return self.pipe.taking

    def take(self, taking: bool) -> None:
        self.pipe.taking = taking

    def settle(self) -> None:
        self.pipe.settle()
        if self.pipe.taking and not self.gone:
            status, headers, self.body = self._raw
            self.status, self.headers = status, dict(headers)

    def leave(self) -> None:
        self.ended = self.ended and self.pipe.taking
        self.gone = True
        self._socket.closing = True
        self._protocol.connection_lost(None)

    def close(self) -> None:
        self._loop.close()


class Plain(Driven):
    """The plain driver's client under a server that is two coroutines."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Event()
        self._gate.set()
        self._left = asyncio.Event()
        self.taking = True
        client = PlainClient(self.most)
        self._task = self._loop.create_task(client.run(self.begin(client), self._receive, self._send))
        self.settle()

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._gate.wait()
        if self.gone:
            return
        assert not self.ended, "written after the end"
        if message["type"] == "http.response.start":
            assert self.status is None, "a second head"
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        assert self.status is not None, "a body before its head"
        self.body += message["body"]
        self.ended = not message["more_body"]

    def take(self, taking: bool) -> None:
        self.taking = taking
        if taking:
            self._gate.set()
        else:
            self._gate.clear()

    def settle(self) -> None:
        self._loop.run_until_complete(turns(8))

    def leave(self) -> None:
        self.gone = True
        self._left.set()
        self._gate.set()
        self.settle()

    def close(self) -> None:
        self.settle()
        try:
            if self._task.done():
                self._task.result()
            else:
                raise AssertionError("the request's task goes on for ever")
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self.settle()
            self._loop.close()


async def turns(count: int) -> None:
    """Let the loop go round a few times."""
    for _ in range(count):
        await asyncio.sleep(0)
