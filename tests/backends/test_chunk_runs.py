"""Runs of events that differ in one string: told at a glance or read one by one, they are the same."""

from hypothesis import given
from hypothesis import strategies as st

from backends.chunks import RUN_BYTES_MIN, ChunkReader

HEAD = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"'
TAIL = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

plain = st.sampled_from([b" word", b"\xe6\x97\xa5", b"a" * 40, b"},", b"data: ", b": "])
odd = st.sampled_from(
    [b"", rb"\"", b"\\\\", rb"\n", b'"},"usage":{"prompt_tokens":1', b'"', b"\n\n", b"x\ndata: y"]
)
texts = st.lists(plain, min_size=15, max_size=40) | st.lists(plain | odd, min_size=15, max_size=40)


def read(data: bytes, *, at_a_glance: bool) -> tuple[object, ...]:
    reader = ChunkReader(strip_usage=True)
    reader.feed(ROLE)
    reader.feed(HEAD + b"first" + TAIL)
    if not at_a_glance:
        reader._patterns = tuple(pattern._replace(quotes=-1) for pattern in reader._patterns)
    out = reader.feed(data)
    out += reader.feed(FINISH)
    return out, reader.counted, reader.usage, reader.usage_invalid, reader.end, reader.done, reader.error


@given(texts)
def test_a_run_is_what_its_events_are(some: list[bytes]) -> None:
    data = b"".join(HEAD + text + TAIL for text in some)
    assert len(data) > RUN_BYTES_MIN
    assert read(data, at_a_glance=True) == read(data, at_a_glance=False)


def test_a_usual_read_is_told_at_a_glance() -> None:
    reader = ChunkReader(strip_usage=True)
    reader.feed(HEAD + b"first" + TAIL)
    (pattern,) = reader._patterns
    run = b"".join(HEAD + b" %d" % number + TAIL for number in range(64))
    assert pattern.run(run + FINISH, 0) == (len(run), 64)
    assert reader.feed(run + FINISH) == run + FINISH.removesuffix(b"data: [DONE]\n\n")
    assert reader.counted == 65
