"""Backends that say that they are busy: held back as long as they say, and never taken for broken."""

import asyncio
import concurrent.futures
import contextlib
import json
import pathlib
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Asked, Scripted, sized

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
ASKED = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = json.dumps({
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}).encode()  # fmt: skip


def refusal(status: str, after_s: int) -> bytes:
    raw = sized(b'{"error":{"message":"busy","type":"x","param":null,"code":null}}', status)
    return raw.replace(b"\r\n\r\n", b"\r\nretry-after: %d\r\n\r\n" % after_s, 1)


@contextlib.contextmanager
def pair(tmp_path: pathlib.Path) -> Iterator[tuple[Gateway, Scripted, Scripted]]:
    """A gateway before two backends, b1 the first choice."""
    b1, b2 = Scripted(sized(ANSWER)), Scripted(sized(ANSWER))
    backends = [
        {"name": name, "url": f"http://127.0.0.1:{backend.port}", "model": "m1"}
        for name, backend in (("b1", b1), ("b2", b2))
    ]
    try:
        with running(tmp_path, backends, tiers=[{"backends": ["b1"]}, {"backends": ["b2"]}]) as gateway:
            eventually(lambda: set(states(gateway).values()) == {("ready", None)})
            yield gateway, b1, b2
    finally:
        b1.stop()
        b2.stop()


def states(gateway: Gateway) -> dict[str, tuple[str, int | None]]:
    """State and hold of each backend, as /readyz shows them."""
    _, page = gateway.get("/readyz")
    return {one["name"]: (one["state"], one["held_s"]) for one in json.loads(page)["backends"]}


def test_a_busy_backend_gets_no_calls_until_it_wants_some(tmp_path: pathlib.Path) -> None:
    with pair(tmp_path) as (gateway, b1, b2):
        b1.script = [refusal("429 Too Many Requests", 2)]
        said_at = time.monotonic()
        for number in range(10):
            answer = gateway.post(CHAT, ASKED)
            assert (answer.status, answer.read()) == (200, ANSWER)
            assert answer.headers["x-weighbridge-fallback"] in ("busy", "status 429")
            assert len(b2.asked) == number + 1
        assert len(b1.asked) == 1
        state, held_s = states(gateway)["b1"]
        assert state == "ready"
        assert held_s in (1, 2)
        records = gateway.lines("call")
        assert records[0]["fallback_reason"] == "status 429"
        assert {record["fallback_reason"] for record in records[1:]} == {"busy"}
        assert {tuple(attempt["backend"] for attempt in record["attempts"]) for record in records[1:]} == {
            ("b2",)
        }
        eventually(lambda: states(gateway)["b1"] == ("ready", None))
        assert time.monotonic() - said_at >= 1.9
        assert gateway.post(CHAT, ASKED).status == 200
        assert len(b1.asked) == 2


@pytest.mark.parametrize(("refused", "status"), [
    (("429 Too Many Requests", "429 Too Many Requests"), 429),
    (("429 Too Many Requests", "503 Service Unavailable"), 503),
])  # fmt: skip
def test_when_all_are_busy_the_client_is_told_when_one_is_not(
    tmp_path: pathlib.Path, refused: tuple[str, str], status: int
) -> None:
    with pair(tmp_path) as (gateway, b1, b2):
        b1.script, b2.script = [refusal(refused[0], 30)], [refusal(refused[1], 20)]
        for _ in range(3):
            answer = gateway.post(CHAT, ASKED)
            assert answer.status == status
            assert 1 <= int(answer.headers["retry-after"]) <= 20
            assert json.loads(answer.read())["error"]["code"] is not None
        assert (len(b1.asked), len(b2.asked)) == (1, 1)  # the second and third were not sent at all
        assert len(gateway.lines("call")) == 1
        eventually(lambda: len(gateway.lines("refused")) == 2)
        assert {state for state, _ in states(gateway).values()} == {"ready"}


def test_calls_that_wait_for_a_busy_backend_are_told_and_not_sent(tmp_path: pathlib.Path) -> None:
    asked, go = threading.Event(), threading.Event()

    async def busy(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.to_thread(go.wait, 10)
        writer.write(refusal("429 Too Many Requests", 30))

    only = Scripted(busy)
    backends = [{"name": "b1", "url": f"http://127.0.0.1:{only.port}", "model": "m1", "slots": 1}]
    try:
        with running(tmp_path, backends) as gateway, concurrent.futures.ThreadPoolExecutor(6) as pool:

            def ask() -> tuple[int, int]:
                answer = gateway.post(CHAT, ASKED)
                answer.read()
                return answer.status, int(answer.headers["retry-after"])

            first = pool.submit(ask)
            assert asked.wait(10)
            others = [pool.submit(ask) for _ in range(5)]
            eventually(lambda: len(gateway.lines("admitted")) == 6)
            go.set()
            for one in (first, *others):
                status, wait_s = one.result()
                assert (status, 28 <= wait_s <= 30) == (429, True)
            assert len(only.asked) == 1
            assert states(gateway)["b1"][0] == "ready"
    finally:
        go.set()
        only.stop()


def test_a_500_holds_nothing_back(tmp_path: pathlib.Path) -> None:
    with pair(tmp_path) as (gateway, b1, b2):
        b1.script = [refusal("500 Internal Server Error", 30)]
        assert gateway.post(CHAT, ASKED).status == 200
        assert gateway.post(CHAT, ASKED).status == 200
        assert (len(b1.asked), len(b2.asked)) == (2, 1)
        assert states(gateway) == {"b1": ("ready", None), "b2": ("ready", None)}


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect"])
def test_a_redirect_is_not_followed(tmp_path: pathlib.Path, status: str) -> None:
    elsewhere = Scripted(sized(ANSWER))
    location = b"location: http://127.0.0.1:%d/v1/chat/completions" % elsewhere.port
    try:
        with pair(tmp_path) as (gateway, b1, b2):
            b1.default = b2.default = sized(b"", status).replace(b"\r\n\r\n", b"\r\n%b\r\n\r\n" % location, 1)
            answer = gateway.post(CHAT, ASKED)
            assert answer.status == 502
            assert json.loads(answer.read())["error"]["code"] == "backend_failed"
            assert elsewhere.asked == []
    finally:
        elsewhere.stop()
