"""What workers and supervisor say to each other, in any chunking."""

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.processes import control
from gateway.processes.control import LINE_BYTES_MAX, Behind, ControlError, Decoder, Message, Ready, encode

WRITER = "w" + "a" * 16
MESSAGES = st.sampled_from([Ready(WRITER), Behind()])
WAIT_S = 5.0


@pytest.mark.parametrize(
    ("message", "line"),
    [(Ready(WRITER), f"ready {WRITER}\n"), (Behind(), "behind\n")],
)
def test_a_message_is_a_line(message: Message, line: str) -> None:
    assert encode(message) == line.encode()


@given(st.lists(MESSAGES), st.integers(1, 40))
def test_messages_come_through_any_chunking(messages: list[Message], size: int) -> None:
    decoder, found = Decoder(), list[Message]()
    data = b"".join(map(encode, messages))
    for start in range(0, len(data), size):
        found += decoder.feed(data[start : start + size])
    assert found == messages
    assert [type(one) for one in found] == [type(one) for one in messages]


@pytest.mark.parametrize("line", [b"ready\n", b"ready a b\n", b"behind now\n", b"\n", b"stop\n", b"\xff\n"])
def test_a_line_that_is_no_message_is_an_error(line: bytes) -> None:
    with pytest.raises(ControlError, match="no message"):
        Decoder().feed(line)


def test_a_line_without_an_end_is_an_error() -> None:
    decoder = Decoder()
    assert decoder.feed(b"x" * LINE_BYTES_MAX) == []
    with pytest.raises(ControlError, match="without an end"):
        decoder.feed(b"x")


async def _worker_hears(said: bytes, *, unread: bool = False) -> list[str]:
    """What a worker hears of `said` and of the end that follows. unread: what it says is not read before."""
    heard: list[str] = []
    ended = asyncio.Event()

    def on_end() -> None:
        heard.append("end")
        ended.set()

    ours, theirs = socket.socketpair()
    line = await control.connect(theirs.detach(), on_end=on_end)
    line.on_behind(lambda: heard.append("behind"))
    if unread:
        line.ready(WRITER)
    ours.sendall(said)
    ours.close()
    await asyncio.wait_for(ended.wait(), WAIT_S)
    line.close()
    return heard


def test_a_worker_hears_what_it_is_told_and_once_of_the_end() -> None:
    assert asyncio.run(_worker_hears(encode(Behind()))) == ["behind", "end"]
    assert asyncio.run(_worker_hears(b"")) == ["end"]
    assert asyncio.run(_worker_hears(encode(Behind()) * 2)) == ["behind", "behind", "end"]
    assert asyncio.run(_worker_hears(b"", unread=True)) == ["end"]  # the kernel makes a reset of that


def test_a_supervisor_hears_what_a_worker_says() -> None:
    async def say() -> bytes:
        ours, theirs = socket.socketpair()
        ours.settimeout(WAIT_S)
        line = await control.connect(theirs.detach(), on_end=lambda: None)
        line.ready(WRITER)
        line.behind()
        line.close()
        with ours, ours.makefile("rb") as file:
            return await asyncio.to_thread(file.read)

    assert Decoder().feed(asyncio.run(say())) == [Ready(WRITER), Behind()]
