"""Field reports on errors: each has one status, one shape and one record, and tells nothing it should not."""

import datetime
import email.utils
import json
import pathlib
import time
from collections.abc import Iterator

import pytest

from tests.support import mutants, sse
from tests.support.rawbackend import Scripted, sized
from tests.support.stage import (
    ANSWER,
    DONE,
    FINISH,
    LATE_S,
    PAIR,
    REPORTED,
    ROLE,
    RS,
    RSU,
    SIZED,
    STANDARD,
    USAGE,
    Endless,
    R,
    Stage,
    backend,
    billed,
    chunk,
    content,
    cut,
    d,
    model,
    opening,
    pieces,
    staged,
    stream,
)

pytestmark = pytest.mark.integration

A = content("a")
FIELDS = {"message", "type", "param", "code"}
INTERNAL = ("10.0.0.5", ":8000", "Traceback", "abc", "nginx", "<html>", "127.0.0.1", "vllm/engine.py")
"""What no client may ever read of a backend or of us."""
BUSY = 12
"""Backends of one server that are told to be busy: each is held back for a while, so each serves one test."""


@pytest.fixture(scope="module")
def busy() -> Iterator[Scripted]:
    one = Scripted(SIZED)
    yield one
    one.stop()


@pytest.fixture(scope="module")
def frail() -> Iterator[Scripted]:
    one = Scripted(SIZED)
    yield one
    one.stop()


@pytest.fixture(scope="module")
def setting(busy: Scripted, frail: Scripted) -> dict:
    names = [f"busy-{number}" for number in range(2 * BUSY)]
    return {
        "more_backends": (
            *(backend(name, busy.port, instance_type="inf2.48xlarge") for name in names),
            backend("frail", frail.port, instance_type="inf2.48xlarge"),
        ),
        "more_models": (
            *(model(f"m-busy-{number}", *names[2 * number : 2 * number + 2]) for number in range(BUSY)),
            model("m-frail", "frail"),
        ),
    }


def check_failed(stage: Stage, reply, *, status: int = 502, code: str = "backend_failed") -> dict:
    """An error of ours in OpenAI's shape, with nothing of the backend in it; its record costs nothing."""
    assert reply.status == status
    assert reply.complete
    assert reply.error.keys() == FIELDS
    assert (reply.error["code"], reply.error["type"]) == (code, "server_error")
    assert isinstance(reply.error["message"], str)
    assert [word for word in INTERNAL if word.encode() in reply.body] == []
    record = stage.record(reply.call_id)
    assert (record["status"], record["error_code"], record["cost_pusd"]) == (status, code, 0)
    return record


# -- BR-051

DIED = {"message": "engine died at 10.0.0.5:8000 Traceback abc", "type": "server_error", "code": 500}
ERRORS = {
    "an error": d({"error": DIED}),
    "with choices": d(chunk() | {"error": DIED}),
    "with a choice": d(
        chunk({"index": 0, "delta": {"content": "x"}, "finish_reason": None}) | {"error": DIED}
    ),
    "flat": d({"object": "error", **DIED}),
    "a text": d({"error": "engine died at 10.0.0.5:8000"}),
    "named": b"event: error\n" + d({"error": DIED}),
    "of several lines": b'data: {"error":\ndata: {"message": "engine died at 10.0.0.5:8000"}}\n\n',
    "empty": d({"error": {}}),
}
AFTER = {"nothing": b": \n\n", "[DONE]": DONE, "more": content("b") + FINISH + USAGE + DONE}


@pytest.mark.parametrize("reads", [1, 2], ids=["one read", "two reads"])
@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_br_051_an_error_in_a_stream_is_its_end(stage: Stage, error: bytes, after: bytes, reads: int) -> None:
    whole, first = stream(ROLE, A, error, after), opening(ROLE, A)
    stage.b1.default = whole if reads == 1 else pieces([first, whole.removeprefix(first)], every_s=0.02)
    completed = stage.outcomes()["completed"]
    reply = stage.post(RSU | PAIR)
    assert (reply.status, reply.complete) == (200, True)
    assert reply.body.startswith(ROLE + A)
    (last,) = sse.chunks(reply.body.removeprefix(ROLE + A))
    assert last.keys() == {"error"}
    assert last["error"].keys() == FIELDS
    assert all(isinstance(last["error"][name], str) for name in ("message", "type", "code"))
    assert [word for word in INTERNAL if word.encode() in reply.body] == []
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["error_code"]) == ("backend_failed", "backend_failed")
    assert (record["usage"]["source"], record["usage"]["completion_tokens"]) == ("counted", 1)
    assert stage.outcomes()["completed"] == completed
    assert stage.b2.asked == []


def test_br_051_an_error_before_the_close_without_end_is_one_too(stage: Stage) -> None:
    stage.b1.default = cut(opening(ROLE, A, ERRORS["an error"]))
    reply = stage.post(RS)
    assert [*sse.chunks(reply.body)[-1]] == ["error"]
    assert stage.record(reply.call_id)["outcome"] == "backend_failed"


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_br_051_as_the_first_event_it_is_a_status(stage: Stage, error: bytes) -> None:
    stage.b1.default = stream(error)
    record = check_failed(stage, stage.post(RS))
    assert record["outcome"] == "backend_failed"
    stage.b2.default = stream(*STANDARD)
    reply = stage.post(RSU | PAIR)
    assert reply.body == b"".join(STANDARD)
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["failed", "completed"]


# -- BR-052


def test_br_052_a_reset_is_no_end(stage: Stage) -> None:
    stage.b1.default = cut(opening(ROLE, A), reset=True)
    reply = stage.post(RS | PAIR)
    assert (reply.status, reply.complete) == (200, True)
    assert reply.body.startswith(ROLE + A)
    *said, error = sse.chunks(reply.body)
    assert [choice["finish_reason"] for one in said for choice in one["choices"]] == [None, None]
    assert error["error"]["code"] == "backend_failed"
    assert stage.record(reply.call_id)["outcome"] == "backend_failed"
    assert stage.b2.asked == []


EVENTS = b"text/event-stream"
HALVES = {
    "a body cut short": sized(json.dumps(ANSWER).encode().ljust(500))[:200],
    "a chunked body cut short": opening(b'{"id": "c1", "choices": [').replace(
        b"text/event-stream", b"application/json"
    ),
    "a head cut short": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "nothing": b"",
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_052_half_an_answer_is_none(stage: Stage, ask: dict, half: bytes, reset: bool) -> None:
    stage.b1.default = cut(half, reset=reset)
    record = check_failed(stage, stage.post(ask))
    assert record["outcome"] == "backend_failed"
    stage.b2.default = SIZED if ask is R else stream(*STANDARD)
    reply = stage.post(ask | PAIR)
    assert reply.status == 200
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert [attempt["backend"] for attempt in record["attempts"]] == ["b1", "b2"]


# -- BR-054


def told(status: str, retry_after: str | int | None) -> bytes:
    """A backend's refusal of work. retry_after: as it stands; a number: a date so many seconds from now."""
    raw = sized(b'{"error":{"message":"busy at 10.0.0.5:8000","type":"x","param":null,"code":null}}', status)
    if retry_after is None:
        return raw
    if isinstance(retry_after, int):
        retry_after = in_seconds(retry_after)
    return raw.replace(b"\r\n\r\n", f"\r\nRetry-After: {retry_after}\r\n\r\n".encode(), 1)


def in_seconds(seconds: int) -> str:
    """A moment as an HTTP date."""
    return email.utils.format_datetime(
        datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds), usegmt=True
    )


TOO_MANY, UNAVAILABLE = "429 Too Many Requests", "503 Service Unavailable"
LATER = {
    "seconds": ((TOO_MANY, "7"), (TOO_MANY, "9"), 429, {7}),
    "the smaller one": ((TOO_MANY, "60"), (TOO_MANY, "3"), 429, {3}),
    "503": ((UNAVAILABLE, "7"), (UNAVAILABLE, "8"), 503, {7}),
    "a date": ((TOO_MANY, 90), (TOO_MANY, 900), 429, range(30, 91)),
    "a date that has passed": ((TOO_MANY, -90), (TOO_MANY, "9"), 429, {0, 1}),
    "both kinds": ((TOO_MANY, "5"), (UNAVAILABLE, "9"), 503, {5}),
    "none": ((TOO_MANY, None), (TOO_MANY, None), 429, range(1, 61)),
    "no number": ((TOO_MANY, "soon"), (TOO_MANY, "-5"), 429, range(1, 61)),
}
"""What B1 says, what B2 says, what the client is told: the kind of all of them, and the smallest time."""


@pytest.mark.parametrize("case", LATER)
def test_br_054_retry_after_is_kept(stage: Stage, busy: Scripted, case: str) -> None:
    # The limit of a tenant's own requests a minute comes with *Tenants*.
    first, second, status, seconds = LATER[case]
    busy.asked.clear()
    busy.script = [told(*first), told(*second)]
    ask = R | {"model": f"m-busy-{[*LATER].index(case)}"}
    reply = stage.post(ask)
    assert reply.status == status
    assert reply.error.keys() == FIELDS
    assert reply.error["code"] not in (None, "rate_limit_exceeded")  # that one is of our own limits
    assert b"10.0.0.5" not in reply.body
    assert int(reply.headers["retry-after"]) in seconds
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["cost_pusd"], record["status"]) == ("backend_failed", 0, status)
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["unavailable", "unavailable"]
    assert len(busy.asked) == 2


def test_br_054_a_busy_backend_is_left_alone_until_then(stage: Stage, busy: Scripted) -> None:
    busy.asked.clear()
    busy.script = [told(TOO_MANY, "1"), told(TOO_MANY, "2")]
    ask = R | {"model": f"m-busy-{BUSY - 1}"}
    first = stage.post(ask)
    began_s = time.monotonic()
    assert first.headers["retry-after"] == "1"
    again = stage.post(ask, x_request_id="again")
    assert (again.status, again.headers["retry-after"]) == (429, "1")
    assert stage.refused("again")["status"] == 429
    assert len(busy.asked) == 2
    while (reply := stage.post(ask)).status != 200:
        assert time.monotonic() - began_s < 10
    assert time.monotonic() - began_s > 0.9
    assert stage.record(reply.call_id)["backend"] == f"busy-{2 * BUSY - 2}"


@pytest.mark.parametrize("status", [TOO_MANY, UNAVAILABLE])
def test_br_054_a_free_backend_takes_the_call(stage: Stage, busy: Scripted, status: str) -> None:
    busy.script = [told(status, "7")]
    reply = stage.post(R | {"model": f"m-busy-{len(LATER) + (status == UNAVAILABLE)}"})
    assert reply.status == 200
    assert "retry-after" not in reply.headers
    assert billed(stage.record(reply.call_id)) == REPORTED


# -- BR-055

PAGE = b"<html><body>nginx at 10.0.0.5:8000</body></html>"
PAGES = {
    "an HTML 502": sized(PAGE, "502 Bad Gateway", "text/html"),
    "an empty 500": sized(b"", "500 Internal Server Error"),
    "an HTML 200": sized(PAGE, kind="text/html"),
    "no JSON": sized(b"not json"),
    "a list": sized(b"[]"),
    "an empty 200": sized(b""),
    "null": sized(b"null"),
    "no choices": sized(b'{"id":"c1","object":"chat.completion"}'),
    "an error in a 200": sized(b'{"error":{"message":"at 10.0.0.5:8000","code":500}}'),
    "a 204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a redirect": sized(b"", "307 Temporary Redirect").replace(
        b"\r\n\r\n", b"\r\nlocation: http://10.0.0.5:8000/\r\n\r\n"
    ),
    "HTML in chunks": opening(PAGE).replace(EVENTS, b"text/html") + b"0\r\n\r\n",
    "no HTTP": b"garbage\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_055_what_is_no_answer_is_a_failure(stage: Stage, ask: dict, page: bytes) -> None:
    stage.b1.default = page
    failed = stage.count("weighbridge_attempts_total", backend="b1", outcome="failed")
    record = check_failed(stage, stage.post(ask))
    assert record["outcome"] == "backend_failed"
    assert stage.count("weighbridge_attempts_total", backend="b1", outcome="failed") == failed + 1


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_br_055_another_backend_may_have_one(stage: Stage, page: bytes) -> None:
    stage.b1.default = page
    reply = stage.post(R | PAIR)
    assert (reply.status, json.loads(reply.body)) == (200, ANSWER)
    assert billed(stage.record(reply.call_id)) == REPORTED


EMPTY = {
    "no event": stream(),
    "[DONE] alone": stream(DONE),
    "comments": stream(b": ping\n\n", b":\n\n"),
    "usage alone": stream(USAGE, DONE),
}


@pytest.mark.parametrize("answer", EMPTY.values(), ids=EMPTY)
def test_br_055_an_empty_stream_is_no_answer_either(stage: Stage, answer: bytes) -> None:
    stage.b1.default = answer
    assert check_failed(stage, stage.post(RS))["outcome"] == "backend_failed"


# -- BR-057

TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, you requested 100001 tokens "
    "(100001 in the messages, 0 in the completion). Please reduce the length of the messages or completion."
)
SHAPES = {
    "today's": {"error": {"message": TOO_LONG, "type": "BadRequestError", "param": None, "code": 400}},
    "the flat one": {"object": "error", "message": TOO_LONG, "type": "BadRequestError", "param": None, "code": 400},
    "FastAPI's": {"detail": TOO_LONG},
    "OpenAI's": {"error": {"message": TOO_LONG, "type": "invalid_request_error", "param": "messages",
                           "code": "context_length_exceeded"}},
}  # fmt: skip
LONG = {"messages": [{"role": "user", "content": "word " * 100_000}]}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_057_too_long_a_prompt_is_the_clients_to_shorten(stage: Stage, ask: dict, shape: dict) -> None:
    stage.b1.default = sized(json.dumps(shape).encode(), "400 Bad Request")
    reply = stage.post(ask | PAIR | LONG)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert (reply.error.keys(), reply.error["type"]) == (FIELDS, "invalid_request_error")
    assert "4096 tokens" in reply.error["message"]
    assert len(stage.b1.asked) == 1
    assert stage.b2.asked == []  # its wall is no longer
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["cost_pusd"]) == ("refused", 0)
    assert record["error_code"] == "context_length_exceeded"
    assert stage.post(R | {"x": 1}).status == 400  # it is still the one that is asked


@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_057_a_500_that_says_so_is_still_a_failure(stage: Stage, ask: dict) -> None:
    said = sized(TOO_LONG.encode(), "500 Internal Server Error", "text/plain")
    stage.b1.default = stage.b2.default = said
    record = check_failed(stage, stage.post(ask | PAIR | LONG))
    assert record["outcome"] == "backend_failed"
    assert len(stage.b1.asked) + len(stage.b2.asked) <= 2


# -- BR-058


@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_058_a_backend_that_never_answers_is_left(stage: Stage, ask: dict) -> None:
    hung = stage.b1.default = Endless(b"")
    began_s = time.monotonic()
    reply = stage.post(ask)
    assert 1.0 <= time.monotonic() - began_s < 1.0 + LATE_S
    record = check_failed(stage, reply, status=504, code="timeout")
    assert record["outcome"] == "timed_out"
    hung.wait_closed()
    assert stage.in_flight("b1") == 0


@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_058_another_backend_takes_the_call(stage: Stage, ask: dict) -> None:
    hung = stage.b1.default = Endless(b"")
    stage.b2.default = SIZED if ask is R else stream(*STANDARD)
    began_s = time.monotonic()
    reply = stage.post(ask | PAIR)
    assert time.monotonic() - began_s < 1.0 + LATE_S
    assert reply.status == 200
    hung.wait_closed()
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["timed_out", "completed"]


def test_br_058_one_that_stops_in_its_answer_is_left_too(stage: Stage) -> None:
    hung = stage.b1.default = Endless(SIZED[:-10])
    stage.b2.default = SIZED
    reply = stage.post(R | PAIR)
    assert (reply.status, json.loads(reply.body)) == (200, ANSWER)
    hung.wait_closed()


# -- BR-060


def test_br_060_an_error_names_no_address(stage: Stage, frail: Scripted) -> None:
    frail.stop()
    reply = stage.post(R | {"model": "m-frail"})
    record = check_failed(stage, reply, status=503, code="no_backend")
    assert str(frail.port).encode() not in reply.body
    assert reply.call_id == record["call_id"]
    assert record["attempts"][0]["error"] == "connect refused"
    logged = stage.gateway.log.read_text()
    (line,) = [line for line in logged.splitlines() if reply.call_id in line]
    assert json.loads(line)["error"] == "connect refused"
    assert f"127.0.0.1:{frail.port}" not in logged


@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_060_a_fault_of_ours_tells_the_client_nothing(tmp_path: pathlib.Path, ask: dict) -> None:
    with staged(tmp_path, env=mutants.environment("fault_with_a_secret")) as stage:
        reply = stage.post(ask)
        record = check_failed(stage, reply, status=500, code="internal_error")
        assert record["outcome"] == "backend_failed"
        (line,) = stage.faults()
        told = json.loads(line)
        assert told["call_id"] == reply.call_id
        assert "RuntimeError" in told["error"]
        assert "abc" not in stage.gateway.log.read_text()
