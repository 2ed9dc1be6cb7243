"""The judge of recorded answers must itself be right."""

import json
import pathlib

import pytest

from tests.support import captures
from tests.support.captures import Incomplete, read_response, shape

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabc"


def test_chunks_are_joined() -> None:
    response = read_response(CHUNKED)
    assert (response.status, response.chunks, response.body) == (200, (b"abc", b"de"), b"abcde")


def test_a_sized_body_ends_at_its_length() -> None:
    assert read_response(SIZED + b"more").body == b"abc"


@pytest.mark.parametrize("raw", [CHUNKED, SIZED])
def test_a_response_cut_anywhere_is_incomplete(raw: bytes) -> None:
    for cut in range(len(raw)):
        with pytest.raises(Incomplete):
            read_response(raw[:cut])


def test_an_answer_to_head_has_no_body() -> None:
    assert read_response(SIZED, method="HEAD").body == b""


def test_shape_keeps_the_order_of_keys_and_tells_types_apart() -> None:
    assert shape({"b": 1, "a": 1.0}) != shape({"a": 1.0, "b": 1})
    assert shape({"a": 1}) != shape({"a": True}) != shape({"a": None})
    assert shape({"a": [1, 2]}) == shape({"a": [3]}) != shape({"a": [1, "x"]})


def test_the_shape_of_a_stream_does_not_turn_on_how_its_choices_interleave() -> None:
    delta, finish, done = b'data: {"a": 1}\n\n', b'data: {"a": null}\n\n', b"data: [DONE]\n\n"
    one, other = (stream(delta, delta, finish, finish, done), stream(delta, finish, delta, finish, done))
    assert captures.response_shape(one) == captures.response_shape(other)
    assert captures.response_shape(one) != captures.response_shape(stream(delta, finish))
    assert captures.response_shape(one) != captures.response_shape(stream(finish, delta, done))


def stream(*events: bytes) -> captures.Response:
    return captures.Response(200, (("content-type", "text/event-stream"),), events)


DIRECTORIES = tuple(captures.SUITES.values())
STORED = [(directory, name) for directory in DIRECTORIES for name in captures.index(directory)]
STREAMS = [(directory, name) for directory in DIRECTORIES for name in captures.streams(directory)]


def plain(value: object) -> str:
    return value.name if isinstance(value, pathlib.Path) else str(value)


@pytest.mark.parametrize(("directory", "name"), STORED, ids=plain)
def test_stored_exchanges_are_whole(directory: pathlib.Path, name: str) -> None:
    exchange, entry = captures.load(name, directory), captures.index(directory)[name]
    assert exchange.request.startswith(f"{entry['method']} {entry['path']} HTTP/1.1\r\n".encode())
    assert (exchange.response.status, exchange.response.is_stream) == (entry["status"], entry["stream"])


@pytest.mark.parametrize(("directory", "name"), STREAMS, ids=plain)
def test_stored_streams_are_the_bodies_of_their_responses(directory: pathlib.Path, name: str) -> None:
    stream = captures.streams(directory)[name]
    assert stream == captures.load(name, directory).response.body
    assert all(data == b"[DONE]" or json.loads(data) for data in captures.events(stream))


@pytest.mark.parametrize("name", captures.streams())
def test_a_stream_of_chunks_ends_with_done(name: str) -> None:
    *chunks, last = captures.events(captures.streams()[name])
    assert last == b"[DONE]"
    assert all(json.loads(data)["object"].endswith(("chunk", "completion")) for data in chunks)


@pytest.mark.parametrize("name", captures.streams(captures.VLLM_APIS))
def test_each_event_of_the_other_apis_has_its_name(name: str) -> None:
    """And none of them ends with [DONE]."""
    for event in captures.streams(captures.VLLM_APIS)[name].split(b"\n\n")[:-1]:
        line, _, data = event.partition(b"\ndata: ")
        assert line == b"event: " + json.loads(data)["type"].encode()
