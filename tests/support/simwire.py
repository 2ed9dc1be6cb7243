"""Calls of a simulated server as bytes on a socket, and what its log says of them."""

import collections.abc
import contextlib
import json
import socket
import time
import typing

from tests.support import captures, simulator

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Name three rivers."}
WAIT_S_MAX = 10


def wire(
    path: str = CHAT, body: bytes | None = None, head: str = "", method: str = "POST", **fields: object
) -> bytes:
    """A request's bytes; `fields` go into a chat's body."""
    if body is None:
        body = json.dumps({"messages": [USER], "max_tokens": 4} | fields).encode()
    lines = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return (lines + head + "\r\n").encode() + body


@contextlib.contextmanager
def connection(server: simulator.Running) -> collections.abc.Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S_MAX) as sock:
        yield sock


def read_to_end(sock: socket.socket) -> bytes:
    """All bytes until the server closes or resets."""
    raw = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65_536):
            raw += data
    return raw


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    raw = b""
    while mark not in raw:
        data = sock.recv(65_536)
        assert data, f"closed before {mark!r}"
        raw += data
    return raw


def answer(sock: socket.socket) -> captures.Response:
    raw = b""
    while data := sock.recv(65_536):
        raw += data
        with contextlib.suppress(captures.Incomplete):
            return captures.read_response(raw)
    raise AssertionError("closed early")


def is_whole(raw: bytes) -> bool:
    try:
        captures.read_response(raw)
    except captures.Incomplete:
        return False
    return True


def last_entry(server: simulator.Running, *, open_too: bool = False) -> dict[str, typing.Any]:
    """The newest entry of the log, once it has ended."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        entry = server.log(raw=True)[-1]
        if open_too or entry["outcome"] != "open":
            return entry
    raise AssertionError("the last call is still open")


def eventually(holds: collections.abc.Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
