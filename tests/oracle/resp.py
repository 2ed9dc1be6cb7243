"""Redis' protocol by hand, as much of it as reading a ledger needs."""

import socket
import urllib.parse
from typing import Self

ANSWER_S_MAX = 10.0

Reply = str | int | list["Reply"] | None


class RespError(Exception):
    """The store said no, or closed the connection."""


class Connection:
    """A connection to a store on a unix socket. url: `unix:///path`."""

    def __init__(self, url: str, *, answer_s_max: float = ANSWER_S_MAX) -> None:
        """Raises OSError."""
        parts = urllib.parse.urlsplit(url)
        assert parts.scheme == "unix", url
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(answer_s_max)
        try:
            self._socket.connect(urllib.parse.unquote(parts.path))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, *words: str) -> Reply:
        """One command and its reply. Raises RespError, OSError."""
        encoded = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)]
        self._socket.sendall(b"".join(parts))
        return self._reply()

    def keys(self, pattern: str) -> list[str]:
        """All keys of a pattern, sorted."""
        found = self.ask("KEYS", pattern)
        assert isinstance(found, list)
        return sorted(str(key) for key in found)

    def hash(self, key: str) -> dict[str, str]:
        """A hash, whole."""
        found = self.ask("HGETALL", key)
        assert isinstance(found, list)
        words = [str(word) for word in found]
        return dict(zip(words[::2], words[1::2], strict=True))

    def _reply(self) -> Reply:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise RespError("the store closed the connection")
        kind, rest = line[:1], line[1:-2].decode()
        match kind:
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"$":
                return None if rest == "-1" else self._bulk(int(rest))
            case b"*":
                return [self._reply() for _ in range(int(rest))]
        raise RespError(rest)

    def _bulk(self, length: int) -> str:
        data = self._file.read(length + 2)
        if len(data) != length + 2:
            raise RespError("the store closed the connection")
        return data[:-2].decode()
