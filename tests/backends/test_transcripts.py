"""Streams of transcripts: windows of audio one behind the other, each with a finish, and one end."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.answers import Answer, reader_for
from backends.reader import StreamReader

DONE = b"data: [DONE]\n\n"


def event(choices: list[dict], **more: object) -> bytes:
    head = {"id": "transcribe-1", "object": "transcription.chunk", "created": 1, "model": "m1"}
    return (
        b"data: " + json.dumps(head | {"choices": choices} | more, separators=(",", ":")).encode() + b"\n\n"
    )


def heard(text: str, **finish: object) -> bytes:
    return event([{"delta": {"content": text}} | finish])


def usage_of(completion: int) -> dict[str, int]:
    return {"prompt_tokens": 3004, "total_tokens": 3004 + completion, "completion_tokens": completion}


WINDOW = heard("Hello") + heard(" there") + heard(".", finish_reason="stop", stop_reason=None)
USAGE = event([], usage=usage_of(6))
WINDOWS = WINDOW + WINDOW


def read(stream: bytes, *, strip_usage: bool = False, size: int | None = None) -> tuple[StreamReader, bytes]:
    reader = reader_for(Answer.TRANSCRIPT, strip_usage=strip_usage)
    size = size or len(stream)
    out = b"".join(reader.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    return reader, out


@pytest.mark.parametrize(
    ("stream", "done", "reasons", "final"),
    [
        (WINDOW, False, (), False),  # there may be another window
        (WINDOWS, False, (), False),
        (WINDOW + heard("And"), False, (), False),
        (WINDOWS + USAGE, False, ("stop",), True),
        (WINDOWS + DONE, True, ("stop",), True),
        (WINDOWS + USAGE + DONE, True, ("stop",), True),
        (heard("a") + USAGE, False, (), False),  # no window has ended: not this server's usage of the whole
        (heard("a") + DONE, True, (), True),
        (WINDOW + heard("a", finish_reason="length") + USAGE + DONE, True, ("length",), True),
        (WINDOW + event([{"delta": {"content": "a"}}], usage=usage_of(4)), False, (), False),  # a running one
    ],
)
def test_only_the_end_of_the_stream_ends_it(
    stream: bytes, done: bool, reasons: tuple[str, ...], final: bool
) -> None:
    for size in (None, 1, 7):
        reader, out = read(stream, size=size)
        assert (reader.done, reader.finish_reasons, reader.usage_final) == (done, reasons, final)
        assert reader.committed
        assert out + reader.end == stream


def test_a_stream_that_breaks_off_between_windows_is_not_taken_for_a_whole_one() -> None:
    reader, _ = read(WINDOW)
    reader.close()
    assert (reader.done, reader.finish_reasons, reader.end) == (False, (), b"")
    assert reader.counted == 3


def test_one_that_lacks_only_its_last_event_gets_it() -> None:
    reader, out = read(WINDOWS + USAGE)
    reader.close()
    assert (reader.done, reader.mended) == (True, ("done_added",))
    assert out + reader.end == WINDOWS + USAGE + DONE


def test_the_usage_is_taken_out_for_who_did_not_ask() -> None:
    reader, out = read(WINDOWS + USAGE + DONE, strip_usage=True)
    assert out + reader.end == WINDOWS + DONE
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (3004, 6)
    assert reader.mended == ("usage_removed",)


@given(st.integers(1, 4), st.booleans(), st.lists(st.integers(0, 2000), max_size=8))
def test_cuts_change_nothing(windows: int, strip_usage: bool, cuts: list[int]) -> None:
    stream = WINDOW * windows + USAGE + DONE
    whole, _ = read(stream, strip_usage=strip_usage)
    reader = reader_for(Answer.TRANSCRIPT, strip_usage=strip_usage)
    at, out = 0, b""
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        piece, at = stream[at:cut], cut
        out += piece if piece and reader.passes(piece, 0, len(piece)) else reader.feed(piece)
    assert out + reader.end == (WINDOW * windows + DONE if strip_usage else stream)
    assert (reader.usage, reader.finish_reasons, reader.done) == (
        whole.usage,
        whole.finish_reasons,
        whole.done,
    )
