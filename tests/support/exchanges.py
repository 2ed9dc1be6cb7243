"""Attempts at a backend, and an exchange that writes down what it is told."""

import asyncio
from collections.abc import Callable
from typing import Any

from backends.errors import BackendError
from backends.upstream import Attempt, Upstream
from tests.support.rawserver import WAIT_S

LINES = b"x-request-id: r1\r\ncontent-type: application/json\r\n"


class Told:
    """An exchange that writes down what it is told. Nothing may come before `ready`, the return of `send()`."""

    def __init__(self) -> None:
        self.ready = False
        self.calls: list[str] = []
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.reads: list[bytes] = []
        self.error: BackendError | None = None
        self.attempt: Attempt | None = None
        self.then: dict[str, Callable[[], object]] = {}
        self.takes_chunks = False
        self.chunks_taken = 0
        self._changed = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.reads)

    def _note(self, name: str) -> None:
        assert self.ready or name == "connected", "called from within send()"
        assert not {"end", "lost"} & set(self.calls), f"{name} after the end"
        self.calls.append(name)
        self._changed.set()
        if name in self.then:
            self.then[name]()

    def connected(self) -> None:
        self._note("connected")

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, headers
        self._note("head")

    def data(self, data: bytes) -> None:
        assert data
        self.reads.append(data)
        self._note("data")

    def chunk(self, read: bytes, at: int) -> bool:
        if self.takes_chunks:
            self.chunks_taken += 1
            self.data(read[at:-2])
        return self.takes_chunks

    def end(self) -> None:
        self._note("end")

    def whole(self, status: int, headers: list[tuple[bytes, bytes]], data: bytes) -> None:
        """Noted as what it stands for."""
        self.head(status, headers)
        if data:
            self.data(data)
        self.end()

    def lost(self, error: BackendError) -> None:
        self.error = error
        self._note("lost")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def called(self, name: str) -> None:
        await self.until(lambda: name in self.calls)

    async def over(self) -> None:
        await self.until(lambda: bool({"end", "lost"} & set(self.calls)))


def start(upstream: Upstream, told: Told, *, method: str = "POST", body: bytes = b"{}") -> Told:
    told.attempt = upstream.send(method, "/v1/chat/completions", LINES, body, told)
    told.ready = True
    return told


async def ask(upstream: Upstream, **options: Any) -> Told:
    told = start(upstream, Told(), **options)
    await told.over()
    return told


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no callback tells."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)
