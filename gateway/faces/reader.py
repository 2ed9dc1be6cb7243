"""Having a question of a face answered by a process of its own: a task on its stdin, the answer on its stdout.

A process for each: what it reads takes memory, which goes with it, and time, which a worker's loop does not have.
It ends itself after its time, whoever may still wait for it, and is told to end when who asked has gone.
"""

import asyncio
import asyncio.subprocess
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

import msgspec

from gateway.faces.answers import ANSWER_BYTES_MAX, LENGTH_BYTES, Answer, Sent
from gateway.processes.workplaces import environment

LATE_S = 5
"""How much later a process is killed, should it not end itself, or when it is told to."""
EXIT_LATE = 3
EXIT_UNWANTED = 4
_BUFFER_BYTES = 64 * 1024
"""Twice that waits here for a slow client, as much in its transport, and 64 KiB in the pipe."""


class ReadError(Exception):
    """There is no answer, or no end of it; the message says why."""


class Reader(NamedTuple):
    """A kind of process. module: what it runs; read_s: how long it may; what: what it reads, for messages."""

    module: str
    read_s: int
    what: str


class Reading:
    """An answer that is coming. answer: what was said first; sent: of a file, once all its pieces were taken."""

    answer: Answer
    sent: Sent | None = None

    def __init__(
        self, reader: Reader, process: asyncio.subprocess.Process, stream: asyncio.StreamReader
    ) -> None:
        self._reader = reader
        self._process = process
        self._stream = stream

    async def begin(self, task: bytes) -> None:
        """Give it its task, and take what it says first. Raises ReadError."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; its status says why
            self._process.stdin.write(task)
            await self._process.stdin.drain()
            self._process.stdin.close()
        try:
            if (length := await self._length()) > ANSWER_BYTES_MAX:
                raise ReadError("the answer is too long")
            self.answer = msgspec.json.decode(await self._stream.readexactly(length), type=Answer)
        except (asyncio.IncompleteReadError, msgspec.MsgspecError):
            raise await self._why() from None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The file; a piece is read when it is asked for. Raises ReadError: this was not all of it."""
        try:
            while length := await self._length():
                yield await self._stream.readexactly(length)
            self.sent = msgspec.json.decode(await self._stream.read(), type=Sent)
        except (asyncio.IncompleteReadError, msgspec.MsgspecError):
            raise await self._why() from None

    async def _length(self) -> int:
        return int.from_bytes(await self._stream.readexactly(LENGTH_BYTES))

    async def _why(self) -> ReadError:
        """Its stream has ended too early."""
        code = await self._process.wait()
        return _too_late(self._reader) if code == EXIT_LATE else ReadError(f"it ended with the status {code}")


@contextlib.asynccontextmanager
async def reading(reader: Reader, task: bytes) -> AsyncIterator[Reading]:
    """Have it answered; the process goes with the block. Raises ReadError, OSError."""
    async with _process(reader) as (process, stream):
        try:
            async with asyncio.timeout(reader.read_s + LATE_S):
                found = Reading(reader, process, stream)
                await found.begin(task)
                yield found
        except TimeoutError:
            raise _too_late(reader) from None


async def read(reader: Reader, task: bytes) -> Answer:
    """The same of what is no file. Raises ReadError, OSError."""
    async with reading(reader, task) as found:
        return found.answer


@contextlib.asynccontextmanager
async def _process(
    reader: Reader,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """The process, and what it says. By a socket of our own: asyncio's pipe stays open until all of it was read."""
    mine, its = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mine)
        with its:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", reader.module, str(reader.read_s),
                stdin=asyncio.subprocess.PIPE, stdout=its.fileno(), env=environment(),
            )  # fmt: skip
        stack.callback(_end, process)
        stream, writer = await asyncio.open_connection(sock=mine, limit=_BUFFER_BYTES)
        stack.pop_all()  # the socket is the connection's now, and must not be closed twice
        try:
            yield process, stream
        finally:
            writer.close()
            _end(process)


def _too_late(reader: Reader) -> ReadError:
    return ReadError(f"{reader.what} could not be read within {reader.read_s} s")


def _end(process: asyncio.subprocess.Process) -> None:
    """Told to, it deletes what it has fetched; but it is not waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        asyncio.get_running_loop().call_later(LATE_S, _kill, process)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
