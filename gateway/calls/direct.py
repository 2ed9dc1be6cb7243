"""The direct driver: a call and its connection, with no task and no ASGI between them.

A subclass of uvicorn's protocol, and all that is known of uvicorn's inside. A plain POST to one of OPERATIONS is
taken at its head, and its answer is written to the transport by the relay's own callbacks. Whatever is out of the
ordinary (another path or method, a body in an encoding, `Expect`, HTTP/1.0, a refusal by the head alone, a
pipelined request) goes uvicorn's way to the same code by ASGI. So does everything, if the configuration wants the
plain driver, or if this is not the uvicorn that it was written for: see `usable`.

The bounds of a client's connection are kept here too, whichever way its requests go (gateway/calls/bounds.py).
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from backends.known_head import KnownHead
from gateway.api import bodies, errors
from gateway.api.errors import GatewayError
from gateway.api.openai_api import OpenAIApi, Visit
from gateway.api.operations import OPERATIONS
from gateway.calls import events as machine
from gateway.calls.bounds import Late, Patience, Phase, Watch
from gateway.calls.relay import Relay
from gateway.configuration.config import Bounds
from gateway.directory.sources import Origin
from metering.pages.families import Bound

UVICORN = "0.54.0"
"""Whose inside this is written for; tests/gateway/calls/test_direct.py fails when another one is installed."""

_PATHS = {path.encode("ascii"): path for path in OPERATIONS}
_UNUSUAL = frozenset({b"expect", b"content-encoding"})
_OF_UPGRADE = (b"connection", b"upgrade", b"http2-settings")
_OF_ONE_REQUEST = frozenset({b"x-request-id", b"traceparent"})
"""A head that holds one of these does not come again."""
_IDLE, _HEAD, _BODY, _ANSWER = Phase.IDLE, Phase.HEAD, Phase.BODY, Phase.ANSWER
_REST, _PARTING = Phase.REST, Phase.PARTING
_TOLD_MAX = 256
"""Connections beyond the bound that are still told why they are closed; more are just closed."""


def usable() -> bool:
    """Is this the uvicorn that the driver was written for?"""
    return uvicorn.__version__ == UVICORN


class Door:
    """What all connections share: the API, once there is one; their bounds; uvicorn's own headers, as bytes.

    direct: calls are answered by the direct driver; but not those of browsers, if `cors`.
    connections: of uvicorn's server; they add themselves.
    exceeded: told of each bound that was passed, if no line of the journal will tell of it.
    """

    def __init__(self, bounds: Bounds, *, direct: bool = True, cors: bool = False) -> None:
        self.bounds = bounds
        self.patience = Patience.of(bounds)
        self.paths = _PATHS if direct else {}
        self.unusual = _UNUSUAL | {b"origin"} if cors else _UNUSUAL
        self.api: OpenAIApi | None = None
        self.connections: Collection[Any] = ()
        self.exceeded: Callable[[Bound], None] = lambda _: None
        self._headers: list[tuple[bytes, bytes]] = []
        self._rendered = b""

    def sweep(self, now_ns: int) -> None:
        """Called once a second: end the connections that have let a deadline pass. now_ns: monotonic."""
        for connection in tuple(self.connections):
            if isinstance(connection, DirectProtocol):
                connection.sweep(now_ns)

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """headers: of uvicorn's server state; a new list each second, for the date."""
        if headers is not self._headers:
            self._headers = headers
            self._rendered = machine.header_lines(headers)
        return self._rendered


class _Lingering:
    """The transport as uvicorn's answers see it: their `close` is the protocol's."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class _Cycle:
    """What uvicorn sees of a call of ours: an answer under way, behind which pipelined requests wait."""

    response_complete = False
    disconnected = False

    def __init__(self) -> None:
        self.message_event = asyncio.Event()


_OURS: Any = _Cycle()


def protocol(door: Door) -> type[asyncio.Protocol]:
    """The protocol class for `uvicorn.Config(http=…)`."""
    return type("DirectProtocol", (DirectProtocol,), {"door": door})


class DirectProtocol(HttpToolsProtocol):
    """One client's connection, and the `Client` of the call that it has open, if any."""

    door: Door

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = Watch()
        self._read_bytes = 0  # of the read that is being parsed
        self._read = b""  # … and the read itself, if a request begins with it
        self._leaving = False  # it has had its last answer; nothing more is heard
        self._visit: Visit | None = None  # of a request whose body is coming
        self._body: list[bytes] = []
        self._relay: Relay | None = None
        self._keep_alive = True
        self._head: bytes | None = None  # of the answer, until its first bytes
        self._chunked = False
        self.write_chunk: Callable[[bytes], None] | None = None
        self._ordinary = False  # the request goes uvicorn's way
        self._known: KnownHead[Visit] | None = None  # of the last request that one read has brought

    # -- uvicorn and the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        bounds = self.door.bounds
        transport.set_write_buffer_limits(bounds.buffer_bytes_max)
        beyond = len(self.connections) - bounds.connections_max
        if beyond > 0:
            self.door.exceeded(Bound.CONNECTIONS)
            if beyond <= _TOLD_MAX:
                self._leave(errors.Overloaded("too many connections; try again", retry_after_s=1))
            else:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        relay, self._relay, self._visit = self._relay, None, None
        self.write_chunk = None
        # An answer of uvicorn's leads back here: without it a connection is freed at its end, with its buffers, and
        # need not wait for the cycle collector's rarest round.
        self.cycle = None  # type: ignore[assignment]  # as uvicorn begins with
        self.pipeline.clear()
        if relay is not None:
            relay.gone()

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._leaving:
            self._drop(len(data))
            return
        known = self._known
        if (
            known is not None
            and (body_at := known.body_at(data))
            and self._again(known.found, data[body_at:])
        ):
            return
        watch = self._watch
        turn = watch.turn
        self._read_bytes = len(data)
        self._read = data if watch.phase is _IDLE else b""
        self._unset_keepalive_if_required()
        try:
            rest: bytes | memoryview = data
            while rest:
                rest = self._parse(rest)
        except httptools.HttpParserError:
            self._leave(errors.InvalidRequest("this is no HTTP request"))
        if watch.phase is _HEAD and watch.turn - turn <= 1:  # all of this read is of one head
            watch.phase_bytes += len(data)
            if watch.phase_bytes > self.door.bounds.head_bytes_max:
                self._head_too_large()

    def pause_writing(self) -> None:
        """The transport holds all that may wait."""
        super().pause_writing()
        if self._relay is not None:
            self._relay.pause()

    def resume_writing(self) -> None:
        """The transport has room again."""
        super().resume_writing()
        if self._relay is not None:
            self._relay.resume()

    def shutdown(self) -> None:
        """The server stops: this connection ends with its answer."""
        if self._watch.phase is _REST:
            self._part()
        elif self._relay is None and self._visit is None and not self._leaving:
            super().shutdown()
        else:
            self._keep_alive = False

    # -- bounds

    def sweep(self, now_ns: int) -> None:
        """Has the client let a deadline pass?"""
        late = self._watch.look(
            self.door.patience,
            now_ns,
            unsent_bytes=self.transport.get_write_buffer_size(),
            heard=self._leaving or not self._answering,
        )
        if late is not None:
            self._end_late(late)

    @property
    def _answering(self) -> bool:
        """Is an answer under way? What comes of the client then is a request ahead of its time."""
        cycle = self.cycle
        ordinary = cycle is not None and cycle is not _OURS and not cycle.response_complete
        return ordinary or self._relay is not None

    def _end_late(self, late: Late) -> None:
        match late:
            case Late.IDLE:
                self.transport.close()
            case Late.HEAD:
                self.door.exceeded(Bound.HEAD_TIME)
                self._leave(errors.TooSlow("the head of the request came too slowly"))
            case Late.BODY if self._visit is not None and self.door.api is not None:
                visit, self._visit = self._visit, None
                self._keep_alive = False
                self._refuse(self.door.api, errors.TooSlow("the body came too slowly"), visit)
            case Late.BODY:
                self.door.exceeded(Bound.BODY_TIME)
                self.transport.abort()
            case Late.PARTED:
                self.transport.abort()
            case Late.STALLED:
                self.door.exceeded(Bound.WRITE_STALL)
                self.transport.abort()

    def _head_too_large(self) -> None:
        self.door.exceeded(Bound.HEAD_BYTES)
        bytes_max = self.door.bounds.head_bytes_max
        self._leave(errors.HeadTooLarge(f"the head of the request is larger than {bytes_max:,} bytes"))

    def _leave(self, error: GatewayError) -> None:
        """Say a last thing and close."""
        if self._leaving:
            return
        self._visit = None
        if self._answering or self.transport.is_closing():
            self._leaving = True
            self.transport.abort()  # there is an answer under way: nothing can be said in its midst
            return
        body = errors.error_body(error)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *error.retry_headers,
        ]
        head = STATUS_LINE[error.status] + self.door.default_headers(self.server_state.default_headers)
        lines = machine.header_lines(headers)
        self.transport.write(head + lines + b"\r\n" + body)
        self._part()

    def _close(self) -> None:
        """The last answer has been handed out: close, at once if the client has nothing more to send."""
        if self._watch.phase in (_IDLE, _ANSWER):
            self.transport.close()
        else:
            self._part()

    def _part(self) -> None:
        """Close once the client has had the time to hear its last answer: what it still sends is dropped.

        To close at once would reset the connection, and an answer that has not been read by then is lost with it.
        """
        self._leaving = True
        self.pipeline.clear()
        self._watch.enter(_PARTING)
        self.transport.write_eof()

    def _drop(self, data_bytes: int) -> None:
        """So much came that nobody reads: behind the last answer, or of a body behind its answer."""
        self._watch.phase_bytes += data_bytes
        if self._watch.phase_bytes > self.door.bounds.linger_bytes_max:
            self.transport.abort()

    # -- the parser

    def _parse(self, data: bytes | memoryview) -> bytes | memoryview:
        """Parse; returns what is left. The parser stops behind a head with `Upgrade`.

        Such a client would rather speak another protocol (HTTP/2: Java's); its request is taken as one that would not.
        """
        try:
            self.parser.feed_data(data)
            return b""
        except httptools.HttpParserUpgrade as upgrade:
            rest = memoryview(data)[upgrade.args[0] :]
        if self._leaving or not any(name == b"upgrade" for name, _ in self.headers):
            self._leave(errors.InvalidRequest("this is no proxy"))  # CONNECT
            return b""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _OF_UPGRADE]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(lines)))
        return rest

    def on_message_begin(self) -> None:
        """A request begins; what uvicorn needs for it is made only if it goes uvicorn's way."""
        if self._leaving:
            return
        self._watch.enter(_HEAD)
        self.url = b""
        self.headers = []
        self._ordinary = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers too come here, and nobody reads them."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete: whose is it?"""
        if self._leaving or self.parser.should_upgrade():
            return
        watch, bytes_max = self._watch, self.door.bounds.head_bytes_max
        if watch.phase_bytes + self._read_bytes > bytes_max and self._head_bytes() > bytes_max:
            self._head_too_large()
            return
        watch.enter(_BODY)
        path = self.door.paths.get(self.url)
        api = self.door.api
        if path is None or api is None or not self._plain_post():
            self._go_ordinary()
            return
        visit = api.visit(path, self.headers)
        try:
            if not self.door.unusual.isdisjoint(visit.headers):
                raise _Unusual
            api.authorize(visit, "POST", self._origin)
        except (GatewayError, _Unusual):
            self._go_ordinary()  # where it is refused once more, and told so
            return
        self._visit = visit
        self._body = []
        self._keep_alive = self.parser.should_keep_alive()
        self.cycle = _OURS

    def _origin(self) -> Origin:
        return Origin(self.client[0] if self.client else None, self.headers)

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _plain_post(self) -> bool:
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # pipelined
        if self.flow.write_paused:
            return False  # it has not taken its last answer: uvicorn's way waits until it has
        return self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1"

    def _go_ordinary(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self._ordinary = True
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()
        lingering: Any = _Lingering(self.transport, self._close)
        self.cycle.transport = lingering

    def on_body(self, body: bytes) -> None:
        """A piece of the request's body."""
        watch = self._watch
        if self._leaving or watch.phase is _REST:
            self._drop(len(body))
            return
        watch.phase_bytes += len(body)
        if self._ordinary:
            super().on_body(body)
        elif (visit := self._visit) is not None:
            self._body.append(body)
            api = self.door.api
            assert api is not None
            if watch.phase_bytes > api.body_bytes_max:
                self._visit = None  # what is still to come of it is not kept
                self._refuse(api, bodies.too_large(api.body_bytes_max), visit)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._leaving:
            return
        self._watch.heard_out()
        if self._ordinary:
            super().on_message_complete()
            return
        visit, self._visit = self._visit, None
        parts, self._body = self._body, []
        api = self.door.api
        if visit is None or api is None:
            return
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._learn(visit, len(body))
        self._begin(api, visit, body)

    def _begin(self, api: OpenAIApi, visit: Visit, body: bytes) -> None:
        try:
            self._relay = api.begin(visit, body, self)
        except Exception as error:  # noqa: BLE001  our own mistake must still be an answer and a line
            self._refuse(api, error, visit)
            return
        self._relay.start()

    # -- a head that comes again

    def _learn(self, visit: Visit, body_bytes: int) -> None:
        """Remember the head of a request of which one read has brought all, if the next one may have the same."""
        read, self._read = self._read, b""
        self._known = None
        if self._keep_alive and body_bytes < len(read) and _OF_ONE_REQUEST.isdisjoint(visit.headers):
            self._known = KnownHead.of(read, body_bytes, visit)

    def _again(self, last: Visit, body: bytes) -> bool:
        """A whole request whose head is that of the last one. False: the parser must see it, as it does others."""
        api = self.door.api
        if api is None or self._leaving or self.flow.write_paused:
            return False
        if self._watch.phase is not _IDLE or len(body) > api.body_bytes_max:
            return False
        visit = api.visit_again(last)
        if visit is None:
            return False
        self._watch.enter(_ANSWER)
        self._keep_alive = True
        self.cycle = _OURS
        self._begin(api, visit, body)
        return True

    def _refuse(self, api: OpenAIApi, error: Exception, visit: Visit) -> None:
        status, headers, body = api.refuse(error, visit)
        self.reply(status, machine.header_lines(headers), body)

    # -- the answer

    def open(self, status: int, lines: bytes) -> None:
        """Its head; it leaves with the first bytes of the body."""
        self._chunked = lines.find(b"\r\ncontent-length: ") < 0  # which the first line is not
        self._head = b"%b%b%b%b%b\r\n" % (
            STATUS_LINE[status],
            self.door.default_headers(self.server_state.default_headers),
            lines,
            b"transfer-encoding: chunked\r\n" if self._chunked else b"",
            b"" if self._keep_alive else b"connection: close\r\n",
        )
        self.write_chunk = None

    def write(self, data: bytes) -> None:
        """Bytes of the body."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head is not None:
            data, self._head = self._head + data, None
            self.write_chunk = self.transport.write if self._chunked else None
        self.transport.write(data)

    def finish(self, data: bytes) -> None:
        """The last bytes; then the next request."""
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        if self._head is not None:
            data, self._head = self._head + data, None
        self._end(data)

    def reply(self, status: int, lines: bytes, data: bytes) -> None:
        """All of it."""
        defaults = self.door.default_headers(self.server_state.default_headers)
        close = b"" if self._keep_alive else b"connection: close\r\n"
        self._end(b"".join((STATUS_LINE[status], defaults, lines, close, b"\r\n", data)))

    def _end(self, data: bytes) -> None:
        self._relay = self.write_chunk = None
        if self.cycle is _OURS:  # else a pipelined request waits
            self.cycle = None  # type: ignore[assignment]
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(data)
        if not self.pipeline:  # else the watch is at a later request
            self._watch.answered()
        if not self._keep_alive:
            self._close()
        elif self.pipeline:
            super().on_response_complete()

    def on_response_complete(self) -> None:
        """Uvicorn has sent the end of an answer of its own."""
        if self._leaving:
            self.flow.resume_reading()  # for what is to be dropped
            return
        if not self.pipeline:
            self._watch.answered()
        super().on_response_complete()
        self._unset_keepalive_if_required()  # its timer knows of no request that has begun; `sweep` does


class _Unusual(Exception):
    """Not for this driver."""
