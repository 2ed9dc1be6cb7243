"""The HTTP client towards a backend, over real sockets, against a server that sends exactly what it is told."""

import asyncio
import gc
import gzip
import socket
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from backends import upstream as module
from backends.errors import BackendDisconnected, BackendError, BackendFaulted, BackendUnavailable
from backends.model import Backend
from backends.upstream import IDLE_MAX, IDLE_S_MAX, Upstream
from metering.units import NS_PER_S
from tests.support import captures, rawserver
from tests.support.exchanges import Told, ask, start, until
from tests.support.rawserver import WAIT_S, Peer

pytestmark = pytest.mark.integration

Run = Callable[[Coroutine[Any, Any, None]], None]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(body: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(body, 30))

    return run_on_loop


def client(
    port: int,
    *,
    host: str = "127.0.0.1",
    key: str | None = None,
    idle_max: int = IDLE_MAX,
    idle_s_max: float = IDLE_S_MAX,
) -> Upstream:
    backend = Backend(name="b1", url=f"http://{host}:{port}", model="m1")
    return Upstream(
        backend, key=key, loop=asyncio.get_running_loop(), idle_max=idle_max, idle_s_max=idle_s_max
    )


def answering(*pieces: bytes) -> Callable[[Peer], Awaitable[None]]:
    """A script that answers every request of a connection with these writes."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(*pieces)

    return script


# -- requests and connections


def test_a_request_carries_our_headers_and_the_body(run: Run) -> None:
    async def body() -> None:
        seen: list[tuple[bytes, bytes]] = []

        async def script(peer: Peer) -> None:
            for _ in range(2):
                seen.append(await peer.request())
                await peer.send(OK)

        async with rawserver.serve(script) as port:
            upstream = client(port, key="secret")
            assert (await ask(upstream, body=b'{"a":1}')).body == b"ok"
            assert (await ask(upstream, method="GET", body=b"")).body == b"ok"
            await upstream.close()
            assert seen[0] == (
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\n"
                b"accept-encoding: identity\r\nauthorization: Bearer secret\r\nx-request-id: r1\r\n"
                b"content-type: application/json\r\ncontent-length: 7\r\n\r\n" % port,
                b'{"a":1}',
            )
            assert b"content-length" not in seen[1][0]
            assert seen[1][0].startswith(b"GET ")

    run(body())


def test_a_connection_is_used_again_the_last_one_first(run: Run) -> None:
    async def body() -> None:
        served: list[int] = []

        async def script(peer: Peer) -> None:
            while True:
                await peer.request()
                served.append(peer.number)
                await peer.send(OK)

        async with rawserver.serve(script) as port:
            upstream = client(port)
            await asyncio.gather(ask(upstream), ask(upstream))
            assert upstream.open_connections == 2
            last = served[-1]
            for _ in range(3):
                told = await ask(upstream)
                assert told.calls == ["connected", "head", "data", "end"]
            assert served[2:] == [last] * 3
            await upstream.close()
            assert upstream.open_connections == 0

    run(body())


def test_a_request_from_within_end_takes_the_connection_just_freed(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port)
            first, second = Told(), Told()
            first.then["end"] = lambda: start(upstream, second)
            start(upstream, first)
            await second.over()
            assert second.body == b"ok"
            assert upstream.open_connections == 1
            await upstream.close()

    run(body())


def test_idle_connections_are_closed_before_the_server_would(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port)
            await ask(upstream)
            now_ns = time.monotonic_ns()
            upstream.sweep(now_ns)
            assert upstream.open_connections == 1
            upstream.sweep(now_ns + round(IDLE_S_MAX * NS_PER_S))
            await until(lambda: upstream.open_connections == 0)
            await upstream.close()

    run(body())


def test_an_idle_connection_that_is_too_old_is_not_used(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port, idle_s_max=1e-9)
            await ask(upstream)
            told = await ask(upstream)
            assert told.body == b"ok"
            assert told.attempt is not None
            assert not told.attempt.reconnected
            await upstream.close()

    run(body())


def test_no_more_idle_connections_are_kept_than_may_be(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port, idle_max=2)
            told = await asyncio.gather(*(ask(upstream) for _ in range(4)))
            assert [one.body for one in told] == [b"ok"] * 4
            await until(lambda: upstream.open_connections == 2)
            await asyncio.gather(ask(upstream), ask(upstream))
            assert upstream.open_connections == 2
            await upstream.close()

    run(body())


@pytest.mark.parametrize("farewell", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n", b"noise"])
def test_a_connection_that_ends_or_speaks_while_idle_leaves_the_pool(run: Run, farewell: bytes) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            if peer.number == 0:
                await leave.wait()
                await peer.send(farewell)
                peer.close()
            else:
                await peer.gone()

        leave = asyncio.Event()
        async with rawserver.serve(script) as port:
            upstream = client(port)
            await ask(upstream)
            leave.set()
            await until(lambda: upstream.open_connections == 0)
            told = await ask(upstream)
            assert told.calls == ["connected", "head", "data", "end"]
            await upstream.close()

    run(body())


def test_ipv6(run: Run) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")

    async def body() -> None:
        async def script(peer: Peer) -> None:
            head, _ = await peer.request()
            assert b"\r\nhost: [::1]:" in head
            await peer.send(OK)

        try:
            async with rawserver.serve(script, host="::1") as port:
                upstream = client(port, host="[::1]")
                assert (await ask(upstream)).body == b"ok"
                await upstream.close()
        except OSError:
            pytest.skip("no IPv6 loopback here")

    run(body())


# -- answers in every framing


@pytest.mark.parametrize(
    ("answer", "status", "content", "stays"),
    [
        (OK, 200, b"ok", True),
        (CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, b"abcde", True),
        (CHUNKED + b"3;x=y\r\nabc\r\n0\r\ntrailer: t\r\n\r\n", 200, b"abc", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", 503, b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok", True),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, 200, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", False),
        (OK + b"x", 200, b"ok", False),  # bytes nobody asked for: the next answer could be anything
        (OK + OK, 200, b"ok", False),
        (OK + b"HTTP/1.1 2", 200, b"ok", False),
    ],
)
@pytest.mark.parametrize("bytewise", [False, True])
def test_framings(run: Run, answer: bytes, status: int, content: bytes, stays: bool, bytewise: bool) -> None:
    async def body() -> None:
        pieces = [answer[at : at + 1] for at in range(len(answer))] if bytewise else [answer]
        async with rawserver.serve(answering(*pieces)) as port:
            upstream = client(port)
            told = await ask(upstream)
            assert (told.status, told.body, told.error) == (status, content, None)
            assert all(name == name.lower() for name, _ in told.headers)
            assert (b"link", b"x") not in told.headers  # of an interim answer
            assert (b"trailer", b"t") not in told.headers
            if stays:
                assert upstream.open_connections == 1
                assert (await ask(upstream)).body == content
            else:
                await until(lambda: upstream.open_connections == 0)
            await upstream.close()

    run(body())


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\ncontent-type: x\r\n\r\n"])
def test_a_body_that_ends_with_the_connection(run: Run, head: bytes) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(head + b"abc", b"def")

        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = await ask(upstream)
            assert (told.calls[-1], told.body) == ("end", b"abcdef")
            await upstream.close()

    run(body())


def test_one_read_is_one_piece_of_data(run: Run) -> None:
    async def body() -> None:
        pieces = b"".join(b"5\r\nabcde\r\n" for _ in range(50))
        async with rawserver.serve(answering(CHUNKED + pieces + b"0\r\n\r\n")) as port:
            upstream = client(port)
            told = await ask(upstream)
            assert told.body == b"abcde" * 50
            assert told.calls == ["connected", "head", "data", "end"]
            await upstream.close()

    run(body())


@pytest.mark.parametrize("name", ["chat_stream_usage", "completions_stream_unicode"])
def test_recorded_responses_keep_their_bytes(run: Run, name: str) -> None:
    raw = (captures.VLLM / f"{name}.response.http").read_bytes()

    async def body() -> None:
        async def script(peer: Peer) -> None:
            for at in range(1, len(raw), 97):
                await peer.request()
                await peer.send(raw[:at], raw[at:])

        async with rawserver.serve(script) as port:
            upstream = client(port)
            for _ in range(1, len(raw), 97):
                assert (await ask(upstream)).body == captures.streams()[name]
            await upstream.close()

    run(body())


@pytest.mark.parametrize("closes", [False, True])
def test_an_answer_before_the_request_was_read_arrives(run: Run, closes: bool) -> None:
    """A server that refuses a body by its size need not read it; its connection is not used again."""

    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nlong")
            if not closes:
                await done.wait()

        done = asyncio.Event()
        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = await ask(upstream, body=b"x" * 24_000_000)
            assert (told.status, told.body) == (413, b"long")
            await until(lambda: upstream.open_connections == 0)
            done.set()
            await upstream.close()

    run(body())


# -- content encodings

PLAIN = b"".join(b'data: {"n":%d}\n\n' % number for number in range(100))


@pytest.mark.parametrize(("encoding", "packed"), [
    (b"content-encoding: gzip", gzip.compress(PLAIN)),
    (b"Content-Encoding: deflate", zlib.compress(PLAIN)),
    (b"content-encoding: identity", PLAIN),
])  # fmt: skip
@pytest.mark.parametrize("framing", ["sized", "chunked", "close"])
@pytest.mark.parametrize("bytewise", [False, True])
def test_an_encoded_answer_is_decoded(
    run: Run, encoding: bytes, packed: bytes, framing: str, bytewise: bool
) -> None:
    lines = {"sized": b"content-length: %d" % len(packed), "chunked": b"transfer-encoding: chunked"}
    line = lines.get(framing, b"connection: close")
    content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed) if framing == "chunked" else packed
    answer = b"HTTP/1.1 200 OK\r\n%b\r\n%b\r\n\r\n%b" % (encoding, line, content)

    async def body() -> None:
        async def script(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.send(*(answer[at : at + 1] for at in range(len(answer))) if bytewise else [answer])
                if framing == "close":
                    peer.close()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            for _ in range(2):
                told = await ask(upstream)
                assert (told.calls[-1], told.body) == ("end", PLAIN)
            assert upstream.open_connections == (framing != "close")
            await upstream.close()

    run(body())


def test_an_encoded_event_is_there_when_it_was_flushed(run: Run) -> None:
    async def body() -> None:
        turn = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            packer = zlib.compressobj(wbits=31)
            await peer.send(CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"))
            for number in range(5):
                await turn.wait()
                turn.clear()
                piece = packer.compress(b"event %d\n" % number) + packer.flush(zlib.Z_SYNC_FLUSH)
                await peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            piece = packer.flush()
            await peer.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece))

        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = start(upstream, Told())
            for number in range(5):
                turn.set()
                await told.until(lambda: len(told.reads) == number + 1)  # noqa: B023
                assert told.reads[-1] == b"event %d\n" % number
            await told.over()
            assert told.calls[-1] == "end"
            assert upstream.open_connections == 1
            await upstream.close()

    run(body())


@pytest.mark.parametrize(("head", "content", "kind", "reason", "calls"), [
    (b"content-encoding: br", b"abc", BackendFaulted, "unknown content encoding", ["head"]),
    (b"content-encoding: gzip\r\ncontent-encoding: gzip", b"abc", BackendFaulted, "unknown content encoding", ["head"]),
    (b"content-encoding: gzip", b"plain", BackendFaulted, "content encoding broken", ["head"]),
    (b"content-encoding: gzip", gzip.compress(bytes(9_000_000)), BackendFaulted, "answer too large", ["head"]),
    (b"content-encoding: gzip", gzip.compress(PLAIN)[:-9], BackendDisconnected, "ended early", ["head", "data"]),
])  # fmt: skip
@pytest.mark.parametrize("sized", [False, True])
def test_an_encoded_answer_that_fails(
    run: Run,
    head: bytes,
    content: bytes,
    kind: type[BackendError],
    reason: str,
    calls: list[str],
    sized: bool,
) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            framing = b"content-length: %d" % len(content) if sized else b"connection: close"
            await peer.send(b"HTTP/1.1 200 OK\r\n%b\r\n%b\r\n\r\n%b" % (head, framing, content))
            if not sized:
                peer.close()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = await ask(upstream)
            assert type(told.error) is kind
            assert told.error.reason == reason
            assert told.calls == ["connected", *calls, "lost"]
            assert (await ask(upstream)).calls[-1] == "lost"
            await upstream.close()

    run(body())


def test_an_encoding_without_a_body_is_none(run: Run) -> None:
    async def body() -> None:
        answer = b"HTTP/1.1 204 No Content\r\ncontent-encoding: br\r\n\r\n"
        async with rawserver.serve(
            answering(b"HTTP/1.1 103 Hints\r\ncontent-encoding: br\r\n\r\n" + answer)
        ) as port:
            upstream = client(port)
            for _ in range(2):
                assert (await ask(upstream)).calls == ["connected", "head", "end"]
            assert upstream.open_connections == 1
            await upstream.close()

    run(body())


# -- faults


@pytest.mark.parametrize(
    ("answer", "kind", "reason", "calls"),
    [
        (b"", BackendDisconnected, "no answer", []),
        (b"HTTP/1.1 200 OK\r\nconte", BackendDisconnected, "ended early", []),
        (b"HTTP/1.1 100 Continue\r\n\r\n", BackendDisconnected, "ended early", []),
        (OK[:-1], BackendDisconnected, "ended early", ["head", "data"]),
        (CHUNKED + b"3\r\nab", BackendDisconnected, "ended early", ["head", "data"]),
        (CHUNKED + b"3\r\nabc\r\n", BackendDisconnected, "ended early", ["head", "data"]),
        (CHUNKED + b"3\r\nabc\r\nzz\r\n", BackendFaulted, "not HTTP", ["head", "data"]),
        (b"SSH-2.0-OpenSSH_9.6\r\n", BackendFaulted, "not HTTP", []),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", BackendFaulted, "not HTTP", []),
        (b"HTTP/1.1 101 Now\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", BackendFaulted, "protocol upgrade", []),
        (b"HTTP/1.1 101 Now\r\n\r\n", BackendFaulted, "protocol upgrade", []),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, BackendFaulted, "head too large", []),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 66_000 + b"\r\n\r\n", BackendFaulted, "head too large", []),
    ],
)  # fmt: skip
def test_answers_that_fail(
    run: Run, answer: bytes, kind: type[BackendError], reason: str, calls: list[str]
) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(answer)
            if kind is BackendDisconnected:
                peer.close()
            else:
                assert await peer.gone()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = await ask(upstream)
            assert type(told.error) is kind
            assert told.error.reason == reason
            assert told.error.backend == "b1"
            assert told.calls == ["connected", *calls, "lost"]
            await until(lambda: upstream.open_connections == 0)
            await upstream.close()

    run(body())


def test_a_reset_in_a_body_that_ends_with_the_connection_is_no_end(run: Run) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
            await seen.wait()
            peer.reset()

        seen = asyncio.Event()
        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = start(upstream, Told())
            await told.called("data")
            seen.set()
            await told.over()
            assert isinstance(told.error, BackendDisconnected)
            await upstream.close()

    run(body())


def test_a_dead_reused_connection_is_tried_once_more_on_a_fresh_one(run: Run) -> None:
    async def body() -> None:
        served: list[tuple[int, bytes]] = []

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            _, content = await peer.request()
            served.append((peer.number, content))
            peer.reset()  # the second request on the first connection dies without a byte

        async with rawserver.serve(script) as port:
            upstream = client(port)
            await ask(upstream)
            told = await ask(upstream, body=b'{"n":2}')
            assert told.calls == ["connected", "connected", "head", "data", "end"]
            assert told.attempt is not None
            assert told.attempt.reconnected
            assert served == [(0, b'{"n":2}')]
            await upstream.close()

    run(body())


def test_the_fresh_connection_is_not_tried_again(run: Run) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            if peer.number == 0:
                await peer.send(OK)
                await peer.request()
            peer.close()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            await ask(upstream)
            told = await ask(upstream)
            assert told.calls == ["connected", "connected", "lost"]
            assert isinstance(told.error, BackendDisconnected)
            assert told.error.reason == "no answer"
            await upstream.close()

    run(body())


def test_a_reused_connection_that_dies_after_a_byte_is_not_tried_again(run: Run) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.request()
            await peer.send(b"H")
            peer.close()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            await ask(upstream)
            told = await ask(upstream)
            assert told.calls == ["connected", "lost"]
            assert told.error is not None
            assert told.error.reason == "ended early"
            await upstream.close()

    run(body())


def test_connect_failures_name_no_address(run: Run) -> None:
    async def body() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, not listening
            port = taken.getsockname()[1]
            refused = await ask(client(port))
        assert isinstance(refused.error, BackendUnavailable)
        assert refused.error.reason == "connect refused"
        assert refused.calls == ["lost"]
        unreachable = await ask(client(1, host="255.255.255.255"))
        assert unreachable.error is not None
        assert unreachable.error.reason == "connect failed"
        for host in ("no-such-host.invalid", "a" * 64 + ".invalid"):
            unknown = await ask(client(1, host=host))
            assert isinstance(unknown.error, BackendUnavailable)
            assert unknown.error.reason == "name not known"
            assert host not in str(unknown.error)

    run(body())


# -- abort and backpressure


@pytest.mark.parametrize("at", ["sent", "connected", "head", "data"])
def test_abort_closes_at_once_and_nothing_follows(run: Run, at: str) -> None:
    async def body() -> None:
        gone = asyncio.Event()

        async def script(peer: Peer) -> None:
            try:
                await peer.request()
                if at in ("head", "data"):
                    await peer.send(CHUNKED + b"3\r\nabc\r\n")
                assert await peer.gone()
            finally:
                gone.set()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = Told()
            if at != "sent":
                told.then[at] = lambda: told.attempt and told.attempt.abort()
            start(upstream, told)
            assert told.attempt is not None
            if at == "sent":
                told.attempt.abort()
            else:
                await told.called(at)
                async with asyncio.timeout(WAIT_S):
                    await gone.wait()
            await until(lambda: upstream.open_connections == 0)
            told.attempt.abort()
            told.attempt.pause()
            told.attempt.resume()
            assert (
                told.calls
                == ["connected", "head", "data"][: {"sent": 0, "connected": 1, "head": 2, "data": 3}[at]]
            )
            await upstream.close()

    run(body())


@pytest.mark.parametrize("by", ["us", "the backend"])
def test_a_connection_that_has_ended_needs_no_collector(run: Run, by: str) -> None:
    """It leaves no cycle: in a worker the collector comes so rarely that they add up to megabytes."""

    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(CHUNKED + b"3\r\nabc\r\n")
            if by == "us":
                await peer.gone()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            for _ in range(3):
                told = start(upstream, Told())
                await told.called("data")
                assert told.attempt is not None
                if by == "us":
                    told.attempt.abort()
                told.attempt = None  # a cycle of the test's own
                await until(lambda: upstream.open_connections == 0)
            del told
            assert [each for each in gc.get_objects() if isinstance(each, module._Connection)] == []
            await upstream.close()

    gc.collect()
    gc.disable()
    try:
        run(body())
    finally:
        gc.enable()


def test_abort_right_after_a_reused_connection_was_taken(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port)
            await ask(upstream)
            told = start(upstream, Told())
            assert told.attempt is not None
            told.attempt.abort()
            assert (await ask(upstream)).body == b"ok"
            assert told.calls == ["connected"]
            await upstream.close()

    run(body())


def test_abort_after_the_end_leaves_the_connection_alone(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port)
            told = await ask(upstream)
            assert told.attempt is not None
            told.attempt.abort()
            assert (await ask(upstream)).body == b"ok"
            assert upstream.open_connections == 1
            await upstream.close()

    run(body())


def test_a_paused_attempt_makes_the_backend_wait(run: Run) -> None:
    async def body() -> None:
        size = 64_000_000
        sent = 0

        async def script(peer: Peer) -> None:
            nonlocal sent
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            for _ in range(size // 1_000_000):
                await peer.send(b"x" * 1_000_000)
                sent += 1_000_000
            await peer.request()
            await peer.send(OK)

        async with rawserver.serve(script) as port:
            upstream = client(port)
            told = Told()
            told.then["head"] = lambda: told.attempt and told.attempt.pause()
            start(upstream, told)
            await told.called("head")
            before, still = -1, 0
            while still < 20:  # until the server has been stuck for a while
                still = still + 1 if sent == before else 0
                before = sent
                await asyncio.sleep(0.01)
            assert sent < size // 2
            got = len(told.body)
            assert told.attempt is not None
            told.attempt.pause()
            told.attempt.resume()
            await told.over()
            assert got < len(told.body) == size
            assert (await ask(upstream)).body == b"ok"  # the connection reads again
            await upstream.close()

    run(body())


def test_abort_frees_what_the_backend_did_not_read(run: Run) -> None:
    """A backend that takes no request: what waits for it goes with the attempt."""

    async def body() -> None:
        async def script(peer: Peer) -> None:
            await done.wait()

        done = asyncio.Event()
        async with rawserver.serve(script) as port:
            upstream = client(port)
            tracemalloc.start()
            try:
                told = start(upstream, Told(), body=b"x" * 32_000_000)
                await told.called("connected")
                assert tracemalloc.get_traced_memory()[0] > 32_000_000
                assert told.attempt is not None
                told.attempt.abort()
                await until(lambda: upstream.open_connections == 0)
                await until(lambda: tracemalloc.get_traced_memory()[0] < 1_000_000)
            finally:
                tracemalloc.stop()
            done.set()
            await upstream.close()

    run(body())


def test_a_request_is_not_kept_once_its_answer_has_begun(run: Run) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(CHUNKED + b"3\r\nabc\r\n")
            await done.wait()
            await peer.send(b"0\r\n\r\n")

        done = asyncio.Event()
        async with rawserver.serve(script) as port:
            upstream = client(port)
            tracemalloc.start()
            try:
                told = start(upstream, Told(), body=b"x" * 8_000_000)
                await told.called("data")
                await until(lambda: tracemalloc.get_traced_memory()[0] < 1_000_000)
            finally:
                tracemalloc.stop()
            done.set()
            await told.over()
            await upstream.close()

    run(body())


def test_a_pause_does_not_outlive_its_attempt(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port)
            told = Told()
            told.then["data"] = lambda: told.attempt and told.attempt.pause()
            start(upstream, told)
            await told.over()
            assert (await ask(upstream)).body == b"ok"
            assert upstream.open_connections == 1
            await upstream.close()

    run(body())


def test_pause_before_there_is_a_connection(run: Run) -> None:
    async def body() -> None:
        async with rawserver.serve(answering(OK)) as port:
            upstream = client(port)
            told = start(upstream, Told())
            assert told.attempt is not None
            told.attempt.pause()
            await told.called("connected")
            told.attempt.resume()
            await told.over()
            assert told.body == b"ok"
            await upstream.close()

    run(body())


# -- the end


def test_close_loses_what_is_open_and_leaves_nothing(run: Run) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            if peer.number == 0:
                await peer.send(b"HTTP/1.1 200 OK\r\n\r\nabc")  # ends with the connection: this is no end
            await peer.gone()

        async with rawserver.serve(script) as port:
            upstream = client(port)
            streaming = start(upstream, Told())
            await streaming.called("data")
            connecting = start(upstream, Told())
            await upstream.close()
            for told in (streaming, connecting):
                await told.over()
                assert told.error is not None
                assert told.error.reason == "gateway closing"
            assert upstream.open_connections == 0

    run(body())
