"""The tap must show what passed, and pass a hang-up on."""

import collections.abc
import contextlib
import socket

import pytest

from tests.support.tap import Tap

REQUEST = b"POST /a HTTP/1.1\r\nX-Request-Id: r1\r\ncontent-length: 2\r\n\r\nhi"
RESPONSE = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


@pytest.fixture
def listener() -> collections.abc.Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.fixture
def tap(listener: socket.socket) -> collections.abc.Iterator[Tap]:
    with contextlib.closing(Tap(*listener.getsockname())) as tap:
        yield tap


def pair(tap: Tap, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A connection through the tap: the client's end and the server's."""
    client = socket.create_connection(("127.0.0.1", tap.port), timeout=10)
    server, _ = listener.accept()
    server.settimeout(10)
    return client, server


def test_it_shows_requests_and_responses_of_a_kept_connection(tap: Tap, listener: socket.socket) -> None:
    client, server = pair(tap, listener)
    with client, server:
        for _ in range(2):
            client.sendall(REQUEST)
            assert receive(server, len(REQUEST)) == REQUEST
            server.sendall(RESPONSE)
            assert receive(client, len(RESPONSE)) == RESPONSE
    first, second = tap.passed()
    assert (first.header("x-request-id"), first.body) == ("r1", b"hi")
    assert first.response is not None
    assert first.response.body == b"abc"
    assert first == second


def test_an_answer_cut_short_is_none(tap: Tap, listener: socket.socket) -> None:
    client, server = pair(tap, listener)
    with client, server:
        client.sendall(REQUEST)
        receive(server, len(REQUEST))
        server.sendall(RESPONSE[:-5])
        receive(client, len(RESPONSE) - 5)
    (only,) = tap.passed()
    assert only.response is None


def test_either_side_feels_the_other_hang_up(tap: Tap, listener: socket.socket) -> None:
    client, server = pair(tap, listener)
    with server:
        client.close()
        assert server.recv(1) == b""
    client, server = pair(tap, listener)
    with client:
        server.close()
        assert client.recv(1) == b""


def test_a_closed_tap_takes_no_more_connections(listener: socket.socket) -> None:
    tap = Tap(*listener.getsockname())
    tap.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", tap.port), timeout=10)


def receive(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += end.recv(size - len(data))
    return data
