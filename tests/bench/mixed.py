"""The mixed load of the soak: calls that end well, clients that leave, backends that fail, requests that are wrong.

A fixed number of clients, each with one kept-alive connection, take turns through the kinds: what is sent
depends on nothing but the seed.
"""

import asyncio
import collections
import contextlib
import enum
import json
import random
from collections.abc import Mapping

from tests.bench.scenarios import CUT_MODEL, FAILING_MODEL, SCENARIOS, body

PAUSE_S = 0.04
"""Between two requests of a client: the load is bounded by it, not by what the gateway can do."""
ANSWER_S_MAX = 30.0
EVENTS_BEFORE_LEAVING = 20
END_OF_CHUNKS = b"0\r\n\r\n"


class Kind(enum.Enum):
    """How a request ends."""

    COMPLETED = "completed"
    STREAMED = "streamed"
    LEFT = "left"  # the client goes in mid-stream
    CUT = "cut"  # the backend does
    FAILED = "failed"  # the backend answers with 500
    REFUSED_KEY = "refused: key"
    REFUSED_MODEL = "refused: model"
    REFUSED_BODY = "refused: body"


SHARES = {
    Kind.COMPLETED: 40, Kind.STREAMED: 40, Kind.LEFT: 8, Kind.CUT: 4, Kind.FAILED: 4,
    Kind.REFUSED_KEY: 2, Kind.REFUSED_MODEL: 1, Kind.REFUSED_BODY: 1,
}  # fmt: skip
"""How often, of a hundred."""

CALLS = {Kind.COMPLETED, Kind.STREAMED, Kind.LEFT, Kind.CUT, Kind.FAILED}
"""Those that are admitted: a record each; the others are a `refused` line each."""

STATUS = {Kind.FAILED: 502, Kind.REFUSED_KEY: 401, Kind.REFUSED_MODEL: 404, Kind.REFUSED_BODY: 400}
"""What the client must be told; 200 where nothing stands."""

STREAMS = {Kind.STREAMED, Kind.LEFT, Kind.CUT}


def request_of(kind: Kind, key: str) -> bytes:
    """Head and body."""
    content = body(SCENARIOS["paced" if kind in STREAMS else "json"])
    model = {Kind.CUT: CUT_MODEL, Kind.FAILED: FAILING_MODEL, Kind.REFUSED_MODEL: "nobody-has-it"}.get(kind)
    if model is not None:
        content = json.dumps({**json.loads(content), "model": model}).encode()
    if kind is Kind.REFUSED_BODY:
        content = content[:-1]
    key = "wb-wrong" if kind is Kind.REFUSED_KEY else key
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Mixed:
    """The load. sent: requests by kind; faults: what a client should not have seen, each once, with its count."""

    def __init__(self, port: int, key: str, *, clients: int, seed: int) -> None:
        self.sent: collections.Counter[Kind] = collections.Counter()
        self.faults: collections.Counter[str] = collections.Counter()
        self._port = port
        self._requests = {kind: request_of(kind, key) for kind in Kind}
        self._clients = clients
        self._random = random.Random(seed)

    async def run(self, seconds: float) -> None:
        """Send for so long, and wait for the last answers."""
        until = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(self._clients):
                group.create_task(self._client(until))

    async def _client(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        connection: Connection | None = None
        while loop.time() < until:
            (kind,) = self._random.choices(list(SHARES), list(SHARES.values()))
            if connection is None:
                connection = await Connection.open(self._port)
            self.sent[kind] += 1
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    fault = await connection.exchange(kind, self._requests[kind])
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                fault = f"{type(error).__name__}: {error}"
            if fault:
                self.faults[f"{kind.value}: {fault}"] += 1
            if fault or connection.spent:
                connection.close()
                connection = None
            await asyncio.sleep(PAUSE_S)
        if connection is not None:
            connection.close()


class Connection:
    """A client's connection. spent: nothing more can be asked on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.spent = False

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()

    async def exchange(self, kind: Kind, request: bytes) -> str | None:
        """Ask and read. returns: what is wrong with the answer. Raises OSError, IncompleteReadError, TimeoutError."""
        self._writer.write(request)
        status, headers = await self._head()
        if status != STATUS.get(kind, 200):
            self.spent = True
            return f"status {status}"
        self.spent = headers.get("connection") == "close"
        if kind is Kind.LEFT:
            for _ in range(EVENTS_BEFORE_LEAVING):
                await self._reader.readuntil(b"\n\n")
            self.spent = True
            return None
        if "content-length" in headers:
            answer = await self._reader.readexactly(int(headers["content-length"]))
        else:
            answer = await self._reader.readuntil(END_OF_CHUNKS)
        if kind is Kind.STREAMED and not (b"[DONE]" in answer and b'"usage":{' in answer):
            return "a stream without its end"
        if kind is Kind.CUT and b'"error"' not in answer:
            return "a cut stream without an error event"
        return None

    async def _head(self) -> tuple[int, Mapping[str, str]]:
        raw = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        return int(first.split()[1]), headers
