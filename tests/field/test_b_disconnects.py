"""Field reports on clients and backends that leave: what is billed, and what stops."""

import asyncio
import time

import pytest

from tests.support import sse
from tests.support.opened import Opened
from tests.support.rawbackend import Asked
from tests.support.stage import (
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
    SIZED,
    SLOTS,
    STANDARD,
    U_10_5_PUSD,
    USAGE,
    Endless,
    R,
    Stage,
    billed,
    content,
    cut,
    framed,
    opening,
    stream,
    u,
)

pytestmark = pytest.mark.integration

TOKEN = content("tok ")
WITHIN_S = 1.0 + LATE_S
"""How soon a backend must see that its client has gone."""
LEAVE = {"closed": Opened.leave, "reset": Opened.reset}


def check_counted(record: dict, *, at_least: int, at_most: int, outcome: str = "client_gone") -> None:
    """What was produced is billed, by our own count of it."""
    usage = record["usage"]
    assert (record["outcome"], usage["source"]) == (outcome, "counted")
    assert usage["prompt_tokens"] >= 1
    assert at_least <= usage["completion_tokens"] <= at_most
    due = usage["prompt_tokens"] * PROMPT_PUSD + usage["completion_tokens"] * COMPLETION_PUSD
    assert record["cost_pusd"] == due


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
def test_br_014_a_client_that_leaves_pays_for_what_was_produced(stage: Stage, leave) -> None:
    backend = stage.b1.default = Endless(opening(ROLE), framed(TOKEN), times=200)
    with stage.open(RS) as opened:
        opened.read_count(TOKEN, 10)
        call_id = opened.headers["x-weighbridge-call-id"]
        left_s = time.monotonic()
        leave(opened)
    record = stage.record(call_id)
    assert backend.wait_closed() - left_s < WITHIN_S
    check_counted(record, at_least=10, at_most=backend.sent)
    assert record["status"] == 200
    assert stage.in_flight("b1") == 0


def test_br_014_a_running_usage_is_better_than_a_count(stage: Stage) -> None:
    stage.b1.default = Endless(opening(ROLE, content("a", usage=u(10, 1)), content("bcd", usage=u(10, 4))))
    with stage.open(RS) as opened:
        opened.read_until(b"bcd")
        call_id = opened.headers["x-weighbridge-call-id"]
    usage = stage.record(call_id)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 4)


def test_br_014_events_are_counted_also_where_many_come_in_one_read(stage: Stage) -> None:
    stage.b1.default = Endless(opening(ROLE, b"".join([TOKEN] * 7), b"".join([TOKEN] * 300)))
    with stage.open(RS) as opened:
        opened.read_count(TOKEN, 307)
        call_id = opened.headers["x-weighbridge-call-id"]
    check_counted(stage.record(call_id), at_least=307, at_most=307)


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("first", [b"", opening(), opening(ROLE)], ids=["nothing", "a head", "a role"])
def test_br_014_a_client_that_leaves_during_the_prefill_has_no_completion(
    stage: Stage, first: bytes, leave
) -> None:
    backend = stage.b1.default = Endless(first)
    with stage.open(RS, x_request_id=f"prefill-{len(first)}-{leave.__name__}") as opened:
        assert backend.begun.wait(10)
        if first == opening(ROLE):
            opened.read_until(ROLE)
        left_s = time.monotonic()
        leave(opened)
    assert backend.wait_closed() - left_s < WITHIN_S
    record = stage.record_of(f"prefill-{len(first)}-{leave.__name__}")
    assert record["outcome"] == "client_gone"
    assert record["usage"]["source"] in ("counted", "estimated")
    assert record["usage"]["prompt_tokens"] >= 1
    assert record["usage"]["completion_tokens"] == 0
    assert record["cost_pusd"] == record["usage"]["prompt_tokens"] * PROMPT_PUSD


def test_br_015_leaving_before_the_usage_is_no_way_round_the_bill(stage: Stage) -> None:
    # With budgets (*Tenants*), the call after five of these would be refused.
    async def late_usage(_asked: Asked, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(opening(ROLE, *[TOKEN] * 5, FINISH))
        await writer.drain()
        await asyncio.sleep(0.5)
        writer.write(framed(USAGE) + framed(DONE) + b"0\r\n\r\n")

    stage.b1.default = late_usage
    calls = []
    for _ in range(10):
        with stage.open(RS) as opened:
            opened.read_until(FINISH)
            calls.append(opened.headers["x-weighbridge-call-id"])
    for call_id in calls:
        assert billed(stage.record(call_id)) == (10, 5, "reported", U_10_5_PUSD, "client_gone")


def test_br_015_the_wait_for_the_usage_is_bounded(stage: Stage) -> None:
    backend = stage.b1.default = Endless(opening(ROLE, *[TOKEN] * 5, FINISH))
    with stage.open(RS) as opened:
        opened.read_until(FINISH)
        call_id = opened.headers["x-weighbridge-call-id"]
        left_s = time.monotonic()
    check_counted(stage.record(call_id), at_least=5, at_most=5)
    assert backend.wait_closed() - left_s < 1.0 + LATE_S


def test_br_015_tokens_after_the_finish_do_not_prolong_it(stage: Stage) -> None:
    backend = stage.b1.default = Endless(opening(ROLE, TOKEN, FINISH), framed(b": ping\n\n"))
    with stage.open(RS) as opened:
        opened.read_until(FINISH)
        call_id = opened.headers["x-weighbridge-call-id"]
        left_s = time.monotonic()
    check_counted(stage.record(call_id), at_least=1, at_most=1)
    assert backend.wait_closed() - left_s < 1.0 + LATE_S


def test_br_017_a_backend_stops_when_its_client_has_gone(stage: Stage) -> None:
    backend = Endless(opening(ROLE), framed(TOKEN), every_s=0.05, times=1200)
    peers = []

    async def endless(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername"))
        await backend(asked, reader, writer)

    async def next_one(_asked: Asked, _reader: object, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername"))
        writer.write(SIZED)

    stage.b1.script = [endless, next_one]
    with stage.open(RS) as opened:
        opened.read_count(TOKEN, 3)
        left_s = time.monotonic()
    assert backend.wait_closed() - left_s < WITHIN_S
    sent = backend.sent
    assert stage.in_flight("b1") == 0
    assert time.monotonic() - left_s < WITHIN_S
    assert stage.post(R).status == 200
    assert backend.sent == sent < 3 + 2 * WITHIN_S / 0.05
    assert peers[0] != peers[1]


def test_br_018_a_call_that_is_not_streamed_is_stopped_too(stage: Stage) -> None:
    # Each seat is needed again: with one that leaked, the call after SLOTS would wait. The limit of parallel calls
    # of a tenant comes with *Tenants*.
    for number in range(5 * SLOTS):
        backend = Endless(b"")
        stage.b1.script.append(backend)
        with stage.open(R, x_request_id=f"gone-{number}") as opened:
            assert backend.begun.wait(10)
            left_s = time.monotonic()
            opened.leave()
        assert backend.wait_closed() - left_s < WITHIN_S
    assert stage.in_flight("b1") == 0
    reply = stage.post(R)
    assert billed(stage.record(reply.call_id)) == REPORTED
    for number in range(5 * SLOTS):
        record = stage.record_of(f"gone-{number}")
        usage = record["usage"]
        assert (record["outcome"], usage["source"], usage["completion_tokens"]) == (
            "client_gone",
            "estimated",
            0,
        )
        assert record["cost_pusd"] == usage["prompt_tokens"] * PROMPT_PUSD > 0


def test_br_018_half_of_an_answer_is_not_waited_for(stage: Stage) -> None:
    backend = stage.b1.default = Endless(SIZED[:-20])
    with stage.open(R, x_request_id="half") as opened:
        assert backend.begun.wait(10)
        left_s = time.monotonic()
        opened.leave()
    assert backend.wait_closed() - left_s < WITHIN_S
    assert stage.record_of("half")["outcome"] == "client_gone"


def test_br_020_clients_that_leave_take_no_connection_with_them(stage: Stage) -> None:
    def rounds(count: int) -> None:
        for number in range(count):
            backend = Endless(b"" if number % 3 == 2 else opening(ROLE, TOKEN))
            stage.b1.script.append(backend)
            with stage.open(RS) as opened:
                assert backend.begun.wait(10)
                if number % 3 != 2:
                    opened.read_until(TOKEN)
            assert backend.closed.wait(10)

    rounds(60)  # what is made once, is made
    before = stage.rss_bytes()
    rounds(240)
    assert stage.rss_bytes() - before < 5_000_000
    began_s = time.monotonic()
    assert stage.post(R).status == 200
    assert time.monotonic() - began_s < WITHIN_S
    assert stage.b1.open_connections <= SLOTS + 1  # and one for the probes


CUTS = {
    "chunks without their end": cut(opening(ROLE, TOKEN, TOKEN)),
    "a reset": cut(opening(ROLE, TOKEN, TOKEN), reset=True),
    "in the middle of a chunk": cut(opening(ROLE, TOKEN, TOKEN) + b"40\r\ndata: {"),
    "in the middle of an event": cut(opening(ROLE, TOKEN, TOKEN, b'data: {"choices":[{"index":0,')),
    "a body that ends with the connection": cut(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        + ROLE
        + TOKEN
        + TOKEN
    ),
    "a clean end without a finish": stream(ROLE, TOKEN, TOKEN),
    "no longer HTTP": cut(opening(ROLE, TOKEN, TOKEN) + b"zz\r\n"),
}


@pytest.mark.parametrize("answer", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("ask", [RS, RSU | PAIR], ids=["alone", "pair"])
def test_br_022_a_backend_that_leaves_has_failed(stage: Stage, ask: dict, answer) -> None:
    stage.b1.default = answer
    before, failed = stage.outcomes(), stage.count("weighbridge_attempts_total", outcome="failed")
    reply = stage.post(ask)
    assert (reply.status, reply.complete) == (200, True)
    assert reply.body.startswith(ROLE + TOKEN + TOKEN)
    *said, error = sse.chunks(reply.body)
    assert len(said) == 3
    assert [choice for chunk in said for choice in chunk["choices"] if choice["finish_reason"]] == []
    assert error["error"].keys() == {"message", "type", "param", "code"}
    assert error["error"]["code"] == "backend_failed"
    record = stage.record(reply.call_id)
    check_counted(record, at_least=2, at_most=2, outcome="backend_failed")
    assert (record["status"], record["error_code"]) == (200, "backend_failed")
    after = stage.outcomes()
    assert after["completed"] == before["completed"]
    assert after["backend_failed"] == before["backend_failed"] + 1
    assert stage.count("weighbridge_attempts_total", outcome="failed") == failed + 1
    assert stage.b2.asked == []


def test_br_022_a_stream_that_ends_well_is_none_of_these(stage: Stage) -> None:
    stage.b1.default = stream(*STANDARD)
    assert billed(stage.record(stage.post(RS).call_id)) == REPORTED
