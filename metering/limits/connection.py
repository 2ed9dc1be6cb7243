"""One multiplexed connection to one server of the store: many commands are under way, replies come in their order.

    send ─▶ buffer ─(flush, once a turn)─▶ socket ─▶ replies, each to who asked

redis-py takes a connection for each command that waits; at thousands of messages a second that, and its futures, cost
more than all else. A reply belongs to the connection that it was asked on: when one is lost all that is under way on it
is unanswered, and who asked is told so. Replies that are late make a connection as good as lost (`sweep`).
"""

import asyncio
import binascii
import collections
import contextlib
import logging
import ssl
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
import msgspec

from metering.logs import log

CONNECT_S_MAX = 1.0
REPLY_MS_MAX = 300
"""The store answers within a millisecond: one that takes this long is as good as away."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0
LASTING_S = 5.0
"""A connection that has lasted for so long was a good one: the next try comes soon."""

logger = logging.getLogger("weighbridge.limits")

Answered = Callable[[Any], None]
"""Called with a reply (bytes, int, None, lists; hiredis.ReplyError), or with Lost."""


class Lost:
    """Stands where a reply would: there will be none. Whether the command was done is not known."""


LOST = Lost()


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is, and how one signs in there. unix: the path of its socket, and then no host.

    tls: the options of the URL, None: not over TLS.
    """

    host: str = ""
    port: int = 6379
    unix: str | None = None
    user: str | None = None
    password: str | None = None
    db: int = 0
    tls: dict[str, str] | None = None

    def greeting(self) -> list[bytes]:
        """What is said first on a connection; each is answered with OK, or PONG."""
        said = []
        if self.password is not None:
            said.append(command("AUTH", *([self.user] if self.user else []), self.password))
        if self.db:
            said.append(command("SELECT", str(self.db)))
        return [*said, command("PING")]


def server_of(url: str) -> Server:
    """The server of a URL as metering/ledger/servers.py has them, of a Cluster without its other hosts."""
    parts = urllib.parse.urlsplit(url)
    options = dict(urllib.parse.parse_qsl(parts.query))
    user, password = (
        urllib.parse.unquote(part) if part else None for part in (parts.username, parts.password)
    )
    if parts.scheme == "unix":
        path = urllib.parse.unquote(parts.path)
        return Server(unix=path, user=user, password=password, db=int(options.get("db", "0")))
    db = parts.path.strip("/") or options.get("db", "0")
    return Server(
        host=parts.hostname or "localhost",
        port=parts.port or 6379,
        user=user,
        password=password,
        db=int(db),
        tls=options if parts.scheme == "rediss" else None,
    )


def command(*words: str | bytes) -> bytes:
    """A command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word.encode() if isinstance(word, str) else word
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Link:
    """A connection to one server, made again and again. All on the loop's thread.

    on_up, on_down: called when it can be asked, and when it cannot any more; what was under way has been answered with
    LOST by then. after_replies: called once all replies of one read have been handed out. on_push: called with what
    nobody has asked for, as a subscription brings it. up: can it be asked?
    """

    def __init__(
        self,
        server: Server,
        *,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        after_replies: Callable[[], None],
        on_push: Callable[[Any], None] | None = None,
        reply_ms_max: int = REPLY_MS_MAX,
    ) -> None:
        self.server = server
        self.up = False
        self._on_up = on_up
        self._on_down = on_down
        self._on_push = on_push
        self.after_replies = after_replies
        self._reply_ms_max = reply_ms_max
        self._wire: _Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Begin to connect, and go on until `close`."""
        self._task = asyncio.create_task(self._run(), name="limits-link")

    async def close(self) -> None:
        """Let go of it; what is under way is lost. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def send(self, data: bytes, answered: Answered) -> None:
        """Send a command, as `command` makes it, with the next flush. Only while it is up."""
        assert self._wire is not None
        self._wire.send(data, answered)

    def flush(self) -> None:
        """Hand all that was sent to the socket."""
        if self._wire is not None:
            self._wire.flush()

    async def ask(self, data: bytes) -> Any:
        """Send a command at once, and wait for its reply, or for LOST. Only while it is up."""
        assert self._wire is not None
        return await _answer(self._wire, data)

    def sweep(self, now_ms: int) -> None:
        """Look whether a reply is late. now_ms: of any clock, the same each time.

        What it is judged by is when a sweep saw it first: a loop that was late itself blames nobody.
        """
        if self._wire is not None and self._wire.is_late(now_ms, self._reply_ms_max):
            log(logger, logging.WARNING, "the store answers too slowly", ms_max=self._reply_ms_max)
            self._wire.abort()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s, told = 0.0, False
        while True:
            began_s = loop.time()
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    wire = await self._connect(loop)
            except (OSError, TimeoutError, ssl.SSLError, _NotWelcome) as error:
                if not told:
                    reason = str(error) if isinstance(error, _NotWelcome) else "no connection"
                    log(logger, logging.WARNING, "limits cannot be checked", reason=reason)
                    told = True
            else:
                told = False
                try:
                    await self._serve(wire)
                finally:
                    wire.abort()
                    self._gone(wire)
                if loop.time() - began_s >= LASTING_S:
                    backoff_s = 0.0
            await asyncio.sleep(backoff_s)
            backoff_s = min(max(2 * backoff_s, BACKOFF_S_MIN), BACKOFF_S_MAX)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> "_Wire":
        """Raises OSError, _NotWelcome."""
        server = self.server
        wire = _Wire(lambda: self.after_replies(), self._on_push)
        if server.unix is not None:
            await loop.create_unix_connection(lambda: wire, server.unix)
        else:
            context = None if server.tls is None else _context(server.tls)
            await loop.create_connection(lambda: wire, server.host, server.port, ssl=context)
        try:
            await self._greet(wire)
        except BaseException:
            wire.abort()
            raise
        return wire

    async def _greet(self, wire: "_Wire") -> None:
        for said in self.server.greeting():
            answer = await _answer(wire, said)
            if isinstance(answer, hiredis.ReplyError):
                raise _NotWelcome(str(answer).partition(" ")[0])
            if answer is LOST:
                raise ConnectionResetError

    async def _serve(self, wire: "_Wire") -> None:
        self._wire, self.up = wire, True
        self._on_up()
        wire.flush()
        await wire.ended.wait()

    def _gone(self, wire: "_Wire") -> None:
        if self._wire is wire:
            self._wire, self.up = None, False
            wire.lose()
            self._on_down()


class _NotWelcome(Exception):
    """The server answered what we said first with an error; its first word."""


class _Wire(asyncio.Protocol):
    """One connection, from its making to its end."""

    def __init__(
        self, after_replies: Callable[[], None], on_push: Callable[[Any], None] | None = None
    ) -> None:
        self.ended = asyncio.Event()
        self._after_replies = after_replies
        self._on_push = on_push
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._waiting: collections.deque[Answered] = collections.deque()
        self._buffer: list[bytes] = []
        self._sent = 0  # commands
        self._answered = 0
        self._watched = 0  # the command whose reply is waited for
        self._since_ms = 0  # … since then

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport  # uvloop's is no instance of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio calls it so
        self.lose()
        self.ended.set()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _MORE:
                if self._on_push is not None and not self._waiting:
                    self._on_push(reply)
                    continue
                self._answered += 1
                self._waiting.popleft()(reply)
        except (hiredis.ProtocolError, IndexError):
            log(logger, logging.ERROR, "the store makes no sense")
            self.abort()
            return
        self._after_replies()

    def send(self, data: bytes, answered: Answered) -> None:
        self._buffer.append(data)
        self._waiting.append(answered)
        self._sent += 1

    def flush(self) -> None:
        if self._buffer and self._transport is not None:
            self._transport.write(b"".join(self._buffer) if len(self._buffer) > 1 else self._buffer[0])
            self._buffer.clear()

    def is_late(self, now_ms: int, ms_max: int) -> bool:
        if self._answered == self._sent:
            self._watched = 0
            return False
        if self._watched != self._answered + 1:
            self._watched, self._since_ms = self._answered + 1, now_ms
        return now_ms - self._since_ms > ms_max

    def lose(self) -> None:
        waiting, self._waiting = self._waiting, collections.deque()
        for answered in waiting:
            answered(LOST)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.ended.set()


_MORE = object()


async def _answer(wire: _Wire, data: bytes) -> Any:
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered(value: Any) -> None:
        if not reply.done():  # who waited may be gone
            reply.set_result(value)

    wire.send(data, answered)
    wire.flush()
    return await reply


def _context(options: dict[str, str]) -> ssl.SSLContext:
    """As redis-py makes it of these options of the URL. Raises OSError."""
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    required = options.get("ssl_cert_reqs", "required")
    if required == "none" or options.get("ssl_check_hostname", "true").lower() in ("false", "no", "0"):
        context.check_hostname = False
    if required != "required":
        context.verify_mode = ssl.CERT_NONE if required == "none" else ssl.CERT_OPTIONAL
    if certificate := options.get("ssl_certfile"):
        context.load_cert_chain(certificate, options.get("ssl_keyfile"))
    return context


def slot_of(tag: str) -> int:
    """The slot of a Cluster that keys with this hash tag are in: CRC-16/XMODEM, 14 bits."""
    return binascii.crc_hqx(tag.encode(), 0) % 16384


def masters(reply: Sequence[Any]) -> list[tuple[int, int, str, int]]:
    """CLUSTER SLOTS' reply: first slot, last slot, host, port of each master."""
    return [(one[0], one[1], one[2][0].decode(), one[2][1]) for one in reply]
