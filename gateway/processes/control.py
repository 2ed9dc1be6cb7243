"""What a worker and its supervisor say to each other over a socket pair, one line a message.

    worker → supervisor     ready <writer>     it takes calls, under this writer's name
                            behind             a ledger mark fell behind what the store had acknowledged
    supervisor → worker     behind             another worker's mark fell behind

The end of the stream says something too: the other one is gone.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple

LINE_BYTES_MAX = 256


class Ready(NamedTuple):
    """The worker takes calls. writer: the name of its journal directory."""

    writer: str


class Behind(NamedTuple):
    """The store lost what it had acknowledged: all journals are to be compared with it at once."""


Message = Ready | Behind


class ControlError(ValueError):
    """The other side said something that is no message."""


def encode(message: Message) -> bytes:
    """The message as its line."""
    return " ".join((type(message).__name__.lower(), *message)).encode() + b"\n"


class Decoder:
    """Cut a stream into messages, however it was chunked."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes, in order. Raises ControlError."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        if len(self._tail) > LINE_BYTES_MAX:
            raise ControlError("a line without an end")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    match line.split():
        case [b"ready", writer]:
            return Ready(writer.decode("ascii", "replace"))
        case [b"behind"]:
            return Behind()
        case _:
            raise ControlError(f"no message: {line[:LINE_BYTES_MAX]!r}")


class Line:
    """A worker's end. What it says after the supervisor has gone is lost, and nobody misses it."""

    def __init__(self, transport: asyncio.Transport, listener: "_Listener") -> None:
        self._transport = transport
        self._listener = listener

    def on_behind(self, callback: Callable[[], None]) -> None:
        """Call this from now on at each `behind`; what came before is forgotten."""
        self._listener.on_behind = callback

    def ready(self, writer: str) -> None:
        """Calls are taken, under this writer's name."""
        self._transport.write(encode(Ready(writer)))

    def behind(self) -> None:
        """A ledger mark fell behind what the store had acknowledged."""
        self._transport.write(encode(Behind()))

    def close(self) -> None:
        """Say no more. The callbacks are not called either."""
        self._transport.abort()


class _Listener(asyncio.Protocol):
    def __init__(self, on_end: Callable[[], None]) -> None:
        self.on_behind: Callable[[], None] = lambda: None
        self._on_end = on_end
        self._decoder = Decoder()
        self._ended = False

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            assert isinstance(message, Behind)
            self.on_behind()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end()


async def connect(fd: int, *, on_end: Callable[[], None]) -> Line:
    """Take over a worker's end of the pair. on_end: called once, when the supervisor has gone."""
    transport, listener = await asyncio.get_running_loop().create_connection(
        lambda: _Listener(on_end), sock=socket.socket(fileno=fd)
    )
    return Line(transport, listener)
