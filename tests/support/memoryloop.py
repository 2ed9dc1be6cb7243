"""An event loop whose connections are in memory: a test gives each read to the client itself."""

import asyncio
from collections.abc import Callable
from typing import Any


class MemoryTransport(asyncio.Transport):
    """The client's side of a connection. written: what it has sent; protocol: whom the test gives its reads."""

    def __init__(self, protocol: asyncio.Protocol, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.protocol = protocol
        self.written: list[bytes] = []
        self._loop = loop
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self.end()

    def end(self) -> None:
        """The connection ends in good order; its protocol hears of it in the next turn."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    def read(self, data: bytes) -> None:
        """Give the client these bytes in one read, as a socket would: not once it is closed."""
        if not self._closing:
            self.protocol.data_received(data)


class MemoryLoop(asyncio.SelectorEventLoop):
    """Connects to nothing. transports: the connections, in the order in which they were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: list[MemoryTransport] = []

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], *_address: Any, **_options: Any
    ) -> tuple[MemoryTransport, asyncio.Protocol]:
        protocol = factory()
        transport = MemoryTransport(protocol, self)
        self.transports.append(transport)
        protocol.connection_made(transport)
        return transport, protocol
