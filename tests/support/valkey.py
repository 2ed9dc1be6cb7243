"""Asking a Redis or a Valkey on a unix socket, by hand: what tests learn of a store they learn here."""

import socket
import types
import urllib.parse
from typing import Any


class ValkeyError(Exception):
    """The store's own error reply."""


class Valkey:
    """One connection. Replies: str, int, None, lists of them; bytes with raw=True. Raises OSError."""

    def __init__(self, url: str) -> None:
        assert url.startswith("unix://")
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(urllib.parse.unquote(url.removeprefix("unix://")))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> "Valkey":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, *words: str | bytes, raw: bool = False) -> Any:
        """Send one command; return its reply. Raises ValkeyError."""
        encoded = [word if isinstance(word, bytes) else word.encode() for word in words]
        self._socket.sendall(
            b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        )
        return self._reply(raw)

    def _reply(self, raw: bool) -> Any:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"+":
                return rest.decode()
            case b"-":
                raise ValkeyError(rest.decode())
            case b":":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else self._bulk(int(rest), raw)
            case b"*":
                return [self._reply(raw) for _ in range(int(rest))]
            case _:
                raise ConnectionError("the store has closed the connection")

    def _bulk(self, length: int, raw: bool) -> str | bytes:
        data = self._file.read(length + 2)[:-2]
        return data if raw else data.decode()
