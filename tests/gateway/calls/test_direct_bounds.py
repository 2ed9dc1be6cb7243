"""Bounds of a client's connection: of a head, and of what is dropped behind an answer, kept or closed."""

import contextlib
from collections.abc import Iterator

import pytest

from gateway.calls.bounds import Phase
from gateway.configuration.config import Bounds
from metering.units import NS_PER_S
from tests.gateway.calls.test_direct_again import Connection, ask

TOO_LARGE = b"x" * 101  # for this API
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
CLOSE = b"Connection: close\r\n"


@contextlib.contextmanager
def connected() -> Iterator[Connection]:
    one = Connection(Bounds(head_bytes_max=1024, linger_bytes_max=1024))
    try:
        yield one
    finally:
        one.loop.run_until_complete(one.forget())
        one.loop.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    with connected() as one:
        yield one


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("before", [[], [ask(b"one")]], ids=["new", "kept"])
@pytest.mark.parametrize("split", [1, 500, 1023])
def test_a_head_is_as_large_as_all_the_reads_that_bring_it(before: list[bytes], split: int) -> None:
    """None is without a bound, even if its last line never ends; nor does what came before it count."""
    head = ask(b"", b"X-More: " + b"y" * 2000)
    with connected() as connection:
        connection.answered(*before)
        written = len(connection.socket.written)
        connection.read(head[:split], head[split:1024])
        assert connection.socket.written[written:] == b""
        connection.read(head[1024:1025])
        assert connection.socket.written[written:].startswith(b"HTTP/1.1 431 ")


def test_the_end_of_a_body_is_no_part_of_the_next_head(connection: Connection) -> None:
    connection.read(HEAD + b"\r\n" + chunk(TOO_LARGE))
    written = len(connection.socket.written)
    connection.read(chunk(b"y" * 1000) + b"0\r\n\r\n" + ask(b"next")[:30], ask(b"next")[30:])
    assert connection.api.begun == [(b"next", False)]
    assert connection.socket.written[written:] == b""


def refused(connection: Connection, head: bytes) -> None:
    """One whose body is larger than it may be, and is still coming."""
    connection.read(head + b"\r\n" + chunk(TOO_LARGE))
    assert connection.socket.written.startswith(b"HTTP/1.1 413 ")


def test_a_connection_that_is_kept_reads_the_rest_and_the_next_request(connection: Connection) -> None:
    refused(connection, HEAD)
    connection.read(chunk(b"y" * 500), b"0\r\n\r\n", ask(b"next"))
    assert connection.api.begun == [(b"next", False)]
    assert not connection.socket.ended
    assert not connection.socket.closing


def test_a_connection_that_is_kept_drops_no_more_than_the_bound(connection: Connection) -> None:
    refused(connection, HEAD)
    connection.read(chunk(b"y" * 1024))
    assert not connection.socket.aborted
    connection.read(chunk(b"y"))
    assert connection.socket.aborted


def test_the_last_answer_ends_what_is_written_and_leaves_the_rest_to_be_read(connection: Connection) -> None:
    refused(connection, HEAD + CLOSE)
    assert b"connection: close" in connection.socket.written
    assert connection.socket.ended
    assert not connection.socket.closing
    written = connection.socket.written
    connection.read(chunk(b"y" * 500), b"0\r\n\r\n", ask(b"next"), b"\0no HTTP\r\n\r\n")
    assert connection.socket.written == written
    assert connection.api.begun == []


def test_no_more_is_dropped_than_the_bound(connection: Connection) -> None:
    refused(connection, HEAD + CLOSE)
    connection.read(b"y" * 1000)
    assert not connection.socket.aborted
    connection.read(b"y" * 25)
    assert connection.socket.aborted


@pytest.mark.parametrize("behind", [b"", b"0\r\n\r\n", b"0\r\n\r\n" + ask(b"next"), b"\0no chunk"])
def test_what_came_in_the_same_read_is_dropped_with_the_rest(behind: bytes) -> None:
    with connected() as connection:
        connection.read(HEAD + CLOSE + b"\r\n" + chunk(TOO_LARGE) + behind)
        assert connection.protocol._watch.phase is Phase.PARTING
        assert connection.api.begun == []
        assert connection.socket.written.count(b"HTTP/1.1 ") == 1


def test_a_client_that_has_sent_all_of_it_is_let_go_at_once(connection: Connection) -> None:
    connection.read(ask(b"whole", b"Connection: close"))
    connection.answer()
    assert connection.socket.closing
    assert not connection.socket.ended


def test_a_client_that_sends_its_next_request_ahead_is_parted_from(connection: Connection) -> None:
    connection.read(ask(b"last"))
    connection.protocol.shutdown()
    connection.read(ask(b"next")[:20])
    connection.answer()
    assert connection.socket.ended
    assert not connection.socket.closing


def test_a_silent_client_is_cut_when_it_was_waited_for(connection: Connection) -> None:
    refused(connection, HEAD + CLOSE)
    for at_s in (0, 4):
        connection.protocol.sweep(at_s * NS_PER_S)
        assert not connection.socket.aborted
    connection.protocol.sweep(5 * NS_PER_S)
    assert connection.socket.aborted


@pytest.mark.parametrize("head", [HEAD, HEAD + CLOSE], ids=["kept", "closed"])
def test_a_stop_does_not_cut_off_an_answer_behind_which_the_client_still_sends(head: bytes) -> None:
    with connected() as connection:
        refused(connection, head)
        connection.protocol.shutdown()
        assert connection.socket.ended
        assert not connection.socket.closing
        connection.protocol.shutdown()
        assert not connection.socket.closing
