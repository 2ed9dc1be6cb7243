"""Mock model servers in a process of their own: `python -m tests.crash.backend LOG SERVERS`.

They imitate vLLM by hand and import nothing of the product. A request says in `user` how it is to be answered
(`Manner`), so that calls are met in every state. The first line on stdout is a list of ports. What happens to a
request is noted in LOG at once, a JSON line each:

    {"request_id", "server", "outcome": "open"}                              it was read
    {"request_id", "server", "outcome": "completed", "prompt_tokens", …}     the whole answer went out, with its counts
    {"request_id", "server", "outcome": "failed"}                            it was not

The last of the servers does not keep connections, and does not take new ones half of the time.
"""

import asyncio
import contextlib
import enum
import json
import os
import pathlib
import socket
import struct
import sys
from typing import Any

from tests.support.rawbackend import sized

MODEL = "m1"
PAUSE_S = 0.7
OPEN_S = 1.5
BEAT_S = 0.3
"""What a manner waits where others go on."""
STALL_S = 4.0
"""Longer than the gateway waits."""
MODELS_PAGE = json.dumps(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]}
).encode()


class Manner(enum.StrEnum):
    """How a request is answered."""

    PLAIN = "plain"
    SLOW_HEAD = "slow_head"
    SLOW_FIRST = "slow_first"  # the head, then nothing for a beat
    SLOW_BODY = "slow_body"  # the same of an answer that is not streamed
    SLOW_USAGE = "slow_usage"  # the last token, then nothing for a beat
    SLOW_END = "slow_end"  # [DONE], and the end of the body a beat later
    REFUSE = "refuse"  # a 400, whose body comes a beat later
    FAIL = "fail"  # a 500
    BUSY = "busy"  # a 503
    RESET_FIRST = "reset_first"  # no byte of an answer
    RESET_MIDWAY = "reset_midway"
    STALL_FIRST = "stall_first"
    STALL_MIDWAY = "stall_midway"


FAILING_ONCE = {Manner.FAIL, Manner.BUSY, Manner.RESET_FIRST, Manner.STALL_FIRST}
"""The gateway may ask another server, which then answers."""


class Log:
    """The servers' log. One write() a line, so that whoever reads it sees whole lines."""

    def __init__(self, path: pathlib.Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, request_id: str, server: int, outcome: str, **counts: int) -> None:
        entry = {"request_id": request_id, "server": server, "outcome": outcome, **counts}
        os.write(self._fd, json.dumps(entry).encode() + b"\n")


class Cut(Exception):
    """The connection is to be cut here, with a RST."""


class Ask:
    """A request, and how it is answered. seen_before: another server has failed it."""

    def __init__(self, path: str, request_id: str, body: bytes, seen_before: bool) -> None:
        self.request_id = request_id
        self.chat = path.endswith("/chat/completions")
        read = json.loads(body)
        self.stream = bool(read.get("stream"))
        self.tokens = int(read.get("max_tokens", 8))
        self.gap_s = int(read.get("seed", 0)) / 1_000
        self.manner = Manner(read.get("user", "plain"))
        if seen_before and self.manner in FAILING_ONCE:
            self.manner = Manner.PLAIN
        prompt = len(json.dumps(read.get("messages", read.get("prompt")))) // 4
        self.counts = {
            "prompt_tokens": prompt, "cached_tokens": prompt // 3, "completion_tokens": self.tokens,
        }  # fmt: skip

    @property
    def usage(self) -> dict[str, Any]:
        prompt, cached, completion = self.counts.values()
        return {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }  # fmt: skip

    def event(self, **choice: object) -> bytes:
        """A stream's event, in a chunk of its own; with no choice the usage event."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        body: dict[str, Any] = {"id": "c1", "object": kind, "created": 1, "model": MODEL}
        body |= {"choices": [{"index": 0, "finish_reason": None, **choice}]} if choice else {
            "choices": [], "usage": self.usage,
        }  # fmt: skip
        return chunk(b"data: %b\n\n" % json.dumps(body).encode())

    def token(self, last: bool) -> bytes:
        reason = {"finish_reason": "length"} if last else {}
        return self.event(**({"delta": {"content": "ton "}} if self.chat else {"text": "ton "}), **reason)

    def whole(self) -> bytes:
        """The answer to a request that wants no stream."""
        text = "ton " * self.tokens
        told = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        kind = "chat.completion" if self.chat else "text_completion"
        choice = {"index": 0, "finish_reason": "length", **told}
        body = {"id": "c1", "object": kind, "created": 1, "model": MODEL, "choices": [choice]}
        return json.dumps(body | {"usage": self.usage}).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Server:
    """One of the servers. reluctant: the one that does not always take connections."""

    def __init__(self, number: int, log: Log, seen: set[str], reluctant: bool) -> None:
        self._number = number
        self._log = log
        self._seen = seen
        self._reluctant = reluctant
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=0 if reluctant else 512)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        pause_at_s = loop.time() + OPEN_S
        while True:
            if self._reluctant and loop.time() > pause_at_s:
                await asyncio.sleep(PAUSE_S)  # the backlog fills, and who comes then gets no answer at all
                pause_at_s = loop.time() + OPEN_S
            try:
                async with asyncio.timeout(OPEN_S):
                    accepted, _ = await loop.sock_accept(self._socket)
            except TimeoutError:
                continue
            reader, writer = await asyncio.open_connection(sock=accepted)
            task = loop.create_task(self._connection(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                while await self._exchange(reader, writer):
                    pass
        except Cut:
            with contextlib.suppress(OSError):  # the gateway was the first to leave
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer. returns: may another follow?"""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, path, _ = first.split(" ")
        if method == "GET":
            page = {"/health": b"", "/version": b'{"version":"0.32.0"}', "/v1/models": MODELS_PAGE}.get(path)
            writer.write(sized(b"{}", "404 Not Found") if page is None else sized(page))
        else:
            await self._answer(path, headers["x-request-id"], body, writer)
        await writer.drain()
        return not self._reluctant

    async def _answer(self, path: str, request_id: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self._log.note(request_id, self._number, "open")
        ask = Ask(path, request_id, body, request_id in self._seen)
        self._seen.add(request_id)
        try:
            await (self._stream(ask, writer) if ask.stream else self._whole(ask, writer))
        except BaseException:
            self._log.note(request_id, self._number, "failed")
            raise

    async def _before(self, ask: Ask, writer: asyncio.StreamWriter) -> bool:
        """What comes in place of a good answer. True: that was all."""
        match ask.manner:
            case Manner.SLOW_HEAD:
                await asyncio.sleep(BEAT_S)
            case Manner.STALL_FIRST:
                await asyncio.sleep(STALL_S)
            case Manner.RESET_FIRST:
                raise Cut
            case Manner.FAIL | Manner.BUSY:
                status = (
                    "500 Internal Server Error" if ask.manner is Manner.FAIL else "503 Service Unavailable"
                )
                writer.write(sized(b'{"error":{"message":"no"}}', status))
            case Manner.REFUSE:
                page = sized(
                    b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}',
                    "400 Bad Request",
                )
                head_end = page.index(b"\r\n\r\n") + 4
                await self._in_two(page, head_end, writer)
        if ask.manner in (Manner.FAIL, Manner.BUSY, Manner.REFUSE):
            self._log.note(ask.request_id, self._number, "failed")
            return True
        return False

    async def _whole(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        if await self._before(ask, writer):
            return
        page = sized(ask.whole())
        if ask.manner in (Manner.RESET_MIDWAY, Manner.STALL_MIDWAY):
            writer.write(page[: len(page) // 2])
            await writer.drain()
            await asyncio.sleep(BEAT_S if ask.manner is Manner.RESET_MIDWAY else STALL_S)
            raise Cut
        self._log.note(ask.request_id, self._number, "completed", **ask.counts)
        if ask.manner is Manner.SLOW_BODY:
            await self._in_two(page, page.index(b"\r\n\r\n") + 4, writer)
        else:
            writer.write(page)

    async def _in_two(self, data: bytes, at: int, writer: asyncio.StreamWriter) -> None:
        writer.write(data[:at])
        await writer.drain()
        await asyncio.sleep(BEAT_S)
        writer.write(data[at:])

    async def _stream(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        if await self._before(ask, writer):
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if ask.manner is Manner.SLOW_FIRST:
            await writer.drain()
            await asyncio.sleep(BEAT_S)
        if ask.chat:
            writer.write(ask.event(delta={"role": "assistant", "content": ""}))
        for number in range(ask.tokens):
            if ask.manner in (Manner.RESET_MIDWAY, Manner.STALL_MIDWAY) and number == ask.tokens // 2:
                await asyncio.sleep(0 if ask.manner is Manner.RESET_MIDWAY else STALL_S)
                raise Cut
            writer.write(ask.token(last=number == ask.tokens - 1))
            await writer.drain()
            await asyncio.sleep(ask.gap_s)
        if ask.manner is Manner.SLOW_USAGE:
            await asyncio.sleep(BEAT_S)
        if writer.transport.is_closing():
            raise ConnectionError("the gateway has left")
        self._log.note(ask.request_id, self._number, "completed", **ask.counts)
        end = ask.event() + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        if ask.manner is Manner.SLOW_END:
            await self._in_two(end, len(end) - len(b"0\r\n\r\n"), writer)
        else:
            writer.write(end)


async def main(log: str, servers: str) -> None:
    made_log, seen, count = Log(pathlib.Path(log)), set[str](), int(servers)
    made = [Server(number, made_log, seen, reluctant=number == count - 1) for number in range(count)]
    print(json.dumps([server.port for server in made]), flush=True)
    await asyncio.gather(*(server.serve() for server in made))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
