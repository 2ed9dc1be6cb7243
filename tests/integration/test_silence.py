"""Silence, with both drivers: comments to a client that waits, and the end of a backend that hangs."""

import asyncio
import contextlib
import json
import pathlib
import signal
import time
from collections.abc import Iterator

import pytest

from tests.integration.test_drivers import Wire
from tests.integration.test_faces import ASK, ASK_STREAM, CHAT, DONE, FINISH, HELLO, ROLE, STREAM
from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Asked, Scripted, sized
from tests.support.stage import LATE_S

pytestmark = pytest.mark.integration

COMMENT = b": keepalive\n\n"
AS_CHUNK = b"%x\r\n%b\r\n" % (len(COMMENT), COMMENT)
HEAD_STREAM, _, REST = STREAM.partition(b"\r\n\r\n")


class Held:
    """A backend's answer that comes when the test lets it. closed: how often a client of it has left before that."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.closed = 0
        self.asked = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._let = asyncio.Event()

    def let(self) -> None:
        """Answer now, and at once from here on."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._let.set)

    async def __call__(
        self, _asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.asked += 1
        gone, let = asyncio.create_task(reader.read(1)), asyncio.create_task(self._let.wait())
        await asyncio.wait({gone, let}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.closed += 1
        gone.cancel()
        let.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        writer.write(self.answer)


@contextlib.contextmanager
def before(directory: pathlib.Path, driver: str, *scripted: Scripted, **options: object) -> Iterator[Gateway]:
    """A gateway whose first choice is the first of these backends."""
    names = [f"b{number}" for number in range(1, len(scripted) + 1)]
    backends = [
        {"name": name, "url": f"http://127.0.0.1:{one.port}", "model": "m1", "slots": 1}
        for name, one in zip(names, scripted, strict=True)
    ]
    tiers = [{"backends": [name]} for name in names]
    try:
        named = {"tiers": tiers, "aliases": ("cheap",), "driver": driver, "keepalive_s": 0.3}
        with running(directory, backends, **named, **options) as gateway:
            yield gateway
    finally:
        for one in scripted:
            one.stop()


def the_record(gateway: Gateway) -> dict:
    (record,) = eventually(lambda: gateway.lines("call"))
    return record


@pytest.fixture(params=["direct", "plain"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_long_prefill_is_bridged_by_comments_and_may_still_fall_back(
    tmp_path: pathlib.Path, driver: str
) -> None:
    silent, good = Held(b""), Scripted(STREAM)
    with before(tmp_path, driver, Scripted(silent), good, timeouts={"first_event_s": 1.0}) as gateway:
        with Wire(gateway) as wire:
            wire.sock.sendall(wire.ask(ASK_STREAM))
            got = wire.until(b"0\r\n\r\n")
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"text/event-stream" in head
        assert b"served-by" not in head
        assert b"fallback" not in head
        comments = body.count(AS_CHUNK)
        assert 2 <= comments <= 4
        assert body.startswith(AS_CHUNK * comments)
        assert body.count(ROLE + HELLO + FINISH) == 1
        assert body.endswith(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))
        record = the_record(gateway)
        assert (record["outcome"], record["fallback_reason"], record["backend"]) == (
            "completed",
            "timeout",
            "b2",
        )
        eventually(lambda: silent.closed == 1)


def test_a_failure_after_a_comment_is_an_event(tmp_path: pathlib.Path, driver: str) -> None:
    silent = Held(b"")
    with before(tmp_path, driver, Scripted(silent), timeouts={"first_event_s": 1.0}) as gateway:
        with Wire(gateway) as wire:
            wire.sock.sendall(wire.ask(ASK_STREAM))
            body = wire.until(b"0\r\n\r\n").partition(b"\r\n\r\n")[2]
        assert body.startswith(AS_CHUNK)
        assert body.count(b'data: {"error":{"message":"the model did not answer in time"') == 1
        assert b"[DONE]" not in body
        record = the_record(gateway)
        assert (record["outcome"], record["status"], record["error_code"]) == ("timed_out", 200, "timeout")
        assert record["cost_pusd"] == 0
        eventually(lambda: silent.closed == 1)


def test_a_client_that_leaves_during_the_comments_stops_the_backend(
    tmp_path: pathlib.Path, driver: str
) -> None:
    silent = Held(sized(CHAT))
    with before(tmp_path, driver, Scripted(silent)) as gateway:
        with Wire(gateway) as wire:
            wire.sock.sendall(wire.ask(ASK_STREAM))
            wire.until(COMMENT)
        eventually(lambda: silent.closed == 1)
        record = the_record(gateway)
        assert (record["outcome"], record["usage"]["source"]) == ("client_gone", "estimated")
        silent.let()
        assert gateway.post("/v1/chat/completions", ASK).status == 200  # the one slot is free


def test_a_call_in_the_line_for_a_slot_hears_comments(tmp_path: pathlib.Path, driver: str) -> None:
    slow = Held(STREAM)
    with before(tmp_path, driver, Scripted(slow)) as gateway, Wire(gateway) as first, Wire(gateway) as second:
        first.sock.sendall(first.ask(ASK_STREAM))
        eventually(lambda: slow.asked == 1)
        second.sock.sendall(second.ask(ASK_STREAM))
        waited = second.until(COMMENT, 2)
        assert slow.asked == 1
        slow.let()
        for got in (first.until(b"0\r\n\r\n"), waited + second.until(b"0\r\n\r\n")):
            assert got.count(HELLO) == 1
            assert got.count(DONE) == 1
        eventually(lambda: len(gateway.lines("call")) == 2)
        assert {record["outcome"] for record in gateway.lines("call")} == {"completed"}


def test_a_stop_ends_a_stream_that_has_only_heard_comments_with_an_event(
    tmp_path: pathlib.Path, driver: str
) -> None:
    silent = Held(b"")
    with before(tmp_path, driver, Scripted(silent), drain_s=1.0) as gateway:
        with Wire(gateway) as wire:
            wire.sock.sendall(wire.ask(ASK_STREAM))
            wire.until(COMMENT)
            gateway.process.send_signal(signal.SIGTERM)
            body = wire.at_end()
        assert body.count(b'"code":"shutdown"') == 1
        assert b"[DONE]" not in body
        assert gateway.process.wait(30) == 0
        record = the_record(gateway)
        assert (record["outcome"], record["error_code"], record["cost_pusd"]) == (
            "backend_failed",
            "shutdown",
            0,
        )


@pytest.mark.parametrize("second", ["absent", "present"])
def test_br_058_a_backend_that_takes_a_call_and_never_answers(
    tmp_path: pathlib.Path, driver: str, second: str
) -> None:
    silent = Held(b"")
    others = [Scripted(sized(CHAT))] if second == "present" else []
    with before(tmp_path, driver, Scripted(silent), *others, timeouts={"sized_answer_s": 1.0}) as gateway:
        began = time.monotonic()
        answer = gateway.post("/v1/chat/completions", ASK)
        body, took_s = answer.read(), time.monotonic() - began
        assert 0.9 <= took_s < 1.0 + LATE_S
        record = the_record(gateway)
        if others:
            assert (answer.status, body) == (200, CHAT)
            assert [attempt["backend"] for attempt in record["attempts"]] == ["b1", "b2"]
        else:
            assert (answer.status, json.loads(body)["error"]["code"]) == (504, "timeout")
            assert (record["outcome"], record["cost_pusd"]) == ("timed_out", 0)
        eventually(lambda: silent.closed == 1)
