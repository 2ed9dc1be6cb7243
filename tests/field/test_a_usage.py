"""Field reports on usage in streams: which numbers count, and which events a client sees of them."""

import json
import time

import pytest

from tests.support import sse
from tests.support.rawbackend import sized
from tests.support.stage import (
    ANSWER,
    CACHED_PUSD,
    COMPLETION_PUSD,
    DONE,
    FINISH,
    PROMPT_PUSD,
    REPORTED,
    ROLE,
    RS,
    RSU,
    STANDARD,
    USAGE,
    R,
    Stage,
    billed,
    chunk,
    content,
    d,
    delta,
    framed,
    on_request,
    opening,
    pieces,
    stream,
    u,
)

pytestmark = pytest.mark.integration

HELLO = [content("he"), content("llo")]


def if_asked(asked) -> bytes:
    """The standard stream, its usage event only if the request wants it: as vLLM does."""
    wanted = (json.loads(asked.body).get("stream_options") or {}).get("include_usage") is True
    return stream(*(piece for piece in STANDARD if wanted or piece is not USAGE))


def test_br_001_the_usage_event_is_the_last_and_has_no_choice(stage: Stage) -> None:
    stage.b1.default = stream(*STANDARD)
    reply = stage.post(RSU)
    assert (reply.status, reply.body) == (200, b"".join(STANDARD))
    *before, usage, done = sse.parse(reply.body)
    assert done.done
    assert usage.json["choices"] == []
    assert usage.json["usage"] == u(10, 5)
    assert [event for event in before if event.json.get("usage")] == []
    assert (
        len({(event.json["id"], event.json["created"], event.json["model"]) for event in (*before, usage)})
        == 1
    )
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_001_a_choice_beside_the_usage_is_the_backends_and_passes(stage: Stage) -> None:
    last = d(chunk({"index": 0, "delta": {}, "finish_reason": None}, usage=u(10, 5)))
    given = (ROLE, *HELLO, FINISH, last, DONE)
    stage.b1.default = stream(*given)
    reply = stage.post(RSU)
    assert reply.body == b"".join(given)
    assert billed(stage.record(reply.call_id)) == REPORTED


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": None}}, False),
        ({"stream_options": {"include_usage": False, "x": [1, {"include_usage": 2}]}}, False),
        ({"stream_options": {"include_usage": True}}, True),
        ({"stream_options": {"include_usage": True, "x": "y"}}, True),
    ],
)
def test_br_002_usage_is_asked_for_and_shown_to_those_who_asked(
    stage: Stage, options: dict, shown: bool
) -> None:
    stage.b1.default = on_request(if_asked)
    reply = stage.post(RS | options)
    assert reply.status == 200
    (asked,) = stage.b1.asked
    mine = options.get("stream_options") or {}
    assert json.loads(asked.body) == RS | {"stream_options": mine | {"include_usage": True}}
    with_usage = [event for event in sse.chunks(reply.body) if event.get("usage") is not None]
    assert len(with_usage) == shown
    assert [event for event in sse.chunks(reply.body) if event["choices"] == []] == with_usage
    assert sse.parse(reply.body)[-1].done
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_004_running_usage_is_not_added_up(stage: Stage) -> None:
    given = (
        *(content("x", usage=u(10, number)) for number in (1, 2, 3, 4)),
        d(chunk({"index": 0, "delta": {}, "finish_reason": "stop"}, usage=u(10, 5))),
        USAGE,
        DONE,
    )
    stage.b1.default = stream(*given)
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = stage.post(RS | {"stream_options": options})
    assert (reply.status, reply.body) == (200, b"".join(given))
    assert json.loads(stage.b1.asked[0].body)["stream_options"] == options
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_004_without_a_final_usage_the_last_running_one_counts(stage: Stage) -> None:
    stage.b1.default = stream(
        ROLE, *(content("x", usage=u(10, number)) for number in (1, 3, 5)), FINISH, DONE
    )
    reply = stage.post(RS | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_006_null_usage_is_no_usage_and_erases_none(stage: Stage) -> None:
    finish = d(chunk({"index": 0, "delta": {}, "finish_reason": "stop"}, usage=None))
    given = (
        d(chunk(delta(role="assistant", content=""), usage=None)),
        content("he", usage=None),
        content("llo", usage=None),
        finish,
        USAGE,
        d(chunk(usage=None)),
        DONE,
    )
    stage.b1.default = stream(*given)
    reply = stage.post(RSU)
    assert (reply.status, reply.body) == (200, b"".join(given))
    shown = [event.get("usage") for event in sse.chunks(reply.body)]
    assert [usage for usage in shown if usage is not None] == [u(10, 5)]
    assert billed(stage.record(reply.call_id)) == REPORTED


@pytest.mark.parametrize("asked", [RS, RSU], ids=["not asked", "asked"])
@pytest.mark.parametrize(
    "end",
    [
        (d(chunk({"index": 0, "delta": {}, "finish_reason": "stop"}, usage=u(10, 5))),),
        (d(chunk({"index": 0, "delta": {}, "finish_reason": "stop"}, usage=u(10, 5))), USAGE),
        (content("", usage=u(10, 5)), FINISH, d(chunk())),
        (FINISH, content("", usage=u(10, 5)), d(chunk())),
    ],
    ids=["on the finish chunk", "on both", "before the finish chunk", "on the second-last chunk"],
)
def test_br_007_usage_is_taken_from_where_it_stands_once(
    stage: Stage, asked: dict, end: tuple[bytes, ...]
) -> None:
    given = (ROLE, *HELLO, *end, DONE)
    stage.b1.default = stream(*given)
    reply = stage.post(asked)
    kept = given if asked is RSU else tuple(piece for piece in given if piece is not USAGE)
    assert (reply.status, reply.body) == (200, b"".join(kept))
    assert sse.text(reply.body) == "hello"
    assert any(event.get("usage") == u(10, 5) for event in sse.chunks(reply.body))
    assert billed(stage.record(reply.call_id)) == REPORTED
    assert stage.record(reply.call_id)["finish_reasons"] == ["stop"]


ODD = (
    d({"id": "c1", "object": "chat.completion.chunk", "choices": []}),
    d({"id": "c1", "object": "chat.completion.chunk"}),
    d({"choices": None}),
)


def test_br_009_chunks_without_choices_pass_and_are_no_first_token(stage: Stage) -> None:
    wait_s = 0.8
    end = (content("hello"), FINISH, USAGE, DONE)
    stage.b1.default = pieces(
        [opening(ROLE, *ODD), b"".join(map(framed, end)) + b"0\r\n\r\n"], every_s=wait_s
    )
    begun = time.monotonic()
    with stage.open(RS) as opened:
        opened.read_until(ODD[2])
        odd_s = time.monotonic() - begun
        opened.rest()
        assert (opened.status, opened.complete) == (200, True)
        assert opened.body == b"".join((ROLE, *ODD, content("hello"), FINISH, DONE))
        call_id = opened.headers["x-weighbridge-call-id"]
    record = stage.record(call_id)
    assert billed(record) == REPORTED
    assert odd_s < wait_s < record["ttft_ns"] / 1e9


def test_br_009_a_stream_may_begin_with_them(stage: Stage) -> None:
    stage.b1.default = stream(*ODD, ROLE, *HELLO, FINISH, *ODD, USAGE, *ODD, DONE)
    reply = stage.post(RS)
    assert reply.body == b"".join((*ODD, ROLE, *HELLO, FINISH, *ODD, *ODD, DONE))
    assert billed(stage.record(reply.call_id)) == REPORTED


@pytest.mark.parametrize(
    "odd", [b"null", b"[]", b"7", b'"error"', b"true", b"[[1]]"], ids=lambda value: value.decode()
)
def test_br_010_data_that_is_no_object_passes(stage: Stage, odd: bytes) -> None:
    event = b"data: " + odd + b"\n\n"
    stage.b1.default = stream(ROLE, event, content("hi"), event, FINISH, event, USAGE, event, DONE)
    reply = stage.post(RS)
    assert reply.status == 200
    assert reply.body == b"".join((ROLE, event, content("hi"), event, FINISH, event, event, DONE))
    assert sse.text(reply.body) == "hi"
    assert billed(stage.record(reply.call_id)) == REPORTED


NO_COUNTS = {
    "negative": -10,
    "a fraction": 10.5,
    "a string": "10",
    "a boolean": True,
    "too large to be one": 1e30,
    "too large an integer": 10**30,
    "a list": [10],
}


def answer_with(usage: dict, asked: dict) -> tuple[bytes, bytes]:
    """The raw answer and its body: sized for R, a stream for RSU."""
    if asked is R:
        body = json.dumps(ANSWER | {"usage": usage}).encode()
        return sized(body), body
    parts = (ROLE, *HELLO, FINISH, d(chunk(usage=usage)), DONE)
    return stream(*parts), b"".join(parts)


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("value", NO_COUNTS.values(), ids=NO_COUNTS)
@pytest.mark.parametrize("asked", [R, RSU], ids=["sized", "stream"])
def test_br_012_a_count_that_is_none_gives_no_quota_back(
    stage: Stage, asked: dict, value: object, name: str
) -> None:
    stage.b1.default, body = answer_with(u(10, 5) | {name: value}, asked)
    spent = stage.count("weighbridge_estimated_cost_usd_total")
    reply = stage.post(asked)
    assert (reply.status, reply.body) == (200, body)
    record = stage.record(reply.call_id)
    usage = record["usage"]
    # The count that is one stands; of the other's the events of the stream, or the bytes, are counted.
    counted = asked is RSU and name == "completion_tokens"
    assert usage["source"] == ("counted" if counted else "estimated")
    assert "usage_invalid" in record["mended"]
    assert usage["prompt_tokens"] == 10 if name != "prompt_tokens" else 1 <= usage["prompt_tokens"] < 100
    assert usage["completion_tokens"] == (5 if name == "prompt_tokens" else 2)
    assert (
        record["cost_pusd"]
        == usage["prompt_tokens"] * PROMPT_PUSD + usage["completion_tokens"] * COMPLETION_PUSD
    )
    assert stage.count("weighbridge_estimated_cost_usd_total") > spent


@pytest.mark.parametrize("asked", [R, RSU], ids=["sized", "stream"])
def test_br_012_a_part_that_is_none_is_left_out(stage: Stage, asked: dict) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": -1}}
    stage.b1.default, _ = answer_with(u(10, 5) | details, asked)
    record = stage.record(stage.post(asked).call_id)
    assert billed(record) == REPORTED
    assert record["usage"]["cached_prompt_tokens"] is None
    assert "usage_invalid" in record["mended"]


@pytest.mark.parametrize("asked", [R, RSU], ids=["sized", "stream"])
def test_br_012_more_cached_tokens_than_there_are_cost_no_less(stage: Stage, asked: dict) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 10**6}}
    stage.b1.default, _ = answer_with(u(10, 5) | details, asked)
    record = stage.record(stage.post(asked).call_id)
    assert record["usage"]["cached_prompt_tokens"] == 10
    assert record["cost_pusd"] == 10 * CACHED_PUSD + 5 * COMPLETION_PUSD
    assert "usage_clamped" in record["mended"]


@pytest.mark.parametrize("asked", [R, RSU], ids=["sized", "stream"])
@pytest.mark.parametrize("total", [999, 0, -1, None, "x"])
def test_br_012_the_bill_is_made_of_the_parts_not_of_the_total(
    stage: Stage, asked: dict, total: object
) -> None:
    stage.b1.default, body = answer_with(u(10, 5) | {"total_tokens": total}, asked)
    reply = stage.post(asked)
    assert reply.body == body
    assert billed(stage.record(reply.call_id)) == REPORTED
