"""Asking a Redis or a Valkey on a unix socket or a port, by hand: what tests learn of a store they learn here."""

import fnmatch
import socket
import types
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any


class ValkeyError(Exception):
    """The store's own error reply."""


class Valkey:
    """One connection. Replies: str, int, None, lists of them; bytes with raw=True. Raises OSError."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        assert parts.scheme in ("unix", "redis")
        unix = parts.scheme == "unix"
        self._socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        try:
            self._socket.connect(urllib.parse.unquote(parts.path) if unix else (parts.hostname, parts.port))
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

    def ask_at_once(self, *commands: Sequence[str | bytes], raw: bool = False) -> list[Any]:
        """Send commands as one transaction; return their replies."""
        self.ask("MULTI")
        for command in commands:
            self.ask(*command)
        return list(self.ask("EXEC", raw=raw))

    def copy(self, pattern: str) -> dict[str, bytes]:
        """Keys as they are at one moment, for `put_back`."""
        keys = self.ask("KEYS", pattern)
        return dict(zip(keys, self.ask_at_once(*(("DUMP", key) for key in keys), raw=True), strict=True))

    def put_back(self, pattern: str, copy: Mapping[str, bytes]) -> None:
        """Replace all keys of this pattern by those of a copy that have it, at one moment."""
        deleted = [("DEL", key) for key in self.ask("KEYS", pattern)]
        copied = [
            ("RESTORE", key, "0", dump, "REPLACE")
            for key, dump in copy.items()
            if fnmatch.fnmatchcase(key, pattern)
        ]
        self.ask_at_once(*deleted, *copied)

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
