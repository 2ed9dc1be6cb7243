"""The port of a gateway: taken by the supervisor, shared by one listening socket per worker.

Connections are dealt out by the kernel (SO_REUSEPORT), so each worker's socket has its own backlog.
"""

import socket
from typing import NamedTuple

BACKLOG = 4096
DUAL_STACK = "::"


class Address(NamedTuple):
    """Where to listen. An empty host is every address; port 0 is one that the system picks."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Where a client on this machine finds it."""
        local = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", DUAL_STACK: "::1"}
        return f"http://{Address(local.get(self.host, self.host), self.port)}"


class Port:
    """A port that is ours, workers or not, until `close`."""

    def __init__(self, address: Address) -> None:
        """Raises OSError: the port is taken, or the address is none of this machine's."""
        dual = not address.host and socket.has_dualstack_ipv6()
        found = socket.getaddrinfo(
            (DUAL_STACK if dual else address.host) or None,
            address.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        self._dual = dual
        self._family, self._bound = found[0], found[4]
        # Bound without SO_REUSEPORT, so that it fails where another gateway listens: with it they would
        # share the port. It gets it afterwards, for the workers' sockets, and never listens itself.
        self._anchor = self._socket()
        try:
            self._anchor.bind(self._bound)
            self._anchor.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError:
            self._anchor.close()
            raise
        self._bound = self._anchor.getsockname()
        self.address = Address(address.host, int(self._bound[1]))

    def listen(self) -> socket.socket:
        """One more listening socket, the caller's to close. Raises OSError."""
        listener = self._socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(self._bound)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Let go of the port."""
        self._anchor.close()

    def _socket(self) -> socket.socket:
        made = socket.socket(self._family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not self._dual)
        return made
