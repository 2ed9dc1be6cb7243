"""The pools' way to the store: messages and replies on one connection, wakes on another.

    Said ─▶ EVALSHA pool.lua ─▶ Reply                        the pool's shard
            PUBLISH wb:1:pools[:<worker>] ─▶ Wake            any shard; a wake may be lost, or come more than once

A reply belongs to the connection that it was asked on; when that is lost there is none, and who asked says it anew.
"""

import functools
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from metering.ledger.scripts import lua
from metering.limits import pool_messages
from metering.limits.connection import LOST, Link, Server, command
from metering.limits.links import Links
from metering.limits.pool_messages import Reply, Said, Wake
from metering.logs import log
from metering.units import NS_PER_MS

_ELSEWHERE = ("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN")

logger = logging.getLogger("weighbridge.pools")

Answered = Callable[[Reply | None], None]
"""Called with the reply to a message; None: there will be none."""


def script() -> str:
    """The store's side."""
    return lua("pool")


def tag(backend: str) -> str:
    """What is hashed of the key of a backend's pool."""
    return f"pool:{backend}"


def key(backend: str) -> str:
    """Where a backend's pool is kept."""
    return f"wb:1:{{{tag(backend)}}}:slots"


class Pools:
    """Of one worker. All on the loop's thread. Raises ValueError if the store can't be at `url`.

    name: the worker's, of no other ever. connected: called when the store can be asked, again; woken: with a pool's
    key and what is told of it.
    """

    def __init__(
        self, url: str, name: str, *, connected: Callable[[], None], woken: Callable[[str, Wake], None]
    ) -> None:
        self._connected = connected
        self._woken = woken
        self._links = Links(url, on_up=self._came_up, on_down=lambda _link: None, after_replies=lambda: None)
        self._subscribe = command("SUBSCRIBE", "wb:1:pools", f"wb:1:pools:{name}")
        self._wakers: dict[Server, Link] = {}
        self._script = script()
        self._sha = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._refused: set[str] = set()  # told once each

    def start(self) -> None:
        """Begin to connect."""
        self._links.start()

    async def close(self) -> None:
        """Let go of the store. Idempotent."""
        await self._links.close()
        for waker in self._wakers.values():
            await waker.close()

    def ask(self, backend: str, said: Said, answered: Answered) -> bool:
        """Send a message of a pool. False: it can't be sent."""
        link = self._links.of(tag(backend))
        if link is None or not link.up:
            return False
        self._send(link, "EVALSHA", self._sha, backend, pool_messages.encode(said), answered)
        return True

    def sender(self, backend: str) -> Callable[[Said, Answered], bool]:
        """`ask` of one pool."""
        return functools.partial(self.ask, backend)

    def sweep(self) -> None:
        """Look for replies that are late."""
        now_ms = time.monotonic_ns() // NS_PER_MS
        for link in self._links.all:
            link.sweep(now_ms)

    def _send(self, link: Link, name: str, text: str, backend: str, data: bytes, answered: Answered) -> None:
        replied = functools.partial(self._replied, link, backend, data, answered)
        link.send(command(name, text, "1", key(backend), data), replied)
        link.flush()

    def _replied(self, link: Link, backend: str, data: bytes, answered: Answered, reply: Any) -> None:
        if isinstance(reply, bytes):
            answered(self._read(reply))
            return
        error = "" if reply is LOST else str(reply)
        if (
            error.startswith("NOSCRIPT") and link.up
        ):  # it was started anew, or is another one; it keeps what it is sent
            self._send(link, "EVAL", self._script, backend, data, answered)
            return
        if error.startswith(_ELSEWHERE):
            self._links.moved()
        elif error and (code := error.partition(" ")[0]) not in self._refused:
            self._refused.add(code)
            log(logger, logging.ERROR, "the store refuses a pool's message", code=code)
        answered(None)

    def _read(self, data: bytes) -> Reply | None:
        try:
            return pool_messages.decode_reply(data)
        except msgspec.MsgspecError:
            log(logger, logging.ERROR, "a pool's reply makes no sense")
            return None

    def _came_up(self, link: Link) -> None:
        if link.server not in self._wakers:
            waker = Link(
                link.server,
                on_up=functools.partial(self._listen, link.server),
                on_down=lambda: None,
                after_replies=lambda: None,
                on_push=self._pushed,
            )
            self._wakers[link.server] = waker
            waker.start()
        self._connected()

    def _listen(self, server: Server) -> None:
        self._wakers[server].send(self._subscribe, lambda _reply: None)

    def _pushed(self, push: Any) -> None:
        if push[0] != b"message":
            return  # that it listens to the second one too
        try:
            self._woken(*pool_messages.decode_wake(push[2]))
        except (msgspec.MsgspecError, TypeError, IndexError):
            log(logger, logging.ERROR, "a wake makes no sense")
