"""The client's reading of answers, over connections in memory: no cut and no garbage may matter.

Over real sockets: tests/integration/test_upstream.py.
"""

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import BackendDisconnected, BackendFaulted
from backends.model import Backend
from backends.upstream import Upstream
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


@given(answers(), st.data())
@settings(max_examples=150, deadline=None)
def test_an_answer_is_the_same_however_it_is_cut(
    answer: tuple[bytes, int, bytes, bool], data: st.DataObject
) -> None:
    raw, status, body, stays = answer

    async def play(loop: MemoryLoop, upstream: Upstream) -> None:
        told, transport = await sent(loop, upstream)
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
