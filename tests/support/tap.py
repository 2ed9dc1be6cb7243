"""A tap: passes TCP connections on to a server and keeps every byte of both directions.

It judges what passed between two processes; neither of them knows of it.
"""

import collections.abc
import contextlib
import dataclasses
import socket
import threading

from tests.support.captures import Incomplete, Response, split_response

READ_BYTES = 65_536
CONNECT_S_MAX = 10


@dataclasses.dataclass(frozen=True)
class Connection:
    """Bytes of one connection. up: from the client; down: from the server."""

    up: bytearray = dataclasses.field(default_factory=bytearray)
    down: bytearray = dataclasses.field(default_factory=bytearray)


@dataclasses.dataclass(frozen=True)
class Passed:
    """A request seen by a tap, and its response; None: it did not come whole."""

    head: str
    body: bytes
    response: Response | None

    def header(self, name: str) -> str | None:
        """Value of a request header; `name` in lower case."""
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


class Tap:
    """Listens on a free loopback port from its creation until close()."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections: list[Connection] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are open end with their peers."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def passed(self) -> list[Passed]:
        """All requests so far that came whole, connection by connection."""
        return [passed for connection in list(self.connections) for passed in exchanges(connection)]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        connection = Connection()
        self.connections.append(connection)
        with client:
            try:
                server = socket.create_connection(self._server, timeout=CONNECT_S_MAX)
            except OSError:  # to the client it looks like a server that hung up
                return
            server.settimeout(None)
            with server:
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                upward = threading.Thread(target=self._pump, args=(client, server, connection.up))
                upward.start()
                self._pump(server, client, connection.down)
                upward.join()

    def _pump(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        """Pass bytes on until either side ends, then end both: a client that hangs up must be felt."""
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                kept += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def exchanges(connection: Connection) -> collections.abc.Iterator[Passed]:
    """Requests of one connection in order, each with its response."""
    up, down = bytes(connection.up), bytes(connection.down)
    while b"\r\n\r\n" in up:
        head, _, rest = up.partition(b"\r\n\r\n")
        passed = Passed(head.decode("latin-1"), b"", None)
        length = int(passed.header("content-length") or 0)
        if len(rest) < length:
            return
        body, up = rest[:length], rest[length:]
        method = passed.head.partition(" ")[0]
        try:
            response, down = split_response(down, method=method)
        except Incomplete:
            yield dataclasses.replace(passed, body=body)
            return
        yield dataclasses.replace(passed, body=body, response=response)
