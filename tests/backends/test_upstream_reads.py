"""The client's reading of answers, over connections in memory: no cut and no garbage may matter.

Over real sockets: tests/integration/test_upstream.py.
"""

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import BackendDisconnected, BackendFaulted
from backends.model import Backend
from backends.upstream import HEADS_MAX, Upstream
from tests.support.exchanges import Told, start
from tests.support.memoryloop import MemoryLoop, MemoryTransport

T = TypeVar("T")
BACKEND = Backend(name="b1", url="http://127.0.0.1:8000", model="m1")


def run(body: Callable[[MemoryLoop, Upstream], Coroutine[Any, Any, T]]) -> T:
    """Run `body` with a client whose connections are in memory."""

    async def play() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MemoryLoop)
        upstream = Upstream(BACKEND, key=None, loop=loop)
        try:
            return await body(loop, upstream)
        finally:
            await upstream.close()

    with asyncio.Runner(loop_factory=MemoryLoop) as runner:
        return runner.run(play())


async def sent(loop: MemoryLoop, upstream: Upstream) -> tuple[Told, MemoryTransport]:
    """An attempt that has been handed to a connection, and that connection."""
    told = start(upstream, Told())
    await told.called("connected")
    (transport,) = [one for one in loop.transports if one.protocol is told.attempt._connection]
    return told, transport


async def turns() -> None:
    """Until what was called soon has been called."""
    for _ in range(3):
        await asyncio.sleep(0)


def chunked(data: bytes, cuts: list[int]) -> bytes:
    pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)]) if a < b]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, int, bytes, bool]:
    """A good answer, its status, its body, and whether its connection stays."""
    body = draw(st.binary(max_size=60))
    status = draw(st.sampled_from([200, 400, 503]))
    encoding = draw(st.sampled_from([b"", b"identity", b"gzip", b"deflate"]))
    packed = {b"gzip": gzip.compress, b"deflate": zlib.compress}.get(encoding, bytes)(body)
    lines = [b"content-type: text/event-stream", *([b"Content-Encoding: " + encoding] if encoding else [])]
    framing = draw(st.sampled_from(["sized", "chunked", "close"]))
    content = packed
    if framing == "sized":
        lines.append(b"content-length: %d" % len(packed))
    elif framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        content = chunked(packed, sorted(draw(st.lists(st.integers(0, len(packed)), max_size=4))))
    hints = b"HTTP/1.1 103 Early Hints\r\ncontent-encoding: br\r\n\r\n"  # of an interim answer: nothing to us
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", hints]))
    head = b"HTTP/1.1 %d Some Thing\r\n%b\r\n\r\n" % (status, b"\r\n".join(draw(st.permutations(lines))))
    return interim + head + content, status, body, framing != "close"


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=12)))
    return [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)]) if a < b]


@given(answers(), st.data(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_an_answer_is_the_same_however_it_is_cut(
    answer: tuple[bytes, int, bytes, bool], data: st.DataObject, takes_chunks: bool
) -> None:
    raw, status, body, stays = answer

    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        told, transport = await sent(loop, upstream)
        told.takes_chunks = takes_chunks
        for piece in data.draw(cut(raw)):
            transport.read(piece)
        if not stays:
            transport.end()
        await turns()
        assert (told.status, told.body, told.error) == (status, body, None)
        assert told.calls[:2] == ["connected", "head"]
        assert set(told.calls[2:-1]) <= {"data"}
        assert told.calls[-1] == "end"
        assert upstream.open_connections == stays
        if stays:
            _, again = await sent(loop, upstream)
            assert again is transport

    run(play)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    head = [b"HTTP/1.1 " + status, b"date: today", b"content-length: %d" % len(body), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


ALIKE = [
    whole(b"one"),
    whole(b"a longer one"),
    whole(b"one")[:-1],  # … and its last byte in a read of its own
    whole(b""),
    whole(b"bad", status=b"400 Bad Request"),
    whole(b"bad"),
    whole(b"two", b"x: y"),
    whole(b"two", b"content-encoding: identity"),
    b"HTTP/1.1 100 Continue\r\n\r\n" + whole(b"one"),
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + framed(b"three") + framed(b""),
]


@given(st.lists(st.sampled_from(ALIKE), min_size=2, max_size=8))
@settings(max_examples=200, deadline=None)
def test_answers_whose_heads_are_alike_are_told_apart(answers: list[bytes]) -> None:
    """On one connection, each in one read: what the client knows of one head must not get into another's answer."""

    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        for raw in answers:
            told = start(upstream, Told())
            await told.called("connected")
            transport = loop.transports[-1]
            transport.read(raw)
            found = httptools_says(raw)
            if found is None:
                transport.read(b"e")
                found = httptools_says(raw + b"e")
            assert found is not None
            status, headers, body = found
            assert (told.status, told.body, told.error) == (status, body, None)
            assert [header for header in told.headers if header[0] != b"content-length"] == headers
            assert told.calls[-1] == "end"
            assert len(loop.transports) == 1

    run(play)


def httptools_says(raw: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
    """Status, headers but for the content-length, and body; None: it is not complete."""
    final = raw.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    answer = Whole()
    parser = httptools.HttpResponseParser(answer)
    parser.feed_data(final)
    return (parser.get_status_code(), answer.headers, answer.body) if answer.complete else None


class Whole:
    """What httptools finds in an answer."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name != b"content-length":
            self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


CHUNKS = [
    b"a",
    b"\r\n",
    b"1\r\na\r\n",
    b"b" * 15,
    b"c" * 16,
    framed(b"d" * 255),
    b"e" * 256,
    b"f" * 4095,
    b"g" * 5000,
]
"""Some look like chunks themselves, some are at the edges of what a size line says."""


@given(st.lists(st.sampled_from(CHUNKS), max_size=12), st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_taken_as_a_chunk_is_one(chunks: list[bytes], data: st.DataObject) -> None:
    """Reads that are chunks, that only look like one, or that end within one: the body is the same."""
    raw = b"".join(framed(chunk) for chunk in chunks)
    ends = list(itertools.accumulate(len(framed(chunk)) for chunk in chunks))
    near = [place for end in ends for place in range(end - 4, end + 5) if 0 < place < len(raw)]
    cuts = sorted({*data.draw(st.lists(st.sampled_from(near), max_size=4)), *ends} if near else {*ends})
    pieces = [raw[a:b] for a, b in itertools.pairwise([0, *cuts, len(raw)]) if a < b]

    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        told, transport = await sent(loop, upstream)
        told.takes_chunks = True
        transport.read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            transport.read(piece)
        transport.read(b"0\r\n\r\n")
        await turns()
        assert (told.body, told.error, told.calls[-1]) == (b"".join(chunks), None, "end")

    run(play)


def test_from_the_second_chunk_on_a_read_that_is_one_is_offered_as_it_is() -> None:
    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        told, transport = await sent(loop, upstream)
        told.takes_chunks = True
        transport.read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            transport.read(framed(b"a token"))
        assert (told.chunks_taken, told.body) == (2, b"a token" * 3)
        transport.read(framed(b"half") + b"7\r")
        transport.read(b"\na token\r\n")
        assert told.chunks_taken == 2, "this one looks like none"
        transport.read(framed(b"a token"))
        assert (told.chunks_taken, told.body) == (2, b"a token" * 3 + b"half" + b"a token" * 2)

    run(play)


def test_an_encoded_body_is_never_offered_as_it_is() -> None:
    packed = gzip.compress(b"a token")

    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        told, transport = await sent(loop, upstream)
        told.takes_chunks = True
        transport.read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-encoding: gzip\r\n\r\n")
        for byte in packed:
            transport.read(framed(bytes([byte])))
        transport.read(b"0\r\n\r\n")
        await turns()
        assert (told.chunks_taken, told.body) == (0, b"a token")

    run(play)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """An answer in which something was changed, lost or added; or none at all."""
    raw, _, _, _ = draw(answers())
    at, to = sorted((draw(st.integers(0, len(raw))), draw(st.integers(0, len(raw)))))
    kept = raw[:at] + draw(st.binary(max_size=6)) + raw[draw(st.sampled_from([at, to])) :]
    return draw(st.sampled_from([kept, kept + raw, raw[:at]]))


@given(spoilt(), st.data())
@settings(max_examples=250, deadline=None)
def test_whatever_comes_an_attempt_ends_once_and_its_connection_is_not_left_with_leftovers(
    raw: bytes, data: st.DataObject
) -> None:
    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        told, transport = await sent(loop, upstream)
        pieces = data.draw(cut(raw)) if raw else []
        for number, piece in enumerate(pieces):
            transport.read(piece)
            if "end" in told.calls and number + 1 < len(pieces):
                transport.read(b"".join(pieces[number + 1 :]))  # nobody has asked for more: it is closed
                assert transport.is_closing()
                break
        transport.end()
        await turns()
        assert len({"end", "lost"} & set(told.calls)) == 1  # Told sees to it that nothing comes after it
        if told.error is not None:
            assert isinstance(told.error, BackendFaulted | BackendDisconnected)
        assert upstream.open_connections == 0

    run(play)


@given(answers(), answers(), st.data())
@settings(max_examples=80, deadline=None)
def test_nothing_of_one_answer_reaches_the_next_attempt(
    one: tuple[bytes, int, bytes, bool], other: tuple[bytes, int, bytes, bool], data: st.DataObject
) -> None:
    """Bytes behind an answer, in its own read or a later one, belong to nobody: the next attempt is on a fresh one."""
    late = data.draw(st.booleans())

    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        first, transport = await sent(loop, upstream)
        if late:
            transport.read(one[0])
            transport.read(other[0])
        else:
            transport.read(one[0] + other[0])
        if not one[3]:
            transport.end()
        await turns()
        second, fresh = await sent(loop, upstream)
        assert fresh is not transport
        fresh.read(other[0])
        if not other[3]:
            fresh.end()
        await turns()
        assert second.body == other[2]
        if one[3]:
            assert first.body == one[2]

    run(play)


def test_paths_with_ids_are_not_all_remembered() -> None:
    async def ask_many(_loop: MemoryLoop, upstream: Upstream) -> None:
        for number in range(2 * HEADS_MAX):
            told = Told()
            told.attempt = upstream.send("GET", f"/v1/responses/resp_{number}", b"", b"", told)
            assert told.attempt._request.startswith(b"GET /v1/responses/resp_%d HTTP/1.1\r\n" % number)
            told.attempt.abort()
        assert len(upstream._heads) == HEADS_MAX

    run(ask_many)
