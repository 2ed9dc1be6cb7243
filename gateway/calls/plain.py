"""The plain driver's client: a request and its answer by ASGI, under any server.

What goes to the client is gathered and sent by the request's own task, so a slow client holds up nobody: when too
much waits for it, its backend is not read.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.api.bodies import too_large
from gateway.api.errors import TooSlow
from gateway.calls import events as machine
from gateway.calls.bounds import Patience
from gateway.calls.relay import Relay
from metering.units import NS_PER_S

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def read_body(receive: Receive, *, bytes_max: int, patience: Patience) -> bytes | None:
    """The whole body; None if the client left. Raises BodyTooLarge, TooSlow."""
    parts: list[bytes] = []
    total = 0
    began_s = asyncio.get_running_loop().time()
    while True:
        try:
            async with asyncio.timeout_at(began_s + patience.body_time_ns(total) / NS_PER_S):
                message = await receive()
        except TimeoutError:
            raise TooSlow("the body came too slowly") from None
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        total += len(part)
        if total > bytes_max:
            raise too_large(bytes_max)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def answer(send: Send, status: int, headers: machine.Headers, body: bytes) -> None:
    """Send a whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def adding(send: Send, headers: machine.Headers) -> Send:
    """`send`, with these headers added to the answer's own."""

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return send_more


class PlainClient:
    """The client's side of one call. buffer_bytes_max: what may wait for it before its backend is not read."""

    write_chunk: Callable[[bytes], None] | None = None  # framing is the server's

    def __init__(self, buffer_bytes_max: int) -> None:
        self._buffer_bytes_max = buffer_bytes_max
        self._relay: Relay | None = None
        self._head: Message | None = None
        self._down: list[bytes] = []
        self._down_bytes = 0
        self._finished = False
        self._over = False
        self._gone = False
        self._wake = asyncio.Event()

    # -- what the relay says

    def open(self, status: int, lines: bytes) -> None:
        """Status and headers."""
        self._head = {"type": "http.response.start", "status": status, "headers": machine.header_pairs(lines)}
        self._wake.set()

    def write(self, data: bytes) -> None:
        """Bytes of the body."""
        self._down.append(data)
        self._down_bytes += len(data)
        if self._down_bytes > self._buffer_bytes_max and self._relay is not None:
            self._relay.pause()
        self._wake.set()

    def finish(self, data: bytes) -> None:
        """The last bytes."""
        if data:
            self._down.append(data)
        self._finished = True
        self._wake.set()

    def reply(self, status: int, lines: bytes, data: bytes) -> None:
        """All of it."""
        self.open(status, lines)
        self.finish(data)

    # -- the request's task

    async def run(self, relay: Relay, receive: Receive, send: Send) -> None:
        """Serve the call. Returns when its end has been sent, or the client has gone."""
        self._relay = relay
        watcher = asyncio.create_task(self._watch(receive))
        try:
            relay.start()
            while not self._over and not self._gone:
                await self._wake.wait()
                self._wake.clear()
                await self._send_down(send)
        finally:
            watcher.cancel()
            relay.gone()  # over by now, unless the server gave the client up

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        assert self._relay is not None
        self._relay.gone()
        self._wake.set()

    async def _send_down(self, send: Send) -> None:
        assert self._relay is not None
        if self._head is not None:
            head, self._head = self._head, None
            await send(head)
        while self._down or (self._finished and not self._over):
            pieces, self._down, self._down_bytes = self._down, [], 0
            self._over = self._finished
            await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": not self._over})
            self._relay.resume()
