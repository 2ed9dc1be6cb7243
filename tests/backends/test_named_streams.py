"""Streams whose events have names, those of Responses and of Messages: what passes, what is held, what is read."""

import dataclasses
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.answers import Answer, reader_for
from backends.reader import StreamReader
from backends.settling import of_stream
from metering.usage import UNKNOWN, Usage, UsageSource
from tests.support import captures
from tests.support.voices import APIS

RESPONSES, MESSAGES = Answer.RESPONSES, Answer.MESSAGES


def event(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":"))
    return f"event: {value['type']}\ndata: {text}\n\n".encode()


def reported(prompt: int | None, completion: int | None, cached: int | None = None) -> Usage:
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_prompt_tokens=cached,
        source=UsageSource.REPORTED,
    )


def read(kind: Answer, *pieces: bytes) -> tuple[bytes, StreamReader]:
    """What has passed, and the reader, closed."""
    stream = reader_for(kind, strip_usage=True)
    passed = b"".join([stream.feed(piece) for piece in pieces])
    stream.close()
    return passed, stream


def state(stream: StreamReader) -> dict[str, object]:
    """All that a reader tells, but how often it was told of life."""
    names = ("committed", "counted", "done", "end", "error", "finish_reasons", "mended", "token", "torn", "usage",
             "usage_clamped", "usage_final", "usage_invalid")  # fmt: skip
    return {name: getattr(stream, name) for name in names}


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Pieces of these sizes, and the rest."""
    edges = [0, *itertools.accumulate(sizes)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    return [*pieces, stream[edges[-1] :]]


# -- Responses

CREATED = event({"type": "response.created", "response": {"usage": None}, "sequence_number": 0})
PROGRESS = event({"type": "response.in_progress", "response": {"usage": None}})
ADDED = event({"type": "response.output_item.added", "item": {}})
ITEM_DONE = event({"type": "response.output_item.done", "item": {}})
USAGE = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}


def said(text: str, kind: str = "output_text") -> bytes:
    return event({"type": f"response.{kind}.delta", "delta": text, "sequence_number": 7})


def completed(**more: Any) -> bytes:
    return event({"type": "response.completed", "response": {"status": "completed", "usage": USAGE, **more}})


RESPONSE = CREATED + PROGRESS + ADDED + said("he") + said("llo") + ITEM_DONE


def test_a_response_ends_with_the_event_that_carries_it() -> None:
    passed, stream = read(RESPONSES, RESPONSE + completed())
    assert (passed, stream.end) == (RESPONSE, completed())
    assert stream.usage == reported(10, 2, 4)
    assert (stream.counted, stream.done, stream.finish_reasons) == (2, True, ("completed",))
    assert (stream.usage_final, stream.mended, stream.error) == (True, (), None)


def test_what_comes_before_the_answer_does_not_commit() -> None:
    stream = reader_for(RESPONSES, strip_usage=True)
    assert stream.feed(CREATED + PROGRESS) == CREATED + PROGRESS
    assert (stream.committed, stream.events) == (False, 2)
    assert stream.feed(ADDED) == ADDED
    assert (stream.committed, stream.token) == (True, False)


@pytest.mark.parametrize(
    ("one", "tokens"),
    [
        (said("a"), 1),
        (said(""), 0),
        (said("x", "reasoning_text"), 1),
        (said("{", "function_call_arguments"), 1),
        (event({"type": "response.output_text.done", "text": "all of it"}), 0),
        (event({"type": "ping"}), 0),
        (b": ping\n\n", 0),
        (b"data: 7\n\n", 0),
        (b"data: not json\n\n", 0),
        (b'event: response.x.delta\ndata: {"type":5,"delta":"a"}\n\n', 0),
        (b'event: response.x.delta\ndata: {"type":"response.x.delta","delta":"a","p":-Infinity}\n\n', 1),
    ],
)
def test_what_counts_as_a_token_of_a_response(one: bytes, tokens: int) -> None:
    passed, stream = read(RESPONSES, CREATED + ADDED + one)
    assert (passed, stream.counted) == (CREATED + ADDED + one, tokens)


@pytest.mark.parametrize(
    ("response", "reasons", "usage"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": USAGE},
         ("max_output_tokens",), reported(10, 2, 4)),
        ({"status": "completed", "usage": None}, ("completed",), UNKNOWN),
        ({"status": 7}, (), UNKNOWN),
        ([], (), UNKNOWN),
        (None, (), UNKNOWN),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_how_a_response_ended(kind: str, response: object, reasons: tuple[str, ...], usage: Usage) -> None:
    passed, stream = read(RESPONSES, RESPONSE + event({"type": kind, "response": response}))
    assert passed == RESPONSE
    assert (stream.done, stream.finish_reasons, stream.usage) == (True, reasons, usage)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "x", "message": "no"}},
            },
            "no",
        ),
        (
            {"type": "response.failed", "response": {}},
            "the model's server refused the request and did not say why",
        ),
        ({"type": "response.failed"}, "the model's server refused the request and did not say why"),
        ({"type": "error", "message": "no", "code": "server_error", "param": None}, "no"),
        ({"type": "error", "error": {"message": "no"}}, "no"),
        ({"type": "", "error": {"message": "no", "type": "x", "code": 500}}, "no"),
        ({"type": 5, "error": "no"}, "no"),
    ],
)
def test_a_failed_response_is_an_error_and_is_not_passed(error: dict[str, Any], message: str) -> None:
    passed, stream = read(RESPONSES, RESPONSE + event(error) + said("more"))
    assert (passed, stream.end, stream.done) == (RESPONSE, b"", False)
    assert stream.error is not None
    assert stream.error.message == message


def test_a_response_without_its_last_event_has_not_ended() -> None:
    passed, stream = read(RESPONSES, RESPONSE)
    assert (passed, stream.end, stream.done, stream.finish_reasons) == (RESPONSE, b"", False, ())
    assert (stream.usage, stream.usage_final, stream.counted) == (UNKNOWN, False, 2)


def test_nothing_follows_the_last_event_of_a_response() -> None:
    passed, stream = read(RESPONSES, RESPONSE + completed() + b"data: [DONE]\n\n")
    assert (passed, stream.end, stream.mended) == (RESPONSE, completed(), ("after_done_dropped",))


def test_a_long_last_event_leaves_as_it_comes_but_for_its_end() -> None:
    last = completed(output="x" * 9_000)
    passed, stream = read(RESPONSES, RESPONSE, last[:6_000], last[6_000:])
    assert (passed, stream.end) == (RESPONSE + last[:6_000], last[6_000:])
    assert (stream.done, stream.usage) == (True, reported(10, 2, 4))


# -- Messages

START = event({"type": "message_start", "message": {"usage": {"input_tokens": 20, "output_tokens": 0}}})
BLOCK = event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0})
TOOL = event({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}, "index": 1})
BLOCK_STOP = event({"type": "content_block_stop", "index": 0})
STOP = event({"type": "message_stop"})
PING = event({"type": "ping"})


def delta(kind: str = "text_delta", **part: Any) -> bytes:
    return event({"type": "content_block_delta", "delta": {"type": kind, **part}, "index": 0})


def last(reason: str | None = "end_turn", **usage: Any) -> bytes:
    return event({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage or None})


HE, LLO = delta(text="he"), delta(text="llo")
MESSAGE = START + BLOCK + HE + LLO + BLOCK_STOP
FINAL = last(input_tokens=4, cache_read_input_tokens=16, output_tokens=3)


def test_a_message_ends_with_its_usage_and_its_stop() -> None:
    passed, stream = read(MESSAGES, MESSAGE + FINAL + STOP)
    assert (passed, stream.end) == (MESSAGE, FINAL + STOP)
    assert stream.usage == reported(20, 3, 16)
    assert (stream.counted, stream.done, stream.finish_reasons) == (2, True, ("end_turn",))
    assert (stream.usage_final, stream.mended) == (True, ())


def test_each_count_of_a_message_is_the_last_one_told() -> None:
    passed, stream = read(MESSAGES, MESSAGE + last(output_tokens=3) + STOP)
    assert stream.usage == reported(20, 3)
    assert passed == MESSAGE


def test_a_cut_message_knows_its_prompt() -> None:
    _, stream = read(MESSAGES, START + BLOCK + HE)
    assert (stream.usage, stream.usage_final, stream.counted) == (reported(20, 0), False, 1)
    assert (stream.done, stream.end, stream.committed) == (False, b"", True)


def test_a_message_without_its_stop_is_given_one() -> None:
    _, stream = read(MESSAGES, MESSAGE + FINAL)
    assert stream.end == FINAL + STOP
    assert (stream.done, stream.mended) == (True, ("done_added",))


def test_a_running_usage_is_not_the_end_and_more_text_is_the_answer() -> None:
    running = last(None, output_tokens=2)
    stream = reader_for(MESSAGES, strip_usage=True)
    assert stream.feed(MESSAGE + running) == MESSAGE + running
    assert (stream.usage, stream.usage_final) == (reported(20, 2), False)
    assert stream.feed(FINAL + PING) == b""
    assert stream.feed(HE) == FINAL + PING + HE
    assert stream.feed(FINAL + STOP) == b""
    assert stream.end == FINAL + STOP


@pytest.mark.parametrize(
    ("one", "tokens"),
    [
        (HE, 1),
        (delta(text=""), 0),
        (delta("thinking_delta", thinking="hm"), 1),
        (delta("thinking_delta", thinking=""), 0),
        (delta("signature_delta", signature="abc"), 0),
        (delta("input_json_delta", partial_json="{"), 1),
        (delta("input_json_delta", partial_json=""), 0),
        (TOOL, 1),
        (BLOCK, 0),
        (BLOCK_STOP, 0),
        (PING, 0),
        (event({"type": "content_block_start"}), 0),
        (event({"type": "message_start", "message": []}), 0),
        (event({"type": "message_delta", "delta": None}), 0),
        (b"data: []\n\n", 0),
        (b'data: {"type":[]}\n\n', 0),
        (b"\n", 0),
    ],
)
def test_what_counts_as_a_token_of_a_message(one: bytes, tokens: int) -> None:
    passed, stream = read(MESSAGES, START + one)
    assert (passed, stream.counted, stream.token) == (START + one, tokens, tokens > 0)
    passed, stream = read(MESSAGES, START + HE, one)
    assert (passed, stream.counted) == (START + HE + one, 1 + tokens)


def test_a_delta_of_another_form_is_none() -> None:
    passed, stream = read(MESSAGES, START + event({"type": "content_block_delta", "delta": 7}))
    assert (stream.counted, stream.committed) == (0, True)
    assert passed.endswith(b'"delta":7}\n\n')


@pytest.mark.parametrize(
    ("kind", "whole"), [(RESPONSES, RESPONSE + completed()), (MESSAGES, MESSAGE + FINAL + STOP)]
)
@pytest.mark.parametrize("lost_bytes", [1, 2, 9, 20])
def test_the_last_event_may_lack_its_blank_line_and_half_of_one_is_dropped(
    kind: Answer, whole: bytes, lost_bytes: int
) -> None:
    _, stream = read(kind, whole[:-lost_bytes])
    half = lost_bytes > 2
    assert stream.mended[:1] == (("half_event_dropped",) if half else ("blank_line_added",))
    assert stream.done is (kind is MESSAGES or not half)
    assert stream.end == (b"" if not stream.done else whole[len(whole) - len(stream.end) :])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (event({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}), "no"),
        (event({"type": "error"}), "the model's server refused the request and did not say why"),
        (b'data: {"error":{"message":"no","code":500}}\n\n', "no"),
    ],
)
def test_an_error_event_of_a_message_is_told_and_not_passed(error: bytes, message: str) -> None:
    passed, stream = read(MESSAGES, MESSAGE + error + STOP)
    assert (passed, stream.end) == (MESSAGE, b"")
    assert stream.error is not None
    assert stream.error.message == message


# -- any stream, any chunking


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a generated stream, and what a reader must make of it. answer: it is part of the answer itself."""

    raw: bytes
    answer: bool = False
    tokens: int = 0
    holds: bool = False


TEXTS = st.text(max_size=8) | st.sampled_from(
    ['"delta":""', "signature", ':""', "event: response.completed\ndata: {", "\n\n", '"error"', '"text":""']
)
RESPONSE_PARTS = st.one_of(
    st.builds(lambda text: Part(said(text), True, int(bool(text))), TEXTS),
    st.builds(lambda text: Part(said(text, "reasoning_text"), True, int(bool(text))), TEXTS),
    st.sampled_from(
        [Part(ADDED, True), Part(ITEM_DONE, True), Part(PING), Part(b": ping\n\n"), Part(CREATED)]
    ),
)
MESSAGE_PARTS = st.one_of(
    st.builds(lambda text: Part(delta(text=text), True, int(bool(text))), TEXTS),
    st.builds(lambda text: Part(delta("thinking_delta", thinking=text), True, int(bool(text))), TEXTS),
    st.sampled_from(
        [Part(BLOCK, True), Part(TOOL, True, 1), Part(delta("signature_delta", signature="x"), True), Part(BLOCK_STOP),
         Part(PING), Part(b": ping\n\n"), Part(FINAL, holds=True)]
    ),
)  # fmt: skip
CHUNKINGS = st.lists(st.integers(1, 400), max_size=12) | st.just([1] * 5000)
NEWLINES = st.sampled_from(["\n", "\r\n", "\r"])


def check(kind: Answer, parts: list[Part], newline: str, sizes: list[int]) -> None:
    """A slow reference: from the list of events it is plain what passes, what is held and what is read."""
    raws = [part.raw.replace(b"\n", newline.encode()) for part in parts]
    more = [index for index, part in enumerate(parts) if part.answer]
    after = more[-1] + 1 if more else 0
    held_from = next(index for index, part in enumerate(parts) if index >= after and part.holds)
    raw = b"".join(raws)
    passed, stream = read(kind, *cut(raw, sizes))
    assert (passed, stream.end) == (b"".join(raws[:held_from]), b"".join(raws[held_from:]))
    assert (stream.counted, stream.done) == (sum(part.tokens for part in parts), True)
    assert stream.token is (stream.counted > 0)
    whole = read(kind, raw)[1]
    assert state(stream) == state(whole)


@given(st.lists(RESPONSE_PARTS, max_size=10), NEWLINES, CHUNKINGS)
def test_any_response_in_any_chunking(parts: list[Part], newline: str, sizes: list[int]) -> None:
    check(RESPONSES, [Part(CREATED), *parts, Part(completed(), holds=True)], newline, sizes)


@given(st.lists(MESSAGE_PARTS, max_size=10), NEWLINES, CHUNKINGS)
def test_any_message_in_any_chunking(parts: list[Part], newline: str, sizes: list[int]) -> None:
    end = [Part(FINAL, holds=True), Part(STOP, holds=True)]
    check(MESSAGES, [Part(START, True), *parts, *end], newline, sizes)


@pytest.mark.parametrize("name", captures.streams(captures.VLLM_APIS))
def test_recorded_streams_pass_whole_event_by_event_and_byte_by_byte(name: str) -> None:
    kind = RESPONSES if name.startswith("responses") else MESSAGES
    raw = captures.streams(captures.VLLM_APIS)[name]
    passed, whole = read(kind, raw)
    assert passed + whole.end == raw
    for pieces in ([one + b"\n\n" for one in raw.split(b"\n\n")[:-1]], [bytes([byte]) for byte in raw]):
        assert read(kind, *pieces)[0] == passed
        assert state(read(kind, *pieces)[1]) == state(whole)


@pytest.mark.parametrize("name", ["messages_stream_cached", "messages_stream_tool", "responses_stream"])
def test_recorded_streams_cut_at_every_point(name: str) -> None:
    """The first and the last events of each recorded stream, in two reads, at every byte."""
    kind = RESPONSES if name.startswith("responses") else MESSAGES
    events = captures.streams(captures.VLLM_APIS)[name].split(b"\n\n")[:-1]
    raw = b"".join(one + b"\n\n" for one in (events[:5] + events[-4:]))
    passed, whole = read(kind, raw)
    assert passed + whole.end == raw
    assert (whole.done, whole.mended, whole.usage.source) == (True, (), UsageSource.REPORTED)
    for at in range(len(raw)):
        again, stream = read(kind, raw[:at], raw[at:])
        assert again + stream.end == raw
        assert {**state(stream), "end": b""} == {**state(whole), "end": b""}


def test_a_message_that_stops_without_its_delta_is_billed_by_what_was_seen() -> None:
    reader = reader_for(Answer.MESSAGES, strip_usage=False)
    messages = next(api for api in APIS if api.path == "/v1/messages")
    start, block, first, *_, stop = messages.streamed("a", "")
    for event in (start, block, first, stop):
        reader.feed(event)
    assert (reader.done, reader.usage.completion_tokens, reader.usage_final) == (True, 0, False)
    assert of_stream(reader, 25).usage.completion_tokens == 1
