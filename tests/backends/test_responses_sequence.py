"""The number of the next event of a response: what an error that the gateway adds to a stream is numbered by."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.messages import MessagesReader
from backends.responses import ResponsesReader
from tests.support import captures

STREAMS = {
    name: stream
    for name, stream in captures.streams(captures.VLLM_APIS).items()
    if name.startswith("responses_")
}


@given(st.sampled_from(sorted(STREAMS)), st.data())
def test_it_follows_the_last_event_however_the_stream_was_cut(name: str, data: st.DataObject) -> None:
    events = [event + b"\n\n" for event in STREAMS[name].split(b"\n\n")[:-1]]
    whole = b"".join(events[: data.draw(st.integers(1, len(events)))])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    reader = ResponsesReader(strip_usage=False)
    for start, end in itertools.pairwise([0, *cuts, len(whole)]):
        reader.feed(whole[start:end])
    last = json.loads(captures.events(whole)[-1])
    assert reader.sequence == last["sequence_number"] + 1


def test_a_number_in_a_text_is_none() -> None:
    reader = ResponsesReader(strip_usage=False)
    event = {"type": "response.output_text.delta", "sequence_number": 7, "delta": '{"sequence_number":99}'}
    reader.feed(b"event: response.output_text.delta\ndata: " + json.dumps(event).encode() + b"\n\n")
    assert reader.sequence == 8


@pytest.mark.parametrize("number", [b'"7"', b"-1", b"1" * 5_000, b"null"])
def test_what_is_no_number_of_an_event_is_not_counted_from(number: bytes) -> None:
    reader = ResponsesReader(strip_usage=False)
    reader.feed(b'data: {"type":"response.output_text.delta","sequence_number":%b,"delta":"a"}\n\n' % number)
    assert reader.sequence == 0


def test_formats_without_numbers_have_none() -> None:
    reader = MessagesReader(strip_usage=False)
    reader.feed(b'event: ping\ndata: {"type":"ping","sequence_number":3}\n\n')
    assert reader.sequence == 0
