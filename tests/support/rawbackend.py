"""A backend that sends what a test tells it to, byte for byte: raw TCP, no server library.

It imports nothing of the product. Probes (`/health`, `/version`, `/v1/models`) are answered as vLLM does,
`/metrics` with 404; every other request goes to the test's `answer`.
"""

import asyncio
import contextlib
import dataclasses
import json
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request as it came. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


_TURNS = 3
"""Of the loop, at the end: a connection that failed in its handshake was never ours, and closes in turns of its own."""

Answer = Callable[[Asked, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def backend(
    answer: Answer,
    *,
    port: int = 0,
    model: str = "m1",
    max_model_len: int = 4096,
    writers: set[asyncio.StreamWriter] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve on a port of 127.0.0.1 (0: a free one) while the block runs; gives the port.

    answer: writes the whole response, framing included; the connection stays open after it.
    writers: where the open connections are kept, for a test that counts them. tls: spoken instead of plain HTTP.
    """

    writers = set() if writers is None else writers

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (asked := await _read(reader)) is not None:
                known = _probe(asked.path, model, max_model_len)
                if known is None:
                    await answer(asked, reader, writer)
                else:
                    writer.write(known)
                    await writer.drain()
        await _close(writer)
        writers.discard(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*map(_close, tuple(writers)))
        for _ in range(_TURNS):
            await asyncio.sleep(0)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(first.split()[1], headers, body)


def _probe(path: str, model: str, max_model_len: int) -> bytes | None:
    match path:
        case "/health":
            return sized(b"")
        case "/version":
            return sized(b'{"version":"0.32.0"}')
        case "/v1/models":
            card = {"id": model, "object": "model", "max_model_len": max_model_len}
            return sized(json.dumps({"object": "list", "data": [card]}).encode())
        case "/metrics":  # it keeps no counters
            return sized(b"", "404 Not Found")
    return None


def sized(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A response with a content length."""
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def chunked(*pieces: bytes, kind: str = "text/event-stream; charset=utf-8") -> bytes:
    """A response in chunks, one for each piece, with its terminator."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


class Scripted:
    """A backend in a thread of its own: a test puts answers into `script`, the next request takes the first.

    An answer is bytes, or a coroutine function like `Answer`; with the script empty it is `default`.
    asked: the requests that came. port 0: a free one. tls: a test may change it before it starts the backend again.
    """

    def __init__(
        self,
        default: bytes | Answer,
        *,
        port: int = 0,
        max_model_len: int = 4096,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.default = default
        self.script: list[bytes | Answer] = []
        self.asked: list[Asked] = []
        self.port = port
        self.tls = tls
        self._max_model_len = max_model_len
        self._writers: set[asyncio.StreamWriter] = set()
        self.start()

    @property
    def open_connections(self) -> int:
        """How many connections are open to it now."""
        return len(self._writers)

    def start(self) -> None:
        """Listen (again), on the same port."""
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(started),))
        self._thread.start()
        assert started.wait(10)

    def stop(self) -> None:
        """Stop listening and close all connections: as a killed server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        async with backend(
            self._answer,
            port=self.port,
            max_model_len=self._max_model_len,
            writers=self._writers,
            tls=self.tls,
        ) as port:
            self.port = port
            started.set()
            await self._stopping.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(asked)
        answer = self.script.pop(0) if self.script else self.default
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(asked, reader, writer)
