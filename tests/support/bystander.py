"""A stream and a probe of /healthz beside whatever a test does: what others feel of it.

A process of its own holds the backend of the stream, its client and the probe, so that the work of the test itself
holds none of them up. It is told what to do by lines on its stdin and answers with lines on its stdout:

    ─▶ <port of the backend>      ◀─ watch PORT KEY MODEL   ─▶ begun   ◀─ stop   ─▶ {"gaps_s": […], …}

Imports nothing of the product.
"""

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.support.gateway import ROOT
from tests.support.rawbackend import Asked, backend
from tests.support.stage import CHAT, ROLE, RS, content, framed, opening

EVERY_S = 0.02
"""Between two events of the stream, and between two probes."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """gaps_s: between two reads of the stream; probes_s: how long each answer of /healthz took.

    late_s: by how much the bystander itself, which has nothing to wait for, was run later than it asked to be. So
    long the machine had other things to do, and that is nobody's doing.
    """

    gaps_s: list[float]
    probes_s: list[float]
    late_s: list[float]


class Bystander:
    """The process, from its creation to close(). port: of the backend that its stream comes from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.bystander"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.port = int(self._line())

    @contextlib.contextmanager
    def watching(self, gateway_port: int, key: str, model: str, seen: list[Seen]) -> Iterator[None]:
        """Watch while the block runs; what was seen is then put into `seen`."""
        self._tell(f"watch {gateway_port} {key} {model}")
        assert self._line() == "begun"
        yield
        self._tell("stop")
        seen.append(Seen(**json.loads(self._line())))

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


def percentile(values: list[float], per_cent: int) -> float:
    """The smallest of the values that so many per cent of them are not above."""
    return sorted(values)[-(-len(values) * per_cent // 100) - 1]


async def _endless(_asked: Asked, _reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(opening(ROLE))
    while not writer.is_closing():
        writer.write(framed(content("tok ")))
        await asyncio.sleep(EVERY_S)


async def _read(port: int, key: str, model: str, gaps_s: list[float], begun: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(RS | {"model": model}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        await reader.readuntil(b"tok")
        begun.set()
        last_s = time.monotonic()
        while await reader.read(65_536):
            now_s = time.monotonic()
            gaps_s.append(now_s - last_s)
            last_s = now_s
    finally:
        writer.close()


async def _probe(port: int, probes_s: list[float]) -> None:
    while True:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        probes_s.append(time.monotonic() - began_s)
        await asyncio.sleep(EVERY_S)


async def _be_late(late_s: list[float]) -> None:
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(EVERY_S)
        late_s.append(time.monotonic() - began_s - EVERY_S)


async def _watch(commands: asyncio.StreamReader, port: int, key: str, model: str) -> None:
    seen, begun = Seen([], [], []), asyncio.Event()
    tasks = [
        asyncio.create_task(_read(port, key, model, seen.gaps_s, begun)),
        asyncio.create_task(_probe(port, seen.probes_s)),
        asyncio.create_task(_be_late(seen.late_s)),
    ]
    await begun.wait()
    print("begun", flush=True)
    await commands.readline()
    for task in tasks:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(dataclasses.asdict(seen)), flush=True)


async def main() -> None:
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with backend(_endless) as port:
        print(port, flush=True)
        while line := await commands.readline():
            _, gateway_port, key, model = line.decode().split()
            await _watch(commands, int(gateway_port), key, model)


if __name__ == "__main__":
    asyncio.run(main())
