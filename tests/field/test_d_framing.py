"""Field reports on how a stream is framed and cut: what a client sees does not turn on it."""

import asyncio
import hashlib
import json
import threading
import time
import zlib

import openai
import pytest

from tests.support import sse
from tests.support.rawbackend import Asked, sized
from tests.support.rawclient import RawClient
from tests.support.stage import (
    ANSWER,
    CHAT,
    COMPLETION_PUSD,
    DONE,
    FINISH,
    LATE_S,
    PAIR,
    PROMPT_PUSD,
    REPORTED,
    ROLE,
    RS,
    RSU,
    STANDARD,
    USAGE,
    Endless,
    R,
    Stage,
    billed,
    content,
    cut,
    d,
    framed,
    opening,
    pieces,
    stream,
)

pytestmark = pytest.mark.integration

HELLO = (content("he"), content("llo"))
STREAM = b"".join(STANDARD)
EVENT_BYTES_MAX = 8 * 1024 * 1024
PAUSE_S = 0.001
"""Between two writes, so that they are two reads."""
MANY = 100
"""Of so many parts it does not matter that each is a read of its own; on a busy machine they would take too long."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
"""Of a body that ends with its connection: what is written is what is read, no chunk framing between."""


def close_delimited(parts: list[bytes]):
    """The bytes of a stream, each part a read of its own, ended by the connection."""

    async def answer(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in (HEAD, *parts):
            writer.write(part)
            await asyncio.sleep(PAUSE_S if len(parts) < MANY else 0)
        writer.close()

    return answer


def single_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


# -- BR-035


def test_br_035_one_byte_at_a_time(stage: Stage) -> None:
    stage.b1.default = close_delimited(single_bytes(STREAM))
    reply = stage.post(RSU)
    assert (reply.status, reply.body, reply.complete) == (200, STREAM, True)
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_035_one_byte_a_chunk(stage: Stage) -> None:
    stage.b1.default = stream(*single_bytes(STREAM))
    reply = stage.post(RSU)
    assert (reply.status, reply.body, reply.complete) == (200, STREAM, True)
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_035_two_writes_split_at_each_offset(stage: Stage) -> None:
    raw = stream(*STANDARD)  # the head and the chunk framing are cut too

    async def answer(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = int(asked.headers["x-request-id"])
        writer.write(raw[:at])
        await writer.drain()
        await asyncio.sleep(PAUSE_S)
        writer.write(raw[at:])

    async def client(offsets) -> None:
        connection = RawClient(stage.gateway.port, stage.gateway.keys["acme"])
        try:
            for at in offsets:
                got = await connection.post(CHAT, RSU, x_request_id=str(at))
                assert (at, got.status, got.body, got.complete) == (at, 200, STREAM, True)
        finally:
            await connection.close()

    async def clients() -> None:
        offsets = iter(range(1, len(raw)))  # shared: each takes the next
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(client(offsets))

    stage.b1.default = answer
    asyncio.run(clients())
    split = [record for record in stage.lines["call"] if record["request_id"].isdecimal()]
    assert len(split) == len(raw) - 1
    assert {billed(record) for record in split} == {REPORTED}


# -- BR-036

LINE_ENDS = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "CRLF and CR": lambda data: data.replace(b"\n\n", b"\r\n\r"),
    "LF and CRLF": lambda data: data.replace(b"\n\n", b"\n\r\n"),
    "LF and CR": lambda data: data.replace(b"\n\n", b"\n\r"),
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
}
SPLITS = {
    "whole": lambda data: [data],
    "between CR and LF": lambda data: data.replace(b"\r", b"\r\0").split(b"\0"),
    "crumbs": lambda data: [data[at : at + 5] for at in range(0, len(data), 5)],
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("line_ends", LINE_ENDS.values(), ids=LINE_ENDS)
@pytest.mark.parametrize("ask", [RS, RSU], ids=["not asked", "asked"])
def test_br_036_all_line_ends_are_understood(stage: Stage, ask: dict, line_ends, split) -> None:
    stage.b1.default = close_delimited(split(line_ends(STREAM)))
    reply = stage.post(ask)
    expected = STREAM if ask is RSU else STREAM.replace(USAGE, b"")
    assert (reply.status, reply.complete) == (200, True)
    assert sse.parse(reply.body) == sse.parse(expected)
    if ask is RSU:
        assert reply.body == line_ends(STREAM)
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_036_lines_may_end_differently_within_a_stream(stage: Stage) -> None:
    ends = [*LINE_ENDS.values()][:5]
    mixed = b"".join(ends[number % 5](piece) for number, piece in enumerate(STANDARD))
    stage.b1.default = close_delimited(single_bytes(mixed))
    reply = stage.post(RSU)
    assert sse.parse(reply.body) == sse.parse(STREAM)
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_036_data_may_stand_on_several_lines(stage: Stage) -> None:
    def spread(piece: bytes) -> bytes:
        return piece.replace(b", ", b",\ndata: ") if piece != DONE else piece

    given = b"".join(map(spread, STANDARD))
    stage.b1.default = stream(given)
    reply = stage.post(RSU)
    assert reply.body == given
    assert sse.chunks(reply.body) == sse.chunks(STREAM)
    assert billed(stage.record(reply.call_id)) == REPORTED


# -- BR-038

COMMENTS = (b": OPENROUTER PROCESSING\n\n", b":\n\n", b": ping\n\n")
FIELDS = b"event: ping\nid: 7\nretry: 1000\n\n"


def test_br_038_comments_are_no_events(stage: Stage) -> None:
    wait_s = 0.3
    first = opening(COMMENTS[0], COMMENTS[1], ROLE, COMMENTS[2], FIELDS)
    later = b"".join(framed(piece) for piece in (*HELLO, FINISH, USAGE, DONE)) + b"0\r\n\r\n"
    stage.b1.default = pieces([first, later], every_s=wait_s)
    reply = stage.post(RSU)
    assert (reply.status, reply.complete) == (200, True)
    events = sse.parse(reply.body)
    assert [event for event in events if event.data.startswith(":")] == []
    assert events == sse.parse(STREAM)
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert record["ttft_ns"] / 1e9 > wait_s


def test_br_038_openai_python_reads_it(stage: Stage) -> None:
    given = [
        COMMENTS[0],
        ROLE,
        FIELDS,
        *COMMENTS,
        HELLO[0],
        FIELDS,
        b"retry: 5\n\n",
        HELLO[1],
        FINISH,
        FIELDS,
        USAGE,
        DONE,
    ]
    stage.b1.default = stream(*given)
    url = f"http://127.0.0.1:{stage.gateway.port}/v1"
    with openai.OpenAI(base_url=url, api_key=stage.gateway.keys["acme"], max_retries=0) as client:
        chunks = list(client.chat.completions.create(**RSU))
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == "hello"
    assert chunks[-1].usage.completion_tokens == 5


def test_br_038_an_event_with_data_keeps_its_other_fields(stage: Stage) -> None:
    named = [b"event: message\nretry: 3\n" + piece for piece in STANDARD]
    stage.b1.default = stream(*named)
    reply = stage.post(RSU)
    assert reply.body == b"".join(named)
    assert billed(stage.record(reply.call_id)) == REPORTED


# -- BR-040


@pytest.mark.parametrize(
    "ping", [b": ping\n\n", b"event: ping\n\n", b"\n"], ids=["comment", "no data", "blank"]
)
@pytest.mark.parametrize("ask", [RS, RS | PAIR], ids=["alone", "pair"])
def test_br_040_pings_do_not_keep_a_dead_stream(stage: Stage, ask: dict, ping: bytes) -> None:
    said = content("a")
    backend = stage.b1.default = Endless(opening(ROLE, said), framed(ping), every_s=0.1)
    with stage.open(ask) as opened:
        said_s = opened.read_until(said)
        body = opened.rest()
        ended_s = time.monotonic()
        assert opened.complete
        call_id = opened.headers["x-weighbridge-call-id"]
    assert 1.0 <= ended_s - said_s + 0.05 < 1.0 + LATE_S
    assert sse.chunks(body)[-1]["error"]["code"] == "timeout"
    assert backend.wait_closed() - said_s < 1.0 + LATE_S
    assert stage.in_flight("b1") == 0
    record = stage.record(call_id)
    assert (record["outcome"], record["error_code"], record["status"]) == ("timed_out", "timeout", 200)
    usage = record["usage"]
    assert (usage["source"], usage["completion_tokens"]) == ("counted", 1)
    assert record["cost_pusd"] == usage["prompt_tokens"] * PROMPT_PUSD + COMPLETION_PUSD
    assert stage.b2.asked == []


@pytest.mark.parametrize("first", [opening(), opening(b": ping\n\n")], ids=["a head", "a ping"])
def test_br_040_nor_one_that_has_not_begun(stage: Stage, first: bytes) -> None:
    backend = stage.b1.default = Endless(first, framed(b": ping\n\n"), every_s=0.1)
    began_s = time.monotonic()
    reply = stage.post(RS)
    assert 1.0 <= time.monotonic() - began_s < 1.0 + LATE_S
    assert (reply.status, reply.error["code"]) == (504, "timeout")
    backend.wait_closed()
    assert stage.record(reply.call_id)["cost_pusd"] == 0


# -- BR-041

WORDS = "日本語🙂é"


def unescaped(text: str) -> bytes:
    """A content chunk whose characters stand in it as UTF-8."""
    value = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


@pytest.mark.parametrize("ask", [RS, RSU], ids=["not asked", "asked"])
def test_br_041_characters_are_not_cut(stage: Stage, ask: dict) -> None:
    said = [
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": {"content": part}}]}, ensure_ascii=False).encode()
        + b"\n\n"
        for part in (WORDS, WORDS[::-1])
    ]
    given = b"".join((ROLE, *said, FINISH, USAGE, DONE))
    stage.b1.default = close_delimited(single_bytes(given))
    reply = stage.post(ask)
    assert reply.body == (given if ask is RSU else given.replace(USAGE, b""))
    assert sse.text(reply.body) == WORDS + WORDS[::-1]
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_041_nor_is_what_is_counted(stage: Stage) -> None:
    stage.b1.default = close_delimited(single_bytes(ROLE + 3 * unescaped(WORDS)))
    reply = stage.post(RS)
    usage = stage.record(reply.call_id)["usage"]
    assert (usage["source"], usage["completion_tokens"]) == ("counted", 3)


# -- BR-043


def test_br_043_events_below_the_bound_pass(stage: Stage) -> None:
    long = [content(letter * size) for letter, size in (("a", 300 * 1024), ("b", 5 * 1024 * 1024))]
    given = b"".join((ROLE, *long, FINISH, USAGE, DONE))
    stage.b1.default = stream(ROLE, *long, FINISH, USAGE, DONE)
    reply = stage.post(RSU)
    assert (reply.status, reply.complete) == (200, True)
    assert hashlib.sha256(reply.body).digest() == hashlib.sha256(given).digest()
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_043_one_above_it_is_a_failure_not_an_end(stage: Stage) -> None:
    piece = b"x" * 65_536
    before = stage.rss_bytes()
    backend = stage.b1.default = Endless(
        opening(ROLE, HELLO[0], b"data: "), framed(piece), every_s=0, times=3 * EVENT_BYTES_MAX // len(piece)
    )
    with stage.open(RSU) as opened:
        body = opened.rest()
        call_id = opened.headers["x-weighbridge-call-id"]
        assert opened.complete
    assert body.startswith(ROLE + HELLO[0])
    assert len(body) < EVENT_BYTES_MAX + 10 * len(piece)
    error = json.loads(body.rstrip(b"\n").rpartition(b"\n\ndata: ")[2])
    assert error["error"]["code"] == "backend_failed"
    record = stage.record(call_id)
    assert (record["outcome"], record["usage"]["completion_tokens"]) == ("backend_failed", 1)
    assert stage.rss_bytes() - before < 4 * EVENT_BYTES_MAX
    assert backend.wait_closed()


def test_br_043_one_above_it_before_the_commit_point_falls_back(stage: Stage) -> None:
    stage.b1.default = Endless(opening(b"data: "), framed(b"x" * 65_536), every_s=0)
    stage.b2.default = stream(*STANDARD)
    reply = stage.post(RSU | PAIR)
    assert reply.body == STREAM
    assert [attempt["outcome"] for attempt in stage.record(reply.call_id)["attempts"]] == [
        "failed",
        "completed",
    ]


# -- BR-044

BODY = b"".join((ROLE, *HELLO, FINISH))
ENDS = {
    "usage with one newline": USAGE[:-1],
    "usage with none": USAGE[:-2],
    "no [DONE]": USAGE,
    "[DONE] without newline": USAGE + DONE[:-2],
    "[DONE] with one newline": USAGE + DONE[:-1],
    "CRLF, and the last LF is missing": USAGE[:-2] + b"\r\n\r",
}


@pytest.mark.parametrize("ask", [RS, RSU], ids=["not asked", "asked"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_br_044_a_last_event_needs_no_blank_line(stage: Stage, ask: dict, end: bytes) -> None:
    stage.b1.default = stream(BODY, end)
    reply = stage.post(ask)
    assert (reply.status, reply.complete) == (200, True)
    assert sse.parse(reply.body) == sse.parse(STREAM if ask is RSU else STREAM.replace(USAGE, b""))
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert record["mended"]


def test_br_044_without_usage_and_done_it_is_counted(stage: Stage) -> None:
    stage.b1.default = stream(ROLE, *HELLO, FINISH[:-1])
    reply = stage.post(RS)
    assert reply.body == b"".join((ROLE, *HELLO, FINISH, DONE))
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["usage"]["source"]) == ("completed", "counted")
    assert record["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("end", [b"", b"\n", HELLO[1][:-2], HELLO[1][:-1]], ids=repr)
def test_br_044_without_a_finish_it_is_no_answer(stage: Stage, end: bytes) -> None:
    stage.b1.default = stream(ROLE, HELLO[0], end)
    reply = stage.post(RS)
    events = sse.parse(reply.body)
    assert events[-1].json["error"]["code"] == "backend_failed"
    assert [event for event in events if event.done] == []
    assert stage.record(reply.call_id)["outcome"] == "backend_failed"


# -- BR-046


@pytest.mark.parametrize("one_read", [True, False], ids=["one read", "several"])
def test_br_046_nothing_follows_done(stage: Stage, one_read: bool) -> None:
    late = [
        content("X"),
        d({"choices": [], "usage": {"prompt_tokens": 999, "completion_tokens": 999, "total_tokens": 1998}}),
        DONE,
    ]
    first = opening(*STANDARD, *(late if one_read else []))
    backend = stage.b1.default = Endless(first, b"".join(map(framed, late)), times=0 if one_read else 3000)
    began_s = time.monotonic()
    reply = stage.post(RSU)
    assert time.monotonic() - began_s < 1.0 + LATE_S
    assert (reply.status, reply.body, reply.complete) == (200, STREAM, True)
    assert backend.wait_closed() - began_s < 1.0 + LATE_S
    assert stage.in_flight("b1") == 0
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert not one_read or "after_done_dropped" in record["mended"]


# -- BR-047


class Handed:
    """A stream of which each event is written when the one before has been seen at the client."""

    def __init__(self, head: bytes, parts: list[bytes], end: bytes = b"") -> None:
        self.seen = threading.Semaphore(0)
        self.written_s: list[float] = []
        self._head, self._parts, self._end = head, parts, end

    async def __call__(
        self, _asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(self._head)
        for part in self._parts:
            self.written_s.append(time.monotonic())
            writer.write(part)
            await asyncio.to_thread(self.seen.acquire, timeout=10)
        writer.write(self._end)


def squeezed(parts: list[bytes], kind: str) -> list[bytes]:
    """Each part compressed and flushed, so that it can be read when it has come."""
    deflate = zlib.compressobj(wbits=31 if kind == "gzip" else 15)
    done = [deflate.compress(part) + deflate.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    return [*done[:-1], done[-1] + deflate.flush()]


@pytest.mark.parametrize("kind", ["identity", "gzip", "deflate"])
def test_br_047_each_event_goes_on_when_it_comes(stage: Stage, kind: str) -> None:
    said = [ROLE, *(content(f"<{number}>") for number in range(5)), FINISH]
    parts = [*said, USAGE + DONE]
    sent = parts if kind == "identity" else squeezed(parts, kind)
    head = opening()
    if kind != "identity":
        head = head.replace(b"\r\n\r\n", f"\r\ncontent-encoding: {kind}\r\n\r\n".encode())
    backend = stage.b1.default = Handed(head, [framed(part) for part in sent], b"0\r\n\r\n")
    late_s = []
    with stage.open(RS, accept_encoding="gzip") as opened:
        for number, part in enumerate(said):
            late_s.append(opened.read_until(part) - backend.written_s[number])
            backend.seen.release()
        backend.seen.release()
        assert opened.rest() == b"".join((*said, DONE))
        assert opened.complete
        headers = opened.headers
    assert sorted(late_s)[len(late_s) // 2] < 0.1
    assert "content-length" not in headers
    assert "content-encoding" not in headers
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    record = stage.record(headers["x-weighbridge-call-id"])
    assert billed(record) == REPORTED


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_br_047_a_sized_answer_is_decoded_too(stage: Stage, kind: str) -> None:
    plain = json.dumps(ANSWER).encode()
    (packed,) = squeezed([plain], kind)
    stage.b1.default = sized(packed).replace(b"\r\n\r\n", f"\r\ncontent-encoding: {kind}\r\n\r\n".encode(), 1)
    reply = stage.post(R, accept_encoding="gzip")
    assert (reply.status, reply.body) == (200, plain)
    assert "content-encoding" not in reply.headers
    assert billed(stage.record(reply.call_id)) == REPORTED
    assert stage.b1.asked[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
@pytest.mark.parametrize("kind", ["br", "zstd", "gzip, gzip", "gzip"])
def test_br_047_what_cannot_be_decoded_is_a_failure(stage: Stage, ask: dict, kind: str) -> None:
    raw = sized(b"\x00\x01not compressed") if ask is R else stream(*STANDARD)
    stage.b1.default = raw.replace(b"\r\n\r\n", f"\r\ncontent-encoding: {kind}\r\n\r\n".encode(), 1)
    reply = stage.post(ask)
    assert (reply.status, reply.error["code"]) == (502, "backend_failed")
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["cost_pusd"]) == ("backend_failed", 0)


# -- BR-050

SINGLE = tuple(piece[:-1] for piece in STANDARD[:-1])
"""Each event with one newline only: to a client that keeps to the text, all of them are one."""


def test_br_050_events_run_together_are_a_failure_never_an_empty_success(stage: Stage) -> None:
    stage.b1.default = stream(*SINGLE, DONE)
    reply = stage.post(RSU)
    assert (reply.status, reply.error["code"]) == (502, "backend_failed")
    assert stage.record(reply.call_id)["outcome"] == "backend_failed"


def test_br_050_another_backend_may_do_better(stage: Stage) -> None:
    stage.b1.default = stream(*SINGLE, DONE)
    stage.b2.default = stream(*STANDARD)
    reply = stage.post(RSU | PAIR)
    assert reply.body == STREAM
    assert billed(stage.record(reply.call_id)) == REPORTED


@pytest.mark.parametrize("split", [SPLITS["whole"], SPLITS["crumbs"]], ids=["one read", "crumbs"])
def test_br_050_after_a_good_beginning_it_is_an_error_event(stage: Stage, split) -> None:
    stage.b1.default = close_delimited([ROLE + HELLO[0], *split(b"".join((*SINGLE, DONE)))])
    reply = stage.post(RSU)
    assert reply.body.startswith(ROLE + HELLO[0])
    assert sse.parse(reply.body)[-1].json["error"]["code"] == "backend_failed"
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["usage"]["source"]) == ("backend_failed", "counted")


def test_br_050_a_cut_after_it_is_one_too(stage: Stage) -> None:
    stage.b1.default = cut(opening(ROLE, *SINGLE))
    reply = stage.post(RSU)
    assert sse.parse(reply.body)[-1].json["error"]["code"] == "backend_failed"
    assert stage.record(reply.call_id)["outcome"] == "backend_failed"
