"""The HTTP/1.1 client towards one backend: connections, their pool, attempts.

An attempt is one request and its answer. Its exchange is told what happens, on the loop: connected → head →
data … → end, or `lost` at any point; after `abort()` nothing more. Only `connected` may come from within `send()`.
Bodies come without their chunk framing and content encoding, joined: one `data` for each read of the socket.
An exchange may take a read that is one chunk as it is: most reads of a stream are.
"""

import asyncio
import socket
import ssl
import time
from http import HTTPStatus
from typing import Protocol

import httptools

from backends import tls
from backends.encoding import Decoder, EncodingError
from backends.errors import BackendDisconnected, BackendError, BackendFaulted, BackendUnavailable
from backends.known_head import KnownHead
from backends.model import Backend
from metering import units

IDLE_S_MAX = 4.0
"""vLLM (uvicorn) closes a connection that was idle for 5 s; one of ours is never that old."""

HEAD_BYTES_MAX = 64 * 1024
"""Of an answer, unless told otherwise."""

IDLE_MAX = 1024
"""Idle connections to one backend, unless told otherwise: after a burst the next ones to come free are closed."""

_CHUNK_MAX = 4096
"""Content of a chunk that is offered as it is."""

HEADS_MAX = 64
"""Of so many methods and paths the head is kept; there are more, since some have an id in their path."""

Headers = list[tuple[bytes, bytes]]


def _size_lines() -> list[bytes | None]:
    """By the length of a read: its first line, if it is one chunk, as nearly all servers write it."""
    lines: list[bytes | None] = []
    for size in range(1, _CHUNK_MAX):
        line = b"%x\r\n" % size
        length = len(line) + size + 2
        lines += [None] * (length - len(lines))
        lines.append(line)
    return lines


_SIZE_LINES = _size_lines()
_READ_MAX = len(_SIZE_LINES)


class Exchange(Protocol):
    """Who listens to one attempt."""

    def connected(self) -> None:
        """The request was handed to a connection; again if that one was dead and a fresh one was taken."""

    def head(self, status: int, headers: Headers) -> None:
        """The final answer's status and headers, names in lower case."""

    def data(self, data: bytes) -> None:
        """Bytes of the body, never empty."""

    def chunk(self, read: bytes, at: int) -> bool:
        """A read that is one whole chunk with its framing, its content read[at:-2]; instead of `data`, if taken.

        False: it was not, and comes as `data`.
        """

    def end(self) -> None:
        """The answer is complete."""

    def whole(self, status: int, headers: Headers, data: bytes) -> None:
        """Head, body and end at once, if one read has brought them all; the body may be empty.

        Its content-length is not among the headers.
        """

    def lost(self, error: BackendError) -> None:
        """There will be no (more of the) answer; nothing follows."""


class Attempt:
    """A request on its way. reconnected: a reused connection was dead, and a fresh one was taken."""

    __slots__ = ("_connecting", "_connection", "_exchange", "_over", "_paused", "_request", "reconnected")

    def __init__(self, exchange: Exchange, request: bytes) -> None:
        self.reconnected = False
        self._exchange = exchange
        self._request = request
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._over = False
        self._paused = False

    def abort(self) -> None:
        """Close the connection at once, so that the backend stops its work. No callback follows."""
        if self._over:
            return
        self._over = True
        self._request = b""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.drop()

    def pause(self) -> None:
        """Stop reading: the client is slower than the backend."""
        self._set_paused(True)

    def resume(self) -> None:
        """Read on."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        if self._over or paused is self._paused:
            return
        self._paused = paused
        if self._connection is not None:
            self._connection.read(not paused)

    def _end(self) -> None:
        self._over = True
        self._exchange.end()

    def _lose(self, error: BackendError) -> None:
        if not self._over:
            self._over = True
            self._request = b""
            self._exchange.lost(error)


class Upstream:
    """The connections to one backend from one worker. Loop thread only.

    key: the backend's API key, or None. head_bytes_max: of an answer. idle_max: connections kept for calls to come,
    for idle_s_max. The backend's name is resolved anew for each connection. Raises as tls.client_context does.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        key: str | None,
        loop: asyncio.AbstractEventLoop,
        head_bytes_max: int = HEAD_BYTES_MAX,
        idle_max: int = IDLE_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self.name = backend.name
        self._head_bytes_max = head_bytes_max
        self._idle_max = idle_max
        self._idle_ns_max = round(idle_s_max * units.NS_PER_S)
        self._loop = loop
        self._host, self._port = backend.address()
        self._tls = tls.client_context(backend.ca_file) if backend.tls else None
        self._server_name = (backend.server_name or self._host) if backend.tls else None
        self._fixed_head = _fixed_head(self._host, self._port, key)
        self._heads: dict[tuple[str, str], bytes] = {}
        self._idle: dict[_Connection, None] = {}  # in order: the last one in is the first one out
        self._connections: set[_Connection] = set()
        self._connecting: dict[asyncio.Task[None], Attempt] = {}
        self._closed: asyncio.Future[None] | None = None
        self._known: KnownHead[tuple[int, Headers]] | None = None
        """Of the last answer that one read has brought: mostly the next one's too, for as long as its date holds."""

    @property
    def open_connections(self) -> int:
        """Established connections, idle ones included."""
        return len(self._connections)

    def send(self, method: str, path: str, lines: bytes, body: bytes, exchange: Exchange) -> Attempt:
        """Start an attempt; never fails: what goes wrong is told to the exchange.

        method: any but HEAD. lines: the headers that are this request's, as they go on the wire; the length of its body
        is not among them, nor what is the same for all. An empty body is none.
        """
        assert self._closed is None
        head = self._heads.get((method, path)) or self._head(method, path)
        length = b"content-length: %d\r\n\r\n" % len(body) if body else b"\r\n"
        attempt = Attempt(exchange, b"".join((head, lines, length, body)))
        connection = self._take_idle()
        if connection is None:
            self._connect(attempt)
        else:
            connection.start(attempt)
        return attempt

    def sweep(self, now_ns: int) -> None:
        """Close connections that have been idle for too long. now_ns: of time.monotonic_ns."""
        while self._idle:
            oldest = next(iter(self._idle))
            if now_ns - oldest.idle_since_ns < self._idle_ns_max:
                return
            del self._idle[oldest]
            oldest.drop()

    async def close(self) -> None:
        """Close all connections and wait for it; attempts that are still open are lost."""
        assert self._closed is None
        self._closed = self._loop.create_future()
        connecting = dict(self._connecting)
        for task, attempt in connecting.items():
            task.cancel()
            attempt._lose(BackendUnavailable(self.name, "gateway closing"))
        await asyncio.gather(*connecting, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.close()
        if self._connections:
            await self._closed

    def _head(self, method: str, path: str) -> bytes:
        """The request line, and the headers that are the same for all."""
        head = f"{method} {path} HTTP/1.1\r\n".encode("ascii") + self._fixed_head
        if len(self._heads) < HEADS_MAX:
            self._heads[method, path] = head
        return head

    def _take_idle(self) -> "_Connection | None":
        oldest_ns = time.monotonic_ns() - self._idle_ns_max
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.idle_since_ns > oldest_ns and not connection._transport.is_closing():
                return connection
            connection.drop()
        return None

    def _connect(self, attempt: Attempt) -> None:
        task = self._loop.create_task(self._establish(attempt))
        attempt._connecting = task
        self._connecting[task] = attempt
        task.add_done_callback(self._connecting.pop)

    async def _establish(self, attempt: Attempt) -> None:
        try:
            await self._loop.create_connection(
                lambda: _Connection(self, attempt),
                self._host,
                self._port,
                ssl=self._tls,
                server_hostname=self._server_name,
            )
        except (OSError, UnicodeError) as error:
            reason = _connect_reason(error, tls_used=self._tls is not None)
            attempt._lose(BackendUnavailable(self.name, reason))

    # -- what connections say

    def _opened(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def _gone(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self._idle.pop(connection, None)
        if self._closed is not None and not self._connections and not self._closed.done():
            self._closed.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection: idle, or with one attempt. Parser callbacks gather; `data_received` tells."""

    __slots__ = (
        "_answered", "_attempt", "_between_chunks", "_complete", "_decoder", "_encoding", "_excess", "_headed",
        "_headers", "_keep_alive",
        "_parser", "_parts", "_reading", "_reused", "_status", "_told", "_transport", "_unparsed_bytes", "_upstream",
        "idle_since_ns",
    )  # fmt: skip

    _transport: asyncio.Transport  # from connection_made on, which comes before all else

    def __init__(self, upstream: Upstream, first: Attempt) -> None:
        self.idle_since_ns = 0
        self._upstream = upstream
        self._attempt: Attempt | None = first
        self._parser = httptools.HttpResponseParser(self)
        self._reused = False
        self._reading = True
        self._clear()

    def _clear(self) -> None:
        """Ready for an answer."""
        self._headers: Headers = []
        self._status = 0
        self._encoding: bytes | None = None
        self._decoder: Decoder | None = None
        self._parts: list[bytes] = []
        self._unparsed_bytes = 0  # of the head, while it is incomplete
        self._answered = False  # a byte has come
        self._between_chunks = False  # for sure: so says the last read
        self._headed = False  # the final head is complete
        self._told = False  # … and the exchange knows
        self._complete = False
        self._keep_alive = False
        self._excess = False  # bytes came after the answer

    def start(self, attempt: Attempt) -> None:
        """Hand a request to this connection, which is idle."""
        assert self._attempt is None
        self._attempt = attempt
        if self._answered:
            self._clear()
        self._transport.write(attempt._request)
        attempt._connection = self
        attempt._connecting = None
        if attempt._paused:
            self.read(False)
        attempt._exchange.connected()

    def read(self, wanted: bool) -> None:
        """Read from the socket, or let the backend wait."""
        if wanted is self._reading or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def drop(self) -> None:
        """Close at once; nobody is told."""
        self._attempt = None
        self.close()

    def close(self) -> None:
        """Close at once; an attempt is lost."""
        self._transport.abort()

    # -- asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        if attempt._over:  # aborted in the last moment; uvloop may not tell the end of such a connection
            transport.abort()
            return
        self._upstream._opened(self)
        self.start(attempt)

    def connection_lost(self, exc: Exception | None) -> None:
        del self._parser  # it holds this protocol's methods: a cycle, and the collector comes rarely
        self._upstream._gone(self)
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        attempt._connection = None
        if self._upstream._closed is not None:
            attempt._lose(BackendDisconnected(self._upstream.name, "gateway closing"))
        elif self._headed and exc is None and self._ends_with_connection() and self._decoded():
            attempt._end()
        elif self._reused and not self._answered:
            attempt.reconnected = True
            self._upstream._connect(attempt)
        else:
            reason = "ended early" if self._answered else "no answer"
            attempt._lose(BackendDisconnected(self._upstream.name, reason))

    def data_received(self, data: bytes) -> None:
        attempt = self._attempt
        if attempt is None:  # nobody has asked
            self.drop()
            return
        if self._between_chunks:
            length = len(data)
            line = _SIZE_LINES[length] if length < _READ_MAX else None
            if (
                line is not None
                and data.startswith(line)
                and data.endswith(b"\r\n")
                and attempt._exchange.chunk(data, len(line))
            ):
                return
            self._between_chunks = False
        if not self._answered:
            known = self._upstream._known
            if known is not None and (body_at := known.body_at(data)):
                self._keep_alive = True
                self._tell_whole(attempt, *known.found, data[body_at:])
                return
            self._answered = True
        fault = self._parse(data)
        if self._complete and fault is None and not self._told and self._encoding is None:
            self._told = True
            parts, self._parts = self._parts, []
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            headers = [header for header in self._headers if header[0] != b"content-length"]
            if self._keep_alive and not self._excess and self._unparsed_bytes == len(data):
                self._upstream._known = KnownHead.of(data, len(body), (self._status, headers))
            self._tell_whole(attempt, self._status, headers, body)
            return
        if self._headed:
            self._between_chunks = fault is None and self._at_chunk_end(data)
            fault = self._tell(attempt) or fault
        if self._attempt is not attempt:  # aborted from within
            return
        if self._complete:
            self._finish(attempt, clean=fault is None)
        elif fault is not None:
            self.drop()
            attempt._lose(BackendFaulted(self._upstream.name, fault))

    def _parse(self, data: bytes) -> str | None:
        """Feed the parser; returns what is wrong with the answer's form, if anything."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return "protocol upgrade" if self._status == HTTPStatus.SWITCHING_PROTOCOLS else "not HTTP"
        if self._told:
            return None
        self._unparsed_bytes += len(data)
        bytes_max = self._upstream._head_bytes_max
        if self._unparsed_bytes > bytes_max and not (self._headed and self._head_bytes() <= bytes_max):
            self._headed = self._complete = False
            return "head too large"
        return None

    def _tell_whole(self, attempt: Attempt, status: int, headers: Headers, body: bytes) -> None:
        self._let_go(attempt, clean=True)
        attempt._over = True
        attempt._request = b""
        attempt._exchange.whole(status, headers, body)

    def _tell(self, attempt: Attempt) -> str | None:
        """Tell what this read has brought; returns what is wrong with the content, if anything."""
        if not self._told:
            self._told = True
            attempt._request = b""  # it may be long, and will not be sent again
            attempt._exchange.head(self._status, self._headers)
        if not self._parts or attempt._over:
            return None
        parts, self._parts = self._parts, []
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._encoding is not None:
            try:
                data = self._decode(self._encoding, data)
            except EncodingError as error:
                self._complete = False
                return str(error)
        if data:
            attempt._exchange.data(data)
        return None

    def _at_chunk_end(self, read: bytes) -> bool:
        """Was this read one chunk? The parser says so too: it found that much content in it, and two bytes behind."""
        if self._encoding is not None or len(self._parts) != 1:
            return False
        line = _SIZE_LINES[len(read)] if len(read) < _READ_MAX else None
        return line is not None and read.startswith(line) and len(self._parts[0]) == len(read) - len(line) - 2

    def _decode(self, encoding: bytes, data: bytes) -> bytes:
        if self._decoder is None:
            self._decoder = Decoder(encoding)
        return self._decoder.feed(data)

    def _decoded(self) -> bool:
        """Is the body whole, seen by its encoding?"""
        return self._decoder is None or self._decoder.complete

    def _finish(self, attempt: Attempt, *, clean: bool) -> None:
        """The answer has come to its end: let go of the connection, then say so."""
        self._let_go(attempt, clean=clean)
        if self._decoded():
            attempt._end()
        else:
            attempt._lose(BackendDisconnected(self._upstream.name, "ended early"))

    def _let_go(self, attempt: Attempt, *, clean: bool) -> None:
        """The answer has come to its end: keep the connection, if it is in order."""
        attempt._connection = None
        transport, upstream = self._transport, self._upstream
        if (
            clean
            and self._keep_alive
            and not self._excess
            and not transport.get_write_buffer_size()  # an answer may come before the request is out
            and not transport.is_closing()
            and len(upstream._idle) < upstream._idle_max
        ):
            self._attempt = None
            self._reused = True
            if not self._reading:
                self.read(True)
            self.idle_since_ns = time.monotonic_ns()
            upstream._idle[self] = None
        else:
            self.drop()

    def _head_bytes(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _ends_with_connection(self) -> bool:
        """A body with no length and no chunks is complete when the connection ends."""
        headers = dict(self._headers)
        chunked = headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
        return b"content-length" not in headers and not chunked

    # -- httptools

    def on_message_begin(self) -> None:
        self._excess = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:  # a chunked body may end with trailers
            return
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-encoding" and value.lower() != b"identity":
            self._encoding = value if self._encoding is None else b"%b, %b" % (self._encoding, value)

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        self._status = self._parser.get_status_code()
        if self._status < HTTPStatus.OK:  # interim: 100 Continue, 103 Early Hints
            self._headers = []
            self._encoding = None
            return
        self._headed = True
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._complete = self._headed


def _fixed_head(host: str, port: int, key: str | None) -> bytes:
    shown = f"[{host}]" if ":" in host else host
    lines = [f"host: {shown}:{port}", "accept: */*", "accept-encoding: identity"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    assert not any("\n" in line for line in lines)
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def _connect_reason(error: Exception, *, tls_used: bool) -> str:
    """A fixed phrase: the system's own message holds the address."""
    match error:
        case ssl.SSLError():
            return tls.handshake_reason(error)
        case ConnectionResetError() | ConnectionAbortedError() if tls_used:  # it closed in the handshake
            return "TLS failed"
        case ConnectionRefusedError():
            return "connect refused"
        case socket.gaierror() | UnicodeError():
            return "name not known"
        case TimeoutError():
            return "connect timeout"
    return "connect failed"
