"""What a call lets pass unseen leaves the same client bytes, deadlines and record as the event would."""

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import events as m
from gateway.calls.call import Call
from tests.support.machine import HEAD_SSE, LIMITS, SECOND, World, facts, plan, target

ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKENS = [b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text for text in
          (b"he", b"llo", rb"\"", rb"a\\", b" ", b"\xc3\xa9", b"x" * 300)]  # fmt: skip
REST = [
    b": ping\n\n",
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":""}}]}\n\n',
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":3}}\n\n',
    b'data: {"error":{"message":"no"}}\n\n',
]
END = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
NUMBER = 1


def streaming(keepalive_ns: int) -> World:
    """A call whose stream has begun."""
    limits = msgspec.structs.replace(LIMITS, keepalive_ns=keepalive_ns)
    world = World(Call(facts(), plan((target("a"),)), limits))
    world.flush()
    for event in (
        m.Connected(NUMBER),
        m.Head(NUMBER, status=200, headers=HEAD_SSE),
        m.Data(NUMBER, data=ROLE),
    ):
        world.feed(event)
    return world


def reads(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


@given(
    st.lists(st.sampled_from([*TOKENS, *TOKENS, *REST]), max_size=12),
    st.lists(st.integers(0, 2**16), max_size=12),
    st.sampled_from([0, 15 * SECOND]),
    st.booleans(),
    st.booleans(),
)
def test_what_passes_is_as_if_it_had_been_read(
    events: list[bytes], cuts: list[int], keepalive_ns: int, whole: bool, framed: bool
) -> None:
    seen, unseen = streaming(keepalive_ns), streaming(keepalive_ns)
    data = b"".join(events) + END
    for read in [*events, END] if whole else reads(data, cuts):
        for world in (seen, unseen):
            world.now_ns += SECOND
        seen.feed(m.Data(NUMBER, data=read))
        given, at, behind = (
            (b"%x\r\n%b\r\n" % (len(read), read), len(b"%x\r\n" % len(read)), 2) if framed else (read, 0, 0)
        )
        if unseen.call.passes(NUMBER, given, at, len(given) - behind, unseen.now_ns):
            unseen.client += read
        else:
            unseen.feed(m.Data(NUMBER, data=read))
        assert unseen.client == seen.client
        assert unseen.call.deadline_ns == seen.call.deadline_ns
        assert unseen.call.state is seen.call.state
        if seen.call.state is m.State.SEALING:  # an error event ended it; its connection has been closed
            break
    for world in (seen, unseen):
        if world.call.state in (m.State.STREAMING, m.State.ENDING):
            world.feed(m.End(NUMBER))
        world.flush()
    assert unseen.client == seen.client
    assert unseen.lines == seen.lines


def passes(world: World, attempt: int, data: bytes) -> bool:
    return world.call.passes(attempt, data, 0, len(data), 0)


def test_nothing_passes_before_the_commit_point_after_the_end_or_of_another_attempt() -> None:
    token = TOKENS[0]
    world = streaming(0)
    assert not passes(world, NUMBER, token), "no token has been read yet"
    for read in (TOKENS[0], TOKENS[1]):
        world.feed(m.Data(NUMBER, data=read))
    assert passes(world, NUMBER, token)
    assert not passes(world, NUMBER + 1, token)
    assert not passes(world, NUMBER, token[:-1])
    world.feed(m.Data(NUMBER, data=token))
    world.feed(m.Data(NUMBER, data=END))
    assert not passes(world, NUMBER, token)
