"""The scanner: any line ends, any chunking; no byte lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.sse import Block, EventTooLarge, SseScanner

LINES = st.sampled_from(
    ["data: x", "data:y", "data", "data: a: b", ": note", "event: ping", "id:7", "", "\ufeffdata: z"]
)
ENDS = st.sampled_from(["\n", "\r", "\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(
    lambda lines: "".join(map("".join, lines)).encode()
)


def scan(pieces: list[bytes]) -> list[Block]:
    scanner = SseScanner()
    blocks = [block for piece in pieces for block in scanner.feed(piece)]
    last = scanner.close()
    return blocks if last is None else [*blocks, last]


def reference(stream: bytes) -> list[bytes]:
    """Payloads by the standard, a line at a time; the last one need not have its blank line."""
    payloads: list[bytes] = []
    data: list[str] = []
    text = stream.decode().removeprefix("\ufeff")
    for line in [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        if not line and data:
            payloads.append("\n".join(data).encode())
            data = []
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
    return payloads


@given(STREAMS, st.lists(st.integers(0, 80)))
def test_any_chunking_gives_the_same_payloads_and_keeps_every_byte(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted({min(cut, len(stream)) for cut in cuts}), len(stream)]
    blocks = scan([stream[start:end] for start, end in itertools.pairwise(edges)])
    assert b"".join(block.raw for block in blocks) == stream
    assert [block.data for block in blocks if block.data is not None] == reference(stream)
    assert all(block.whole for block in blocks[:-1])


@given(STREAMS)
def test_byte_by_byte_equals_at_once(stream: bytes) -> None:
    assert scan([bytes([byte]) for byte in stream]) == scan([stream])


@pytest.mark.parametrize(
    ("stream", "whole"),
    [
        (b"data: x\n\n", True),
        (b"data: x\r\r", True),  # the last CR waited for a LF that never came
        (b"data: x\r\n\r", True),
        (b"\r", True),
        (b"data: x\r", False),
        (b"data: x\n", False),
        (b"data: x", False),
    ],
)
def test_close_tells_whether_the_blank_line_came(stream: bytes, whole: bool) -> None:
    (block,) = scan([stream])
    assert (block.raw, block.whole) == (stream, whole)


def test_a_cr_at_the_end_waits_for_its_lf() -> None:
    scanner = SseScanner()
    assert scanner.feed(b"data: x\r\n\r") == []
    assert scanner.feed(b"\ndata: y\r\n\r\n") == [
        Block(b"data: x\r\n\r\n", b"x"),
        Block(b"data: y\r\n\r\n", b"y"),
    ]
    assert scanner.close() is None


def test_the_unfinished_block_can_be_seen() -> None:
    scanner = SseScanner()
    scanner.feed(b"data: a\n\ndata: b")
    assert (scanner.pending, scanner.tail(0), scanner.tail(5, 6)) == (7, b"data: b", b" ")


def test_an_event_has_a_bound_and_what_came_before_it_is_not_lost() -> None:
    scanner = SseScanner(10)
    assert scanner.feed(b"data: 1234\n\n") == [Block(b"data: 1234\n\n", b"1234")]  # whole: it is already here
    assert [block.data for block in scanner.feed(b"data: a\n\ndata: 123456")] == [b"a"]
    with pytest.raises(EventTooLarge):
        scanner.feed(b"7")


def test_a_large_event_costs_time_in_proportion_to_its_size() -> None:
    """Each read looks only at what is new: 8 MiB in small reads takes milliseconds, not minutes."""
    scanner = SseScanner()
    piece = b"x" * 1024
    scanner.feed(b"data: ")
    for _ in range(8000):
        assert scanner.feed(piece) == []
    (block,) = scanner.feed(b"\n\n")
    assert block.data == piece * 8000
