"""Many clients of a gateway at once, each with a connection of its own a request, and a log of what each read.

Raw sockets and nothing of the product. One log entry for each request that was sent (`Entry`), changing
while it goes on. The clients live in a thread; their asks are drawn from a seed, client by client.
"""

import asyncio
import contextlib
import dataclasses
import json
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

ANSWER_S_MAX = 60.0
CONNECT_S_MAX = 5.0
BACKOFF_S = 0.05
"""After a connection that was refused: nobody listens for a moment."""
TEXT = "weigh the load of every truck that crosses this bridge and write its ticket before it leaves "


@dataclasses.dataclass
class Entry:
    """One request. events: with choices; tokens: of them, those that are not the opening with the role.

    call_id: from the answer's head. usage: counts that the client was told. leaves_after: events after which
    it leaves by itself; None: it stays. ended: it read the end of a good answer, framing included. broken: how the
    connection failed it; error: the code or message of an error it was told.
    """

    request_id: str
    tenant: str
    path: str
    stream: bool
    include_usage: bool
    leaves_after: int | None
    call_id: str | None = None
    status: int | None = None
    events: int = 0
    tokens: int = 0
    usage: dict[str, int] | None = None
    done: bool = False
    ended: bool = False
    left: bool = False
    error: str | None = None
    broken: str | None = None
    over: bool = False

    @property
    def writer(self) -> str | None:
        """The worker that answers, as its call id names it."""
        return self.call_id.rpartition("-")[0] if self.call_id else None

    @property
    def midway(self) -> bool:
        """A stream that has had an event and no end."""
        return self.stream and self.events > 0 and not self.over


@dataclasses.dataclass(frozen=True)
class Target:
    """Where the asks go: a port of this host, API keys by tenant, a model."""

    port: int
    keys: Mapping[str, str]
    model: str


Draw = Callable[[random.Random, str, Target], tuple[Entry, bytes]]
"""Draws the request of this id: its log entry and its body."""


class Load:
    """Clients that ask again and again from `start` until `finish`."""

    def __init__(
        self, target: Target, clients: int, seed: int, name: str, *, draw: Draw | None = None
    ) -> None:
        """name: begins every request id of this load. draw: default: mostly streams, of all lengths."""
        self.entries: list[Entry] = []
        self._target = target
        self._clients = clients
        self._seed = seed
        self._name = name
        self._draw = draw or _ask
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name=f"load-{name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Ask nothing more, and wait until every answer under way is over."""
        self._stopping.set()
        self._thread.join(ANSWER_S_MAX)
        assert not self._thread.is_alive(), "clients are stuck"

    @property
    def events(self) -> int:
        """Events read so far, by all clients."""
        return sum(entry.events for entry in self.entries)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._clients):
                group.create_task(self._client(number, random.Random(f"{self._seed} {self._name} {number}")))

    async def _client(self, number: int, rng: random.Random) -> None:
        asked = 0
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._target.port)
            except (OSError, TimeoutError):
                await asyncio.sleep(BACKOFF_S)
                continue
            asked += 1
            entry, body = self._draw(rng, f"{self._name}-{number}-{asked}", self._target)
            self.entries.append(entry)
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    await self._exchange(entry, body, reader, writer)
            except (
                OSError,
                EOFError,
            ) as error:  # TimeoutError is an OSError, IncompleteReadError an EOFError
                entry.broken = type(error).__name__
            finally:
                entry.over = True
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _exchange(
        self, entry: Entry, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = [
            f"POST {entry.path} HTTP/1.1", "host: gateway", f"authorization: Bearer {self._target.keys[entry.tenant]}",
            "content-type: application/json", f"x-request-id: {entry.request_id}", f"content-length: {len(body)}",
        ]  # fmt: skip
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        if entry.leaves_after == 0:
            await writer.drain()
            entry.left = True
            return
        headers = await _read_head(entry, reader)
        if "content-length" in headers:
            _take_sized(entry, await reader.readexactly(int(headers["content-length"])))
            return
        buffer = b""
        async for data in _chunks(reader):
            *events, buffer = (buffer + data).split(b"\n\n")
            for event in events:
                _take_event(entry, event)
            if entry.leaves_after is not None and entry.events >= entry.leaves_after and not entry.done:
                entry.left = True
                return
        entry.ended = entry.done and entry.error is None and not buffer


def _ask(rng: random.Random, request_id: str, target: Target) -> tuple[Entry, bytes]:
    """Draw a request: four in five streams, one in eight clients leaves before the end."""
    chat, stream, include_usage = rng.random() < 0.75, rng.random() < 0.9, rng.random() < 0.5
    leaves_after = rng.choice((0, 1, 4, 8)) if stream and rng.random() < 0.12 else None
    entry = Entry(
        request_id=request_id,
        tenant=rng.choice(sorted(target.keys)),
        path="/v1/chat/completions" if chat else "/v1/completions",
        stream=stream,
        include_usage=stream and include_usage,
        leaves_after=leaves_after,
    )
    text = (TEXT * 4)[: rng.randrange(20, 4 * len(TEXT))]  # fronts in common: cached
    body: dict[str, Any] = {"model": target.model, "max_tokens": rng.randrange(8, 32)}
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    if stream:
        body["stream"] = True
    if entry.include_usage:
        body["stream_options"] = {"include_usage": True}
    return entry, json.dumps(body).encode()


async def _read_head(entry: Entry, reader: asyncio.StreamReader) -> dict[str, str]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    pairs = (line.partition(":") for line in lines[1:])
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    entry.status = int(lines[0].split()[1])
    entry.call_id = headers.get("x-weighbridge-call-id")
    return headers


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body's chunks; ends with its terminator. Raises IncompleteReadError if there is none."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)


def _take_event(entry: Entry, event: bytes) -> None:
    payload = event.removeprefix(b"data: ")
    if payload == b"[DONE]":
        entry.done = True
        return
    found = json.loads(payload)
    if "error" in found:
        entry.error = str(found["error"].get("code") or found["error"].get("message"))
        return
    for choice in found["choices"]:
        entry.events += 1
        entry.tokens += "role" not in choice.get("delta", {})
    if not found["choices"]:
        entry.usage = _counts(found["usage"])


def _take_sized(entry: Entry, body: bytes) -> None:
    found = json.loads(body)
    if entry.status == 200:
        entry.usage = _counts(found["usage"])
        entry.ended = True
    else:
        entry.error = str(found["error"].get("code") or found["error"].get("message"))


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_prompt_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }
