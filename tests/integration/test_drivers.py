"""Both drivers of the data path, over raw sockets: connections, framing, order; the same bytes from each."""

import asyncio
import contextlib
import json
import pathlib
import re
import select
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.integration.test_faces import ASK, ASK_STREAM, CHAT, DONE, FINISH, HELLO, ROLE, STREAM, USAGE_EVENT
from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Asked, Scripted, sized

pytestmark = pytest.mark.integration

PATH = "/v1/chat/completions"
BODY_BYTES_MAX = 1024 * 1024
ANSWERED = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (ROLE + HELLO + FINISH, DONE))
OWN = re.compile(rb"\b(req-[0-9a-z-]+|w[a-z2-7]{16}-\d+|date: [^\r]+)\b")


@pytest.fixture(scope="module")
def scripted() -> Iterator[Scripted]:
    async def answer(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM if json.loads(asked.body).get("stream") else sized(CHAT))

    one = Scripted(answer)
    yield one
    one.stop()


def start(
    scripted: Scripted, directory: pathlib.Path, driver: str
) -> contextlib.AbstractContextManager[Gateway]:
    backends = [{"name": "a", "url": f"http://127.0.0.1:{scripted.port}", "model": "m1"}]
    return running(
        directory,
        backends,
        aliases=("cheap",),
        env={"WEIGHBRIDGE_DRIVER": driver},
        bounds={"body_bytes_max": BODY_BYTES_MAX},
    )


@pytest.fixture(scope="module", params=["direct", "plain"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def gateway(driver: str, scripted: Scripted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with start(scripted, tmp_path_factory.mktemp(driver), driver) as one:
        yield one


class Wire:
    """A client connection as bytes."""

    def __init__(self, gateway: Gateway) -> None:
        self.key = gateway.keys["acme"]
        self.sock = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
        self.got = b""

    def ask(self, body: object, *more: str, version: str = "1.1", method: str = "POST") -> bytes:
        """A request with its body, of a known length."""
        data = json.dumps(body).encode()
        return self.head(f"content-length: {len(data)}", *more, version=version, method=method) + data

    def head(self, *more: str, version: str = "1.1", method: str = "POST", path: str = PATH) -> bytes:
        lines = [
            f"{method} {path} HTTP/{version}", "Host: gateway", f"Authorization: Bearer {self.key}",
            "Content-Type: application/json", *more,
        ]  # fmt: skip
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def until(self, end: bytes, times: int = 1) -> bytes:
        """Read until `end` has come so often; returns all that came."""
        while self.got.count(end) < times:
            more = self.sock.recv(65536)
            assert more, f"closed after {self.got!r}"
            self.got += more
        got, self.got = self.got, b""
        return got

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def at_end(self) -> bytes:
        """Read until the server closes."""
        while more := self.sock.recv(65536):
            self.got += more
        return self.got


@pytest.fixture
def wire(gateway: Gateway) -> Iterator[Wire]:
    with Wire(gateway) as one:
        yield one


def calls(gateway: Gateway) -> int:
    return len(gateway.lines("call"))


def test_calls_follow_each_other_on_one_connection(gateway: Gateway, wire: Wire) -> None:
    for _ in range(3):
        wire.sock.sendall(wire.ask(ASK))
        assert wire.until(CHAT).startswith(b"HTTP/1.1 200 OK\r\n")
        wire.sock.sendall(wire.ask(ASK_STREAM))
        head, _, body = wire.until(b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        assert dechunked(body) == ROLE + HELLO + FINISH + DONE


def test_requests_with_the_same_head_are_requests_of_their_own(gateway: Gateway, wire: Wire) -> None:
    """Kept clients send the same head again, and only its length changes: the second one need not be parsed."""
    before = calls(gateway)
    long = {**ASK, "messages": [{"role": "user", "content": "x" * 5000}]}
    wrong = {**ASK, "model": "none"}
    good, refused, streamed = (CHAT, b"200"), (b"}}", b"404"), (b"\r\n0\r\n\r\n", b"200")
    bodies = [(ASK, good), (long, good), (wrong, refused), (ASK, good), (ASK_STREAM, streamed)]
    for _ in range(2):
        for body, (end, status) in bodies:
            wire.sock.sendall(wire.ask(body))
            assert wire.until(end).startswith(b"HTTP/1.1 " + status)
        wire.sock.sendall(wire.head(path="/healthz", method="GET"))
        wire.until(b"ok\n")
    wire.sock.sendall(wire.ask(ASK) + wire.ask(ASK))  # the second one is pipelined
    assert wire.until(CHAT, 2).count(b"HTTP/1.1 200 OK") == 2
    wire.sock.sendall(wire.ask(ASK, "Authorization: Bearer wrong"))
    assert wire.until(b"}}").startswith(b"HTTP/1.1 401")
    wire.sock.sendall(wire.ask(long, "x-request-id: mine") + wire.ask(ASK)[:40])
    assert b"x-request-id: mine\r\n" in wire.until(CHAT)
    wire.sock.sendall(wire.ask(ASK)[40:])
    assert wire.until(CHAT).startswith(b"HTTP/1.1 200 OK")
    lines = gateway.lines("call")[before:]
    assert len({line["request_id"] for line in lines}) == len(lines) == 12
    assert {line["body_bytes"] for line in lines} == {
        len(json.dumps(body)) for body in (ASK, long, ASK_STREAM)
    }


def dechunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        out, body = out + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return out


def test_pipelined_requests_are_answered_in_order(gateway: Gateway, wire: Wire) -> None:
    before = calls(gateway)
    wire.sock.sendall(wire.ask(ASK_STREAM) + wire.ask(ASK) + wire.head(path="/healthz", method="GET"))
    stream, sized_answer, page = wire.until(b"HTTP/1.1 200 OK", 3).split(b"HTTP/1.1 200 OK")[1:]
    assert stream.endswith(b"\r\n0\r\n\r\n")
    assert sized_answer.endswith(CHAT)
    assert b"x-weighbridge" not in page
    eventually(lambda: calls(gateway) == before + 2)


def test_a_pipelined_request_may_still_be_coming_when_the_first_is_answered(
    gateway: Gateway, wire: Wire
) -> None:
    for first in (ASK, []):  # one that is taken, one that is refused
        wire.sock.sendall(wire.ask(first) + wire.ask(ASK)[:-5])
        assert wire.until(b"}}" if first == [] else CHAT).startswith(b"HTTP/1.1 ")
        wire.sock.sendall(wire.ask(ASK)[-5:])
        assert wire.until(CHAT).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("more", [("Connection: close",), ()], ids=["close", "1.0"])
def test_a_client_that_wants_no_more_is_let_go(gateway: Gateway, wire: Wire, more: tuple[str, ...]) -> None:
    wire.sock.sendall(wire.ask(ASK, *more, version="1.1" if more else "1.0"))
    got = wire.at_end()
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert got.endswith(CHAT)
    assert b"connection: close" in got


def test_a_body_may_come_in_pieces_and_in_chunks(gateway: Gateway, wire: Wire) -> None:
    data = json.dumps(ASK).encode()
    for byte in wire.ask(ASK):
        wire.sock.sendall(bytes([byte]))
    assert wire.until(CHAT)
    wire.sock.sendall(wire.head("Transfer-Encoding: chunked"))
    for byte in data:
        wire.sock.sendall(b"1\r\n%b\r\n" % bytes([byte]))
    wire.sock.sendall(b"0\r\nX-Trailer: 1\r\n\r\n")
    assert wire.until(CHAT)


def test_a_body_that_grows_too_large_is_refused_and_the_connection_goes_on(
    gateway: Gateway, wire: Wire
) -> None:
    wire.sock.sendall(wire.head("Transfer-Encoding: chunked"))
    for _ in range(BODY_BYTES_MAX // 65536 + 2):
        wire.sock.sendall(PIECE)
    wire.sock.sendall(b"0\r\n\r\n")
    got = wire.until(b"}}")
    assert got.startswith(b"HTTP/1.1 413 ")
    assert got.count(b"HTTP/1.1") == 1
    wire.sock.sendall(wire.ask(ASK))
    assert wire.until(CHAT).startswith(b"HTTP/1.1 200 OK\r\n")


PIECE = b"%x\r\n%b\r\n" % (65536, b" " * 65536)
STILL_SENDING = {
    "413 on the way": ("Transfer-Encoding: chunked", PIECE * (BODY_BYTES_MAX // 65536 + 1)),
    "413 at the head": (f"Content-Length: {BODY_BYTES_MAX + 1}", b""),
    "401": ("Transfer-Encoding: chunked\r\nAuthorization: Bearer wrong", PIECE),
    "415": ("Transfer-Encoding: chunked\r\nContent-Type: text/plain", PIECE),
    "415 of an encoding": ("Transfer-Encoding: chunked\r\nContent-Encoding: br", PIECE),
    "431": ("X-More: " + "y" * 100_000, b""),
}


@pytest.mark.parametrize("refusal", STILL_SENDING)
def test_a_client_that_still_sends_can_read_why_it_was_refused(
    gateway: Gateway, wire: Wire, refusal: str
) -> None:
    """As a client does that sends all of its request before it reads: nothing of that may meet a reset."""
    header, begun = STILL_SENDING[refusal]
    wire.sock.sendall(wire.head(header, "Connection: close") + begun)
    assert select.select([wire.sock], [], [], 10)[0]  # the answer is out
    for _ in range(64):
        wire.sock.sendall(PIECE)
    got = wire.at_end()
    assert got.startswith(b"HTTP/1.1 " + refusal[:3].encode())
    assert b"connection: close" in got
    assert got.endswith(b"}}")


@pytest.mark.parametrize("split", ["head", "body"])
def test_a_client_that_leaves_before_its_request_is_whole_leaves_nothing(
    gateway: Gateway, split: str
) -> None:
    before = len(gateway.lines("call", "refused", "admitted"))
    for _ in range(5):
        with Wire(gateway) as wire:
            wire.sock.sendall(wire.ask(ASK)[: 30 if split == "head" else -5])
    assert gateway.alive()
    assert len(gateway.lines("call", "refused", "admitted")) == before


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PATH, 405),
        ("PUT", PATH, 405),
        ("POST", PATH + "/", 404),
        ("POST", "/" + PATH, 404),
        ("POST", PATH + "?a=1", 200),
    ],
)
def test_other_methods_and_paths(gateway: Gateway, wire: Wire, method: str, path: str, status: int) -> None:
    data = json.dumps(ASK).encode()
    wire.sock.sendall(wire.head(f"content-length: {len(data)}", method=method, path=path) + data)
    assert wire.until(b"}}" if status != 200 else CHAT).startswith(b"HTTP/1.1 %d " % status)


def test_what_is_no_http_is_told_so(gateway: Gateway, wire: Wire) -> None:
    wire.sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    assert wire.at_end().startswith(b"HTTP/1.1 400 ")


def test_an_expected_continue_is_given(gateway: Gateway, wire: Wire) -> None:
    data = json.dumps(ASK).encode()
    wire.sock.sendall(wire.head(f"content-length: {len(data)}", "Expect: 100-continue"))
    assert wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.sock.sendall(data)
    assert wire.until(CHAT).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_stop_ends_idle_connections_at_once_and_busy_ones_with_their_answer(
    tmp_path: pathlib.Path, scripted: Scripted, driver: str
) -> None:
    go = threading.Event()

    async def later(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(go.wait, 20)
        writer.write(STREAM)

    with start(scripted, tmp_path, driver) as stopping:
        with Wire(stopping) as idle, Wire(stopping) as busy:
            idle.sock.sendall(idle.ask(ASK))
            idle.until(CHAT)
            scripted.script.append(later)
            asked = len(scripted.asked)
            busy.sock.sendall(busy.ask(ASK_STREAM))
            eventually(lambda: len(scripted.asked) > asked)
            stopping.process.send_signal(signal.SIGTERM)
            assert idle.at_end() == b""
            go.set()
            assert busy.at_end().endswith(b"\r\n0\r\n\r\n")
        assert stopping.process.wait(20) == 0
        assert [record["outcome"] for record in stopping.lines("call")] == ["completed"] * 2


ASKS = [
    (ASK, CHAT),
    (ASK | {"model": "nobody"}, b"}}"),
    ({"messages": []}, b"}}"),
    ([], b"}}"),
    (ASK_STREAM, b"\r\n0\r\n\r\n"),
]


def parts(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    """The status line, the headers sorted, the body without its chunks."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    return status, sorted(headers), dechunked(body) if b"chunked" in head else body


def test_both_drivers_send_the_same_bytes(
    scripted: Scripted, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All but ids and dates; of a stream its chunks may be cut otherwise."""
    seen = []
    for driver in ("direct", "plain"):
        with start(scripted, tmp_path_factory.mktemp(driver), driver) as one:
            got = []
            with Wire(one) as wire:
                for body, end in ASKS:
                    wire.sock.sendall(wire.ask(body))
                    got.append(wire.until(end))
            seen.append([parts(OWN.sub(b"-", answer)) for answer in got])
    assert seen[0] == seen[1]


def test_usage_that_was_asked_for_stands_before_the_end(gateway: Gateway, wire: Wire) -> None:
    wire.sock.sendall(wire.ask(ASK_STREAM | {"stream_options": {"include_usage": True}}))
    body = wire.until(b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")[2]
    assert dechunked(body) == ROLE + HELLO + FINISH + USAGE_EVENT + DONE
