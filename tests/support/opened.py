"""An answer that is read piece by piece, and left when a test likes. A raw socket; imports nothing of the product."""

import contextlib
import json
import socket
import struct
import time

from tests.support import captures

READ_BYTES = 65_536
ANSWER_S_MAX = 15.0
"""Between two reads."""


class Opened:
    """A request that was sent; its answer is read as far as it is asked for."""

    def __init__(
        self, port: int, key: str, body: object, *, path: str = "/v1/chat/completions", **headers: str
    ) -> None:
        """body: JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1", "host: gateway", f"authorization: Bearer {key}",
            "content-type: application/json", "connection: close", f"content-length: {len(data)}",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]  # fmt: skip
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # an answer may be there to be read
            self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        self._raw = b""

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def status(self) -> int:
        """Of the answer, whose head must have come."""
        return int(self._raw.split(b" ", 2)[1])

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case."""
        lines = self._raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def body(self) -> bytes:
        """What has come of it, without its chunk framing."""
        framed = self._raw.partition(b"\r\n\r\n")[2]
        if self.headers.get("transfer-encoding") != "chunked":
            return framed
        body = b""
        while framed:
            line, newline, rest = framed.partition(b"\r\n")
            if not newline or not (size := int(line.partition(b";")[0], 16)):
                break
            body += rest[:size]
            framed = rest[size + 2 :]
        return body

    @property
    def complete(self) -> bool:
        """Does its framing say that this was all?"""
        try:
            captures.read_response(self._raw, method="POST")
        except captures.Incomplete:
            return False
        return True

    def read_until(self, wanted: bytes) -> float:
        """Read until the body holds this; returns the moment (monotonic seconds). Fails at its end."""
        while b"\r\n\r\n" not in self._raw or wanted not in self.body:
            assert self.read_some(), (wanted, self._raw[-2000:])
        return time.monotonic()

    def read_count(self, wanted: bytes, times: int) -> None:
        """Read until the body holds this so often."""
        while b"\r\n\r\n" not in self._raw or self.body.count(wanted) < times:
            assert self.read_some(), (wanted, self._raw[-2000:])

    def rest(self) -> bytes:
        """Read to the end of the connection; returns the whole body."""
        while self.read_some():
            pass
        return self.body

    def read_some(self) -> bool:
        """Read what is there, or comes next; False: the connection has ended."""
        try:
            data = self._socket.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        self._raw += data
        return bool(data)

    def leave(self) -> None:
        """Close the connection, as a client does that has what it wants, or has given up."""
        self._socket.close()

    def reset(self) -> None:
        """Close it with a reset, as a client that was killed."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
