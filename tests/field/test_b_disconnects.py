"""Field reports on clients and backends that leave: what is billed, and what stops."""

import asyncio
import time

import pytest

from tests.support.opened import Opened
from tests.support.rawbackend import Asked
from tests.support.stage import (
    DONE,
    FINISH,
    REPORTED,
    ROLE,
    RS,
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
WITHIN_S = 1.0
"""How soon a backend must see that its client has gone."""
LEAVE = {"closed": Opened.leave, "reset": Opened.reset}


def test_br_014_a_running_usage_is_better_than_a_count(stage: Stage) -> None:
    stage.b1.default = Endless(opening(ROLE, content("a", usage=u(10, 1)), content("bcd", usage=u(10, 4))))
    with stage.open(RS) as opened:
        opened.read_until(b"bcd")
        call_id = opened.headers["x-weighbridge-call-id"]
    usage = stage.record(call_id, within_s=2.0)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 4)


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


def test_br_018_half_of_an_answer_is_not_waited_for(stage: Stage) -> None:
    backend = stage.b1.default = Endless(SIZED[:-20])
    with stage.open(R, x_request_id="half") as opened:
        assert backend.begun.wait(5)
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
                assert backend.begun.wait(5)
                if number % 3 != 2:
                    opened.read_until(TOKEN)
            assert backend.closed.wait(5)

    rounds(60)  # what is made once, is made
    before = stage.rss_bytes()
    rounds(240)
    assert stage.rss_bytes() - before < 5_000_000
    began_s = time.monotonic()
    assert stage.post(R).status == 200
    assert time.monotonic() - began_s < 1
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


def test_br_022_a_stream_that_ends_well_is_none_of_these(stage: Stage) -> None:
    stage.b1.default = stream(*STANDARD)
    assert billed(stage.record(stage.post(RS).call_id)) == REPORTED
