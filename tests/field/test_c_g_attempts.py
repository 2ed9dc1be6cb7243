"""Field reports on calls of several attempts: one record, one voice, nothing left behind, no backend blamed."""

import collections
import concurrent.futures
import time

import pytest

from tests.support import sse
from tests.support.rawbackend import Answer, sized
from tests.support.stage import (
    DONE,
    FINISH,
    LATE_S,
    PAIR,
    REPORTED,
    ROLE,
    RS,
    SIZED,
    STANDARD,
    USAGE,
    Endless,
    R,
    Stage,
    billed,
    content,
    cut,
    opening,
    stream,
)

pytestmark = pytest.mark.integration

BROKEN = sized(
    b'{"error":{"message":"boom","type":"x","param":null,"code":500}}', "500 Internal Server Error"
)
BAD_PARAMETER = b'{"error":{"message":"bad","type":"BadRequestError","param":"top_p","code":400}}'


# -- BR-023


@pytest.mark.parametrize("ask", [R, RS], ids=["whole", "streamed"])
def test_br_023_a_call_with_a_fallback_is_one_record(stage: Stage, ask: dict) -> None:
    before = stage.outcomes()
    tried = {one: stage.count("weighbridge_attempts_total", backend=one) for one in ("b1", "b2")}
    stage.b1.default = BROKEN
    stage.b2.default = stream(*STANDARD) if ask is RS else SIZED
    reply = stage.post(ask | PAIR)
    assert reply.status == 200
    assert "x-weighbridge-fallback" in reply.headers
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert [(one["backend"], one["outcome"]) for one in record["attempts"]] == [
        ("b1", "failed"),
        ("b2", "completed"),
    ]
    assert [one["usage"]["source"] for one in record["attempts"]] == ["unknown", "reported"]
    assert stage.outcomes() == before | {"completed": before["completed"] + 1}
    for one in ("b1", "b2"):
        assert stage.count("weighbridge_attempts_total", backend=one) == tried[one] + 1


# -- BR-024


def test_br_024_no_second_voice_after_the_first_token(stage: Stage) -> None:
    stage.b1.default = cut(opening(ROLE, content("AAA")))
    stage.b2.default = stream(ROLE, content("BBB"), FINISH, USAGE, DONE)
    reply = stage.post(RS | PAIR)
    assert sse.text(reply.body) == "AAA"
    assert "error" in sse.parse(reply.body)[-1].json
    assert stage.b2.asked == []
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["backend"], len(record["attempts"])) == ("backend_failed", "b1", 1)


@pytest.mark.parametrize("first", [
    opening(), opening(b": ping\n\n"), opening(b": ping\n\n", b'data: {"choices":[]}\n\n'),
], ids=["head", "a comment", "an event without choices"])  # fmt: skip
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_br_024_before_it_another_backend_may_speak(stage: Stage, first: bytes, reset: bool) -> None:
    stage.b1.default = cut(first, reset=reset)
    stage.b2.default = stream(ROLE, content("BBB"), FINISH, USAGE, DONE)
    reply = stage.post(RS | PAIR)
    assert sse.text(reply.body) == "BBB"
    assert reply.body.count(b'"role"') == 1
    assert b"ping" not in reply.body
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert [one["backend"] for one in record["attempts"]] == ["b1", "b2"]


# -- BR-034


@pytest.mark.parametrize("late", [SIZED, stream(*STANDARD)], ids=["whole", "streamed"])
def test_br_034_a_backend_that_is_late_is_left_and_its_late_bytes_change_nothing(
    stage: Stage, late: bytes
) -> None:
    held = stage.b1.default = Endless(b"", late, every_s=30.0)
    began = time.monotonic()
    reply = stage.post(R | PAIR)
    took_s = time.monotonic() - began
    assert (reply.status, reply.body) == (200, SIZED.partition(b"\r\n\r\n")[2])
    assert 0.9 < took_s < 1.0 + LATE_S
    assert held.wait_closed() - began - took_s < LATE_S
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert [(one["backend"], one["outcome"]) for one in record["attempts"]] == [
        ("b1", "timed_out"),
        ("b2", "completed"),
    ]
    assert stage.in_flight("b1") == 0


# -- BR-077


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "404 Not Found", "413 Content Too Large", "422 Unprocessable Entity"]
)
def test_br_077_a_clients_mistakes_are_no_fault_of_the_backend(stage: Stage, status: str) -> None:
    stage.b1.default = sized(BAD_PARAMETER, status)
    for _ in range(10):
        reply = stage.post(R | PAIR)
        assert (reply.status, reply.body) == (int(status[:3]), BAD_PARAMETER)
        assert billed(stage.record(reply.call_id))[3:] == (0, "refused")
    assert stage.b2.asked == []
    stage.b1.default = SIZED
    reply = stage.post(R | PAIR)
    assert stage.record(reply.call_id)["backend"] == "b1"


# -- BR-086, BR-094


def ends() -> dict[str, Answer | bytes]:
    """How calls end, with and without an answer."""
    return {
        "500": BROKEN,
        "reset": cut(opening(ROLE, content("a")), reset=True),
        "bad JSON": sized(b"not json"),
        "429": sized(b"{}", "429 Too Many Requests"),
        "hangs": Endless(b""),
        "400": sized(BAD_PARAMETER, "400 Bad Request"),
    }


@pytest.mark.parametrize("end", ends())
def test_br_094_every_end_gives_its_seat_back(stage: Stage, end: str) -> None:
    for _ in range(5):  # one more than there are seats
        stage.b1.script = [ends()[end]]
        stage.post(RS if end == "reset" else R)
    stage.b1.script.clear()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = [future.result() for future in [pool.submit(stage.post, R) for _ in range(4)]]
    assert [reply.status for reply in replies] == [200] * 4
    assert stage.in_flight("b1") == 0


def test_br_086_seats_taken_are_seats_given_back_whatever_happens(stage: Stage) -> None:
    answers = list(ends().values())

    def one(number: int) -> int:
        if number % 3 == 2:
            with stage.open(RS | PAIR):
                return 0  # it leaves before anything comes
        return stage.post((RS if number % 2 else R) | PAIR).status

    for backend in (stage.b1, stage.b2):
        backend.script = [SIZED if number % 2 else answers[number // 2 % 4] for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        seen = collections.Counter(pool.map(one, range(60)))
    assert seen[0] == 20
    stage.check()
    assert (stage.in_flight("b1"), stage.in_flight("b2")) == (0, 0)
    for backend in (stage.b1, stage.b2):
        backend.script.clear()
    assert stage.post(R | PAIR).status == 200


# -- BR-087


def test_br_087_a_call_is_tried_as_often_as_configured_and_no_more(stage: Stage) -> None:
    stage.b1.default = stage.b2.default = BROKEN
    for _ in range(20):
        reply = stage.post(R | PAIR)
        assert (reply.status, reply.error["code"]) == (502, "backend_failed")
        assert len(stage.record(reply.call_id)["attempts"]) == 2
    assert (len(stage.b1.asked), len(stage.b2.asked)) == (20, 20)
