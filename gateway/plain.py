"""The plain driver's client: an answer sent by ASGI, under any server.

What goes to the client is gathered and sent by the request's own task, so a slow client holds up nobody: above
DOWN_BYTES_HIGH its backend is not read.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway import events as machine
from gateway.relay import DOWN_BYTES_HIGH, Relay

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class PlainClient:
    """The client's side of one call."""

    def __init__(self) -> None:
        self._relay: Relay | None = None
        self._head: Message | None = None
        self._down: list[bytes] = []
        self._down_bytes = 0
        self._finished = False
        self._over = False
        self._gone = False
        self._wake = asyncio.Event()

    # -- what the relay says

    def open(self, status: int, headers: machine.Headers) -> None:
        """Status and headers."""
        self._head = {"type": "http.response.start", "status": status, "headers": list(headers)}
        self._wake.set()

    def write(self, data: bytes) -> None:
        """Bytes of the body."""
        self._down.append(data)
        self._down_bytes += len(data)
        if self._down_bytes > DOWN_BYTES_HIGH and self._relay is not None:
            self._relay.pause()
        self._wake.set()

    def finish(self, data: bytes) -> None:
        """The last bytes."""
        if data:
            self._down.append(data)
        self._finished = True
        self._wake.set()

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
            relay.feed(machine.ClientGone())  # over by now, unless the server gave the client up

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        assert self._relay is not None
        self._relay.feed(machine.ClientGone())
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
