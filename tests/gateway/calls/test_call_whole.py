"""An answer that comes whole is what its head, its body and its end are, one behind the other."""

import pytest

from gateway.calls import events as m
from gateway.calls.call import Call
from tests.support.machine import HEAD_JSON, HEAD_SSE, LIMITS, World, facts, plan, target

CHAT = (
    b'{"id":"c","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2}}'
)
STREAM = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"he"}}]}\n\n'
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ERROR = b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}'
LONG = b'{"error":{"message":"maximum context length is 10","type":"x","param":null,"code":null}}'


def waiting(*, stream: bool) -> World:
    world = World(Call(facts(stream=stream), plan((target("a"), target("b", length=9000))), LIMITS))
    world.flush()
    world.feed(m.Connected(world.attempt))
    return world


@pytest.mark.parametrize("stream", [False, True], ids=["sized", "stream"])
@pytest.mark.parametrize("status", [200, 204, 302, 400, 401, 429, 500, 503])
@pytest.mark.parametrize("headers", [HEAD_JSON, HEAD_SSE], ids=["json", "sse"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        CHAT,
        CHAT[:-1],
        STREAM,
        STREAM + DONE,
        STREAM[:40],
        ERROR,
        LONG,
        b"x" * (2 << 20),
        b"data: {}\n\n",
    ],
    ids=["empty", "chat", "cut", "undone", "done", "torn", "error", "long", "huge", "nothing"],
)
def test_whole_is_the_same_as_its_parts(
    stream: bool, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    whole, parts = waiting(stream=stream), waiting(stream=stream)
    number = whole.attempt
    whole.feed(m.Whole(number, status=status, headers=headers, data=body))
    parts.feed(m.Head(number, status=status, headers=headers))
    if body and parts.attempt == number and parts.connects == ["a"]:
        parts.feed(m.Data(number, data=body))
    if parts.attempt == number and parts.connects == ["a"]:
        parts.feed(m.End(number))
    for world in (whole, parts):
        world.run_on()
    assert whole.connects == parts.connects
    assert (whole.status, whole.headers, whole.client) == (parts.status, parts.headers, parts.client)
    assert whole.lines == parts.lines
    assert whole.held_back == parts.held_back
