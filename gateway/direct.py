"""The direct driver: a call and its connection, with no task and no ASGI between them.

A subclass of uvicorn's protocol, and all that is known of uvicorn's inside. A plain POST to one of OPERATIONS is
taken at its head, and its answer is written to the transport by the relay's own callbacks. Whatever is out of the
ordinary (another path or method, a body in an encoding, `Expect`, HTTP/1.0, a refusal by the head alone, a
pipelined request) goes uvicorn's way to the same code by ASGI. So does everything, if this is not the uvicorn
that it was written for: see `usable`.
"""

import asyncio
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway import events as machine
from gateway.errors import GatewayError
from gateway.openai_api import OpenAIApi, Visit
from gateway.operations import OPERATIONS
from gateway.relay import DOWN_BYTES_HIGH, Relay

UVICORN = "0.54.0"
"""Whose inside this is written for; tests/gateway/test_direct.py fails when another one is installed."""

_PATHS = {path.encode("ascii"): path for path in OPERATIONS}
_UNUSUAL = (b"expect", b"content-encoding", b"upgrade")


def usable() -> bool:
    """Is this the uvicorn that the driver was written for?"""
    return uvicorn.__version__ == UVICORN


class Door:
    """Where connections find the API, once there is one; and uvicorn's own headers, as bytes."""

    api: OpenAIApi | None = None

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._rendered = b""

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """headers: of uvicorn's server state; a new list each second, for the date."""
        if headers is not self._headers:
            self._headers = headers
            self._rendered = b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._rendered


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
        self.since_ns = 0
        """When it last began to wait: for a request, or for more of one (monotonic)."""
        self._visit: Visit | None = None  # of a request whose body is coming
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._relay: Relay | None = None
        self._keep_alive = True
        self._head: bytes | None = None  # of the answer, until its first bytes
        self._chunked = False
        self._ordinary = False  # the request goes uvicorn's way

    # -- uvicorn and the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since_ns = time.monotonic_ns()
        transport.set_write_buffer_limits(DOWN_BYTES_HIGH)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        relay, self._relay, self._visit = self._relay, None, None
        if relay is not None:
            relay.feed(machine.ClientGone())

    def pause_writing(self) -> None:
        """The transport holds DOWN_BYTES_HIGH."""
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
        if self._relay is None and self._visit is None:
            super().shutdown()
        else:
            self._keep_alive = False

    # -- the parser

    def on_message_begin(self) -> None:
        """A request begins; what uvicorn needs for it is made only if it goes uvicorn's way."""
        self.url = b""
        self.headers = []
        self._ordinary = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers too come here, and nobody reads them."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete: whose is it?"""
        path = _PATHS.get(self.url)
        api = self.door.api
        if path is None or api is None or not self._plain_post():
            self._go_ordinary()
            return
        visit = api.visit(path, self.headers)
        try:
            if any(name in visit.headers for name in _UNUSUAL):
                raise _Unusual
            length = visit.headers.get(b"content-length")
            if length is not None and int(length) > api.body_bytes_max:
                raise _Unusual
            api.authorize(visit, "POST")
        except (GatewayError, _Unusual):
            self._go_ordinary()  # where it is refused once more, and told so
            return
        self._visit = visit
        self._body, self._body_bytes = [], 0
        self._keep_alive = self.parser.should_keep_alive()
        self.cycle = _OURS

    def _plain_post(self) -> bool:
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # pipelined
        return self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1"

    def _go_ordinary(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self._ordinary = True
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the request's body."""
        if self._ordinary:
            super().on_body(body)
        elif (visit := self._visit) is not None:
            self._body.append(body)
            self._body_bytes += len(body)
            api = self.door.api
            assert api is not None
            if self._body_bytes > api.body_bytes_max:
                self._visit = None  # what is still to come of it is not kept
                self._refuse(api, api.body_too_large(), visit)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._ordinary:
            super().on_message_complete()
            return
        visit, self._visit = self._visit, None
        body, self._body = self._body, []
        api = self.door.api
        if visit is None or api is None:
            return
        try:
            self._relay = api.begin(visit, body[0] if len(body) == 1 else b"".join(body), self)
        except Exception as error:  # noqa: BLE001  our own mistake must still be an answer and a line
            self._refuse(api, error, visit)
            return
        self._relay.start()

    def _refuse(self, api: OpenAIApi, error: Exception, visit: Visit) -> None:
        status, headers, body = api.refuse(error, visit)
        self.open(status, headers)
        self.finish(body)

    # -- the answer

    def open(self, status: int, headers: machine.Headers) -> None:
        """Its head; it leaves with the first bytes of the body."""
        self._chunked = True
        parts = [STATUS_LINE[status], self.door.default_headers(self.server_state.default_headers)]
        for name, value in headers:
            if name == b"content-length":
                self._chunked = False
            parts += (name, b": ", value, b"\r\n")
        if self._chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        if not self._keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        self._head = b"".join(parts)

    def write(self, data: bytes) -> None:
        """Bytes of the body."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head is not None:
            data, self._head = self._head + data, None
        self.transport.write(data)

    def finish(self, data: bytes) -> None:
        """The last bytes; then the next request."""
        self._relay = None
        if self.cycle is _OURS:  # else a pipelined request waits
            self.cycle = None  # type: ignore[assignment]
        transport = self.transport
        if transport.is_closing():
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        if self._head is not None:
            data, self._head = self._head + data, None
        transport.write(data)
        if not self._keep_alive:
            transport.close()
        elif self.pipeline:
            self.on_response_complete()
        else:
            self.since_ns = time.monotonic_ns()


class _Unusual(Exception):
    """Not for this driver."""
