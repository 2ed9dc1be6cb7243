"""HTTP/1.1 as a vLLM server speaks it: uvicorn's heads, framing and keep-alive.

    data_received ─▶ parser ─▶ Request ─▶ handler(request, connection)
                                            │ respond(…)                       a sized answer
                                            └ start_stream, chunk…, end        a chunked one
                                              close / reset                    a fault

One request at a time; those that come meanwhile wait, and nothing more is read. A client that leaves before its
answer's end is told to whoever set `on_lost`.
"""

import asyncio
import email.utils
import http
import socket
import struct
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import httptools
import msgspec

BODY_BYTES_MAX = 32 * 1024 * 1024
KEEP_ALIVE_S = 5.0
"""vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE default: an idle connection lives no longer."""

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"

_MARK = "x-weighbridge-simulated: 1"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A complete request. Header names are in lower case; of a repeated header the last counts."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Dates:
    """The `date` header, formatted once a second."""

    def __init__(self) -> None:
        self._at_s = 0
        self._text = ""

    def now(self) -> str:
        at_s = int(time.time())
        if at_s != self._at_s:
            self._at_s, self._text = at_s, email.utils.formatdate(at_s, usegmt=True)
        return self._text


Handler = Callable[[Request, "Connection"], None]


class Connection(asyncio.Protocol):
    """One client's connection. `on_lost` is called once if it goes while an answer is due."""

    on_lost: Callable[[], None] | None = None

    def __init__(self, handle: Handler, dates: Dates, open_connections: set["Connection"]) -> None:
        self._handle = handle
        self._dates = dates
        self._open_connections = open_connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool, bool]] = deque()
        self._idle: asyncio.TimerHandle | None = None
        self._busy = False
        self._keep_alive = True
        self._chunked = True
        self._without_body = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self._open_connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._cancel_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Its request has been handed on and is answered as any other; what follows is in no protocol we speak.
            self._keep_alive = False
            if not self._busy:
                self._transport.close()
        except httptools.HttpParserError:
            self._refuse(400, "Invalid HTTP request received.")

    def connection_lost(self, _exc: Exception | None, /) -> None:
        self._open_connections.discard(self)
        self._cancel_idle()
        self._waiting.clear()
        self._lost()

    # -- httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES_MAX:
            self._refuse(413, "Request body too large.")
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self.closing:  # it was refused for its size
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=urllib.parse.unquote(path),
            query=dict(urllib.parse.parse_qsl(query, keep_blank_values=True)),
            headers=self._headers,
            body=b"".join(self._body),
        )
        chunked = self._parser.get_http_version() != "1.0"
        self._waiting.append((request, self._parser.should_keep_alive(), chunked))
        if self._busy:
            self._transport.pause_reading()
        else:
            self._next()

    # -- answers

    @property
    def closing(self) -> bool:
        return self._transport.is_closing()

    def respond(
        self, status: int, body: bytes = b"", content_type: str | None = JSON, extra: Sequence[str] = ()
    ) -> None:
        """Send a whole answer. content_type None: there is no body to speak of. extra: header lines."""
        lines = [*extra]
        lines.append(f"content-length: {len(body)}")
        lines += [f"content-type: {content_type}"] if content_type else []
        shown = b"" if self._without_body else body
        self._transport.write(self._head(status, [*lines, "vary: Origin"]) + shown)
        self._answered()

    def respond_in_part(self, status: int, part: bytes, length: int) -> None:
        """Send the head of a JSON answer of `length` bytes and only `part` of it; the rest stays due."""
        lines = [f"content-length: {length}", f"content-type: {JSON}", "vary: Origin"]
        self._transport.write(self._head(status, lines) + part)

    def start_stream(self, status: int) -> None:
        lines = [f"content-type: {EVENT_STREAM}", "vary: Origin"]
        if self._chunked:
            lines.append("transfer-encoding: chunked")
        else:
            self._keep_alive = False
        self._transport.write(self._head(status, lines))

    def chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        self._answered()

    def close(self) -> None:
        """Close once what was written is out; no answer is due any more."""
        self.on_lost = None
        self._transport.close()

    def reset(self) -> None:
        """Close with a TCP reset; what was written may be lost."""
        self.on_lost = None
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    # -- inside

    def _next(self) -> None:
        request, self._keep_alive, self._chunked = self._waiting.popleft()
        self._without_body = request.method == "HEAD"
        self._busy = True
        self._handle(request, self)

    def _answered(self) -> None:
        self.on_lost = None
        self._busy = False
        if not self._keep_alive:
            self._transport.close()
        elif self._waiting and not self.closing:
            self._loop.call_soon(self._resume)
        else:
            self._idle = self._loop.call_later(KEEP_ALIVE_S, self._transport.close)

    def _resume(self) -> None:
        if not self.closing and self._waiting and not self._busy:
            self._next()
        if not self._waiting and not self.closing:
            self._transport.resume_reading()

    def _head(self, status: int, lines: list[str]) -> bytes:
        phrase = http.HTTPStatus(status).phrase
        first = (f"HTTP/1.1 {status} {phrase}", f"date: {self._dates.now()}", "server: uvicorn")
        closing = () if self._keep_alive else ("connection: close",)
        return "\r\n".join((*first, *lines, _MARK, *closing, "", "")).encode("latin-1")

    def _refuse(self, status: int, message: str) -> None:
        """Not a request that can be answered for what it is: say so and close."""
        if not self.closing:
            self._keep_alive = False
            self._transport.write(
                self._head(
                    status, [f"content-length: {len(message)}", "content-type: text/plain; charset=utf-8"]
                )
                + message.encode()
            )
            self._lost()
            self._transport.close()

    def _lost(self) -> None:
        if self.on_lost is not None:
            on_lost, self.on_lost = self.on_lost, None
            on_lost()

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
