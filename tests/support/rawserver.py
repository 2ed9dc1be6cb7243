"""A TCP server that sends exactly what a script says, for judging clients of HTTP.

It parses as much of a request as is needed to know where it ends, and imports nothing of the project.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

WAIT_S = 5.0
"""How long anything in a test is waited for."""


class Peer:
    """One accepted connection. number: from 0, in the order they came."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._reader = reader
        self._writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Read one request; returns its head, blank line included, and its body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return head, await self._reader.readexactly(length)

    async def read(self) -> bytes:
        """Read what has come; waits for the first byte."""
        return await self._reader.read(65536)

    @property
    def tls(self) -> ssl.SSLObject:
        """Of a connection over TLS."""
        found: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return found

    async def send(self, *pieces: bytes) -> None:
        """Write each piece by itself and let it leave."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    async def gone(self) -> bool:
        """Wait until the client has closed. returns: True; False if it sent something instead."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Close in good order."""
        self._writer.close()

    def reset(self) -> None:
        """Close with RST."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@contextlib.asynccontextmanager
async def serve(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve with `script` for each connection; yields the port. A script that fails fails the test."""
    numbers = iter(range(1_000_000))
    running: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(Peer(next(numbers), reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left in the middle: for the test to judge, not for the script
        except Exception as error:  # noqa: BLE001  told below
            failed.append(error)
        finally:
            writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve_one(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(accepted, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()
    if failed:
        raise failed[0]
