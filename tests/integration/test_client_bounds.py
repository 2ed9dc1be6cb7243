"""Every bound on what a client or a backend may send, passed over a real socket, with both drivers.

Each test sees what the other side is told, what the record says, and that the metric counted it once.
"""

import asyncio
import contextlib
import http.client
import json
import pathlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.integration.test_drivers import Wire
from tests.integration.test_faces import ASK, ASK_STREAM, CHAT, DONE, FINISH, HELLO, ROLE, STREAM, USAGE_EVENT
from tests.support import mutants
from tests.support.gateway import Gateway, eventually, running
from tests.support.ports import free_port
from tests.support.rawbackend import Answer, Asked, Scripted, chunked, sized

pytestmark = pytest.mark.integration

M1 = {"model": "m1"}
BOUNDS = ("head_time", "head_bytes", "body_time", "body_bytes", "event", "answer", "backend_head")
DRIVERS = pytest.mark.parametrize("driver", ["direct", "plain"])


@pytest.fixture(scope="module")
def scripted() -> Iterator[Scripted]:
    one = Scripted(sized(CHAT))
    yield one
    one.stop()


@contextlib.contextmanager
def bounded(
    directory: pathlib.Path,
    scripted: Scripted,
    driver: str,
    *,
    env: dict[str, str] | None = None,
    **bounds: float,
) -> Iterator["Bounded"]:
    ops = f"127.0.0.1:{free_port()}"
    backends = [{"name": "a", "url": f"http://127.0.0.1:{scripted.port}", "model": "m1", "slots": 2}]
    options = {"driver": driver, "bounds": bounds, "ops": {"listen": ops}}
    with running(directory, backends, env=env, **options) as gateway:
        yield Bounded(gateway, ops)


TIGHT = {
    "head_s": 1,
    "head_bytes_max": 2048,
    "body_s": 1,
    "body_bytes_per_s_min": 1024,
    "body_bytes_max": 64 * 1024,
    "event_bytes_max": 4096,
    "answer_bytes_max": 4096,
    "backend_head_bytes_max": 1024,
}


@pytest.fixture(scope="module", params=["direct", "plain"])
def shared(
    request: pytest.FixtureRequest, scripted: Scripted, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Bounded"]:
    with bounded(tmp_path_factory.mktemp(request.param), scripted, request.param, **TIGHT) as one:
        yield one


@pytest.fixture
def tight(shared: "Bounded") -> "Bounded":
    """A gateway with little room, of each driver; what tests before this one did with it does not count."""
    shared.forget()
    return shared


class Bounded:
    """A gateway, and its metrics from the second listener, which has no client connections."""

    def __init__(self, gateway: Gateway, ops: str) -> None:
        self.gateway = gateway
        self.ops = ops
        self._before: dict[str, float] = {}
        self._lines = 0

    def forget(self) -> None:
        """Count from here on."""
        self._before = {}
        self._before = {bound: self.passed(bound) for bound in BOUNDS}
        self._lines = len(self.gateway.lines("call", "refused"))

    def line(self) -> dict:
        """The one line of a call or a refusal since `forget`."""
        return eventually(lambda: self.gateway.lines("call", "refused")[self._lines :])[0]

    def metric(self, name: str) -> float:
        connection = http.client.HTTPConnection(self.ops, timeout=10)
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        finally:
            connection.close()
        found = re.search(rf"^weighbridge_{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def passed(self, bound: str) -> float:
        return self.metric(f'bound_exceeded_total{{bound="{bound}"}}') - self._before.get(bound, 0)

    def passes(self, bound: str, times: int = 1) -> None:
        """Wait until it is counted; never more often than it happened."""
        eventually(lambda: self.passed(bound) >= times, within_s=30)
        assert self.passed(bound) == times


def refused(answer: bytes, status: int, code: str | None = None) -> bytes:
    """Is this an error of ours, whole? returns: its head."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    return head


@DRIVERS
def test_connections(tmp_path: pathlib.Path, scripted: Scripted, driver: str) -> None:
    with bounded(tmp_path, scripted, driver, connections_max=3) as one, contextlib.ExitStack() as stack:
        eventually(lambda: one.metric("client_connections") == 0)
        first, *_ = [stack.enter_context(Wire(one.gateway)) for _ in range(3)]
        eventually(lambda: one.metric("client_connections") == 3)
        head = refused(stack.enter_context(Wire(one.gateway)).at_end(), 503, "overloaded")
        assert b"retry-after: 1" in head
        assert b"connection: close" in head
        one.passes("connections")
        first.sock.sendall(first.ask(ASK | M1))
        assert first.until(CHAT)  # those that are in are served
        first.sock.close()
        eventually(lambda: one.metric("client_connections") == 2)
        again = stack.enter_context(Wire(one.gateway))
        again.sock.sendall(again.ask(ASK | M1))
        assert again.until(CHAT)


@DRIVERS
def test_idle_time(tmp_path: pathlib.Path, scripted: Scripted, driver: str) -> None:
    with (
        bounded(tmp_path, scripted, driver, idle_s=1) as one,
        Wire(one.gateway) as new,
        Wire(one.gateway) as used,
    ):
        used.sock.sendall(used.ask(ASK | M1))
        used.until(CHAT)
        assert (new.at_end(), used.at_end()) == (b"", b"")


def test_the_second_listener_has_the_same_bounds(tight: Bounded) -> None:
    host, _, port = tight.ops.rpartition(":")
    for request, status in (
        (b"GET /metrics HT", 408),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 3000 + b"\r\n\r\n", 431),
    ):
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(request)
            got = b""
            while more := sock.recv(65536):
                got += more
            refused(got, status)
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
        assert sock.recv(65536).startswith(b"HTTP/1.1 404 ")  # calls have no second door


@DRIVERS
def test_an_answer_is_not_idle_time(tmp_path: pathlib.Path, scripted: Scripted, driver: str) -> None:
    go = threading.Event()

    async def later(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(go.wait, 20)
        writer.write(STREAM)

    bounds = {"idle_s": 1, "head_s": 1, "body_s": 1}
    with bounded(tmp_path, scripted, driver, **bounds) as one, Wire(one.gateway) as waiting:
        scripted.script.append(later)
        # It also has the beginning of its next request out, which is not waited for in the meantime.
        waiting.sock.sendall(waiting.ask(ASK_STREAM | M1) + waiting.head()[:40])
        for _ in range(2):  # twice as long as it may be idle
            with Wire(one.gateway) as idle:
                assert idle.at_end() == b""
        go.set()
        assert waiting.until(b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        assert waiting.at_end().startswith(b"HTTP/1.1 408 ")


def test_the_time_of_a_head(tight: Bounded) -> None:
    with Wire(tight.gateway) as wire:
        wire.sock.sendall(wire.head()[:30])
        assert b"connection: close" in refused(wire.at_end(), 408)
    tight.passes("head_time")


def test_the_size_of_a_head(tight: Bounded) -> None:
    with Wire(tight.gateway) as whole:
        whole.sock.sendall(whole.ask(ASK | M1, "x-more: " + "y" * 2000))
        refused(whole.at_end(), 431)
    with Wire(tight.gateway) as endless:
        with contextlib.suppress(ConnectionError):  # it need not be read to its end
            endless.sock.sendall(endless.head()[:-2] + b"x-more: ")
            for _ in range(1000):
                endless.sock.sendall(b"y" * 100)
        refused(endless.at_end(), 431)
    tight.passes("head_bytes", 2)
    with Wire(tight.gateway) as fits:
        fits.sock.sendall(fits.ask(ASK | M1, "x-more: " + "y" * 1500))
        assert fits.until(CHAT)
    assert tight.line()["kind"] == "call"


def test_the_time_of_a_body(tight: Bounded) -> None:
    with Wire(tight.gateway) as wire:
        wire.sock.sendall(wire.ask(ASK | M1)[:-5])
        assert b"connection: close" in refused(wire.at_end(), 408)
    line = tight.line()
    assert (line["reason"], line["status"], line["tenant"]) == ("TooSlow", 408, "acme")
    tight.passes("body_time")


def test_a_body_that_comes_steadily_has_its_time(tight: Bounded) -> None:
    with Wire(tight.gateway) as steady, Wire(tight.gateway) as clock:
        request = steady.ask(ASK | M1 | {"user": "x" * 40_000})
        steady.sock.sendall(request[:-5])  # its 40 KB give it 40 s more
        clock.sock.sendall(clock.head("content-length: 5"))
        assert clock.at_end().startswith(b"HTTP/1.1 408 ")
        steady.sock.sendall(request[-5:])
        assert steady.until(CHAT)


def test_the_size_of_a_body(tight: Bounded) -> None:
    with Wire(tight.gateway) as wire:
        wire.sock.sendall(wire.ask(ASK | M1 | {"user": "x" * 64 * 1024}))
        refused(wire.until(b"}}"), 413)
        wire.sock.sendall(wire.ask(ASK | M1))
        assert wire.until(CHAT)
    tight.passes("body_bytes")


def test_the_rest_of_a_body_that_was_refused(tight: Bounded) -> None:
    with Wire(tight.gateway) as wire:
        wire.sock.sendall(wire.head("content-length: 100000"))
        refused(wire.until(b"}}"), 413)
        assert wire.at_end() == b""
    tight.passes("body_bytes")
    tight.passes("body_time")


def test_a_client_that_is_told_to_leave_and_does_not_is_cut(tight: Bounded) -> None:
    before = tight.metric("client_connections")
    with Wire(tight.gateway) as silent, Wire(tight.gateway) as dripping:
        for wire in (silent, dripping):
            wire.sock.sendall(wire.head("content-length: 100000", "connection: close"))
            refused(wire.at_end(), 413)

        def is_cut() -> bool:
            try:
                dripping.sock.sendall(b" ")
            except ConnectionError:
                return True
            return False

        eventually(is_cut, within_s=30)
        eventually(lambda: tight.metric("client_connections") == before, within_s=30)
    tight.passes("body_bytes", 2)
    assert tight.passed("body_time") == 0


@DRIVERS
@pytest.mark.parametrize("over", [False, True], ids=["streaming", "answered"])
def test_a_client_that_takes_nothing(
    tmp_path: pathlib.Path, scripted: Scripted, driver: str, over: bool
) -> None:
    """Cut off, whether its answer goes on or all of it waits to be sent."""
    left = threading.Event()
    many = b"%x\r\n%b\r\n" % (len(HELLO) * 700, HELLO * 700)  # 100 KB

    async def pour(_asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(chunked(ROLE, HELLO)[:-5])
            for _ in range(160 if over else 10_000):  # more than the kernel takes
                writer.write(many)
                await writer.drain()
            whole = chunked(FINISH, USAGE_EVENT, DONE)
            writer.write(whole[whole.index(b"\r\n\r\n") + 4 :])
            await writer.drain()
            await reader.read()
        left.set()

    bounds = {"write_stall_s": 1, "buffer_bytes_max": 64 * 1024 * 1024 if over else 64 * 1024}
    with bounded(tmp_path, scripted, driver, **bounds) as one, socket.socket() as sock:
        scripted.script.append(pour)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", one.gateway.port))
        with Wire(one.gateway) as wire:
            sock.sendall(wire.ask(ASK_STREAM | M1))
        (record,) = eventually(lambda: one.gateway.lines("call"))
        one.passes("write_stall")
        if over:
            assert record["outcome"] == "completed"
            assert one.passed("buffer") == 0
        else:
            assert record["outcome"] == "client_gone"
            assert one.passed("buffer") >= 1
            assert left.wait(10)  # the backend is told too
        eventually(lambda: one.metric("client_connections") == 0)


@DRIVERS
def test_a_client_that_asks_and_asks_and_takes_nothing(
    tmp_path: pathlib.Path, scripted: Scripted, driver: str
) -> None:
    """Each time it has its record it asks again: what waits for it stays bounded over all its calls."""
    large, times = sized(CHAT[:-1] + b" " * 1_000_000 + b"}"), 40
    bounds = {"write_stall_s": 1, "buffer_bytes_max": 64 * 1024}
    with bounded(tmp_path, scripted, driver, **bounds) as one, socket.socket() as sock:
        scripted.script += [large] * times
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", one.gateway.port))
        with Wire(one.gateway) as wire:
            ask = wire.ask(ASK | M1)
        for asked in range(1, times + 1):
            with contextlib.suppress(ConnectionError):
                sock.sendall(ask)
            eventually(lambda n=asked: len(one.gateway.lines("call")) >= n or one.passed("write_stall"))
            if one.passed("write_stall"):
                break
        scripted.script.clear()
        assert len(one.gateway.lines("call")) < times // 2  # the kernel takes a few


async def endless_event(_asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(chunked(ROLE, b"data: ")[:-5])
    for _ in range(50):
        writer.write(b"64\r\n" + b"x" * 100 + b"\r\n")
        await writer.drain()
    await reader.read()  # until the gateway leaves


@pytest.mark.parametrize(
    ("bound", "stream", "answer", "reason"),
    [
        ("event", True, endless_event, "event too large"),
        ("answer", False, sized(CHAT[:-1] + b" " * 5000 + b"}"), "answer too large"),
        (
            "backend_head", False,
            sized(CHAT).replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 2000 + b"\r\n\r\n"), "head too large",
        ),
    ],
    ids=["event", "answer", "head"],
)  # fmt: skip
def test_what_a_backend_sends(
    tight: Bounded, scripted: Scripted, bound: str, stream: bool, answer: bytes | Answer, reason: str
) -> None:
    with Wire(tight.gateway) as wire:
        scripted.script.append(answer)
        wire.sock.sendall(wire.ask((ASK_STREAM if stream else ASK) | M1))
        if stream:  # the role was out: the error is the stream's last event
            assert b'"code":"backend_failed"' in wire.until(b"\r\n0\r\n\r\n")
        else:
            refused(wire.until(b"}}"), 502, "backend_failed")
    record = tight.line()
    assert record["outcome"] == "backend_failed"
    assert [attempt["error"] for attempt in record["attempts"]] == [reason]
    tight.passes(bound)


@DRIVERS
def test_the_line_before_the_slots(tmp_path: pathlib.Path, scripted: Scripted, driver: str) -> None:
    go = threading.Event()

    async def later(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(go.wait, 20)
        writer.write(sized(CHAT))

    with bounded(tmp_path, scripted, driver, queue_calls_max=1, queue_wait_s=1) as one:
        scripted.script += [later, later]
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(one.gateway)) for _ in range(4)]
            for number, wire in enumerate(wires[:3], start=1):  # two have a slot, one waits
                wire.sock.sendall(wire.ask(ASK | M1))
                eventually(lambda number=number: len(one.gateway.lines("admitted")) == number)
            wires[3].sock.sendall(wires[3].ask(ASK | M1))
            assert b"retry-after: 1" in refused(wires[3].until(b"}}"), 503, "no_backend")
            one.passes("queue_calls")
            refused(wires[2].until(b"}}"), 503, "no_backend")
            one.passes("queue_wait")
            go.set()
            assert wires[0].until(CHAT)
            assert wires[1].until(CHAT)


@DRIVERS
def test_a_loop_that_is_late_sheds_before_admission(
    tmp_path: pathlib.Path, scripted: Scripted, driver: str
) -> None:
    env = mutants.environment("slow_rounds") | {"KILL_TEST_SLOW": str(tmp_path / "slow")}
    with bounded(tmp_path, scripted, driver, env=env, loop_lag_ms_max=50) as one, Wire(one.gateway) as wire:
        wire.sock.sendall(wire.ask(ASK | M1))
        assert wire.until(CHAT)
        (tmp_path / "slow").touch()
        asked = len(scripted.asked)

        def is_shed() -> bytes:
            wire.sock.sendall(wire.ask(ASK | M1))
            answer = wire.until(b"}")
            return answer if answer.startswith(b"HTTP/1.1 503 ") else b""

        eventually(lambda: one.metric("loop_lag_seconds") >= 0.1)
        got = eventually(is_shed)
        assert b'"code":"overloaded"' in got
        assert b"retry-after: 1" in got
        (line,) = eventually(lambda: one.gateway.lines("refused"))
        assert (line["reason"], line["error_code"]) == ("Overloaded", "overloaded")
        assert len(scripted.asked) - asked == len(one.gateway.lines("admitted")) - 1
        one.passes("loop_lag")
        (tmp_path / "slow").unlink()
        eventually(lambda: not is_shed())
