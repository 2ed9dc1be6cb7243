"""The reader: what passes, what is held, what is read; for any stream, any line ends, any chunking."""

import dataclasses
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import chunks, reader
from backends import counts as token_counts
from backends.answers import Answer
from backends.chunks import ChunkReader
from backends.sized import read_sized
from metering.usage import UNKNOWN, Usage, UsageSource
from tests.support import captures


def counts(prompt: object, completion: object, **more: object) -> dict[str, object]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0, **more}


def reported(
    prompt: int, completion: int, *, cached: int | None = None, reasoning: int | None = None
) -> Usage:
    return Usage(
        source=UsageSource.REPORTED,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_prompt_tokens=cached,
        reasoning_tokens=reasoning,
    )


def chunk(**delta: object) -> dict[str, object]:
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def finish(reason: str = "stop", index: int = 0) -> dict[str, object]:
    return {"id": "c1", "choices": [{"index": index, "delta": {}, "finish_reason": reason}]}


def sse_event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


ROLE = sse_event(chunk(role="assistant", content=""))
HE, LLO = sse_event(chunk(content="he")), sse_event(chunk(content="llo"))
STOP = sse_event(finish())
USAGE = sse_event({"id": "c1", "choices": [], "usage": counts(10, 5)})
DONE = b"data: [DONE]\n\n"
STANDARD = ROLE + HE + LLO + STOP + USAGE + DONE


def feed_all(stream: ChunkReader, *pieces: bytes) -> bytes:
    """What has passed; closes the reader."""
    out = b"".join([stream.feed(piece) for piece in pieces])
    stream.close()
    return out


# -- the standard stream


def test_the_end_is_held_from_the_usage_event_on() -> None:
    stream = ChunkReader(strip_usage=False)
    assert feed_all(stream, STANDARD) == ROLE + HE + LLO + STOP
    assert stream.end == USAGE + DONE
    assert stream.usage == reported(10, 5)
    assert (stream.committed, stream.token, stream.done, stream.error) == (True, True, True, None)
    assert stream.finish_reasons == ("stop",)
    assert stream.mended == ()


def test_a_usage_event_not_asked_for_is_taken_out_and_nothing_else() -> None:
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, STANDARD) == ROLE + HE + LLO + STOP
    assert stream.end == DONE
    assert stream.usage == reported(10, 5)
    assert stream.mended == ("usage_removed",)


def test_the_role_chunk_commits_and_is_no_token() -> None:
    stream = ChunkReader(strip_usage=True)
    assert stream.feed(ROLE) == ROLE
    assert (stream.committed, stream.token) == (True, False)
    assert stream.feed(HE) == HE
    assert stream.token


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (chunk(content="a"), True),
        (chunk(reasoning_content="a"), True),
        (chunk(reasoning="a"), True),
        (chunk(tool_calls=[{"index": 0}]), True),
        (chunk(function_call={"name": "f"}), True),
        (chunk(refusal="no"), True),
        (chunk(content=None, tool_calls=[]), False),
        (chunk(role="assistant"), False),
        (finish(), False),
        ({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}, True),
        ({"choices": [{"index": 0, "text": "", "finish_reason": None}]}, False),
        (
            {"choices": [{"index": "0", "text": "a"}]},
            True,
        ),  # types that no schema knows are read as well as can be
        ({"choices": [{"delta": {"content": ["part"]}}]}, True),
        ({"choices": [{"delta": {"content": ["part"]}, "finish_reason": 5}]}, True),
        ({"choices": [{"delta": 7}, 7]}, False),
    ],
)
def test_what_counts_as_a_token(value: object, token: bool) -> None:
    stream = ChunkReader(strip_usage=True)
    assert stream.feed(sse_event(value)) == sse_event(value)
    assert (stream.committed, stream.token) == (True, token)


@pytest.mark.parametrize(
    "raw",
    [
        b"data: null\n\n",
        b"data: []\n\n",
        b"data: 7\n\n",
        b"data: not json\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        sse_event({"id": "c1", "choices": []}),
        sse_event({"id": "c1", "choices": [], "usage": None}),
        sse_event({"id": "c1"}),
        sse_event({"choices": None}),
        sse_event({"choices": "none"}),
        b": comment\n\n",
        b":\n: of two lines\n\n",
        b"\xef\xbb\xbf: comment\n\n",
        b"\n",
    ],
)
def test_odd_events_pass_and_neither_commit_nor_are_tokens(raw: bytes) -> None:
    stream = ChunkReader(strip_usage=True)
    assert stream.feed(raw) == raw
    assert (stream.committed, stream.token, stream.error) == (False, False, None)
    assert feed_all(stream, STANDARD) + stream.end == ROLE + HE + LLO + STOP + DONE


@pytest.mark.parametrize(
    "raw",
    [
        b"event: ping\nid: 7\n\n",
        b"retry: 1000\n\n",
        b"data:\n\n",
        b"data\n\n",
        b": comment\nid: 7\n\n",
        b"x\n\n",
        b"event: ping\r\n\r\n",
    ],
)
def test_an_event_without_data_does_not_pass(raw: bytes) -> None:
    """The text says that it is no event; clients take it for one, decode its data, and fail."""
    stream = ChunkReader(strip_usage=True)
    pieces = [raw, ROLE, HE, raw, LLO, STOP, raw, USAGE, raw, DONE]
    assert feed_all(stream, b"".join(pieces)) + stream.end == ROLE + HE + LLO + STOP + DONE
    assert stream.mended == ("empty_event_dropped", "usage_removed")


def test_a_long_one_of_which_a_part_has_gone_out_is_not_torn() -> None:
    long = b"event: " + b"x" * (reader.HOLD_BYTES_MAX + 1)
    stream = ChunkReader(strip_usage=True)
    assert stream.feed(ROLE + HE + long) == ROLE + HE + long
    assert stream.feed(b"\n\n" + LLO) == b"\n\n" + LLO
    assert (stream.torn, stream.mended) == (False, ())


@pytest.mark.parametrize(
    ("raw", "grows"), [(HE, 1), (b": ping\n\n", 0), (b"event: ping\n\n", 0), (b"data: 7\n\n", 1)]
)
def test_a_comment_is_no_sign_of_life(raw: bytes, grows: int) -> None:
    stream = ChunkReader(strip_usage=True)
    stream.feed(ROLE + HE)
    before = stream.events
    stream.feed(raw)
    assert stream.events - before == grows


# -- usage


def test_the_last_usage_wins_and_none_is_added_up() -> None:
    running = [sse_event(chunk(content="a") | {"usage": counts(10, number)}) for number in range(1, 5)]
    stream = ChunkReader(strip_usage=False)
    assert feed_all(stream, ROLE, *running, STOP, USAGE, DONE) == ROLE + b"".join(running) + STOP
    assert stream.usage == reported(10, 5)


def test_a_null_usage_does_not_erase_the_value_before_it() -> None:
    empty = sse_event({"choices": [], "usage": None})
    stream = ChunkReader(strip_usage=False)
    feed_all(stream, ROLE, HE, STOP, USAGE, empty, DONE)
    assert stream.usage == reported(10, 5)
    assert stream.end == USAGE + empty + DONE


def test_usage_on_the_finish_chunk_passes_and_is_read() -> None:
    last = sse_event(finish() | {"usage": counts(10, 5)})
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, ROLE + HE, last, DONE) == ROLE + HE + last
    assert stream.usage == reported(10, 5)


def test_usage_without_choices_is_read_and_is_no_end() -> None:
    bare = sse_event({"usage": counts(10, 5)})
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, ROLE + HE + bare + STOP + DONE) == ROLE + HE + bare + STOP
    assert stream.usage == reported(10, 5)


def test_more_of_the_answer_after_a_usage_event_releases_what_was_held() -> None:
    stream = ChunkReader(strip_usage=False)
    assert stream.feed(ROLE + USAGE) == ROLE
    assert stream.feed(HE) == USAGE + HE
    assert feed_all(stream, STOP + USAGE + DONE) == STOP
    assert stream.end == USAGE + DONE


@pytest.mark.parametrize(
    ("bad", "usage"),
    [
        *((counts(bad, 5), Usage(source=UsageSource.REPORTED, completion_tokens=5))
          for bad in (-10, 10.5, 10.0, "10", True, 10**9 + 1, 10**40, [1], {})),
        *((counts(10, bad), Usage(source=UsageSource.REPORTED, prompt_tokens=10)) for bad in (-5, 1e30, False)),
        (counts(10, 5, prompt_tokens_details={"cached_tokens": -1}), reported(10, 5)),
        (counts(10, 5, completion_tokens_details={"reasoning_tokens": 1.5}), reported(10, 5)),
        *((bad, UNKNOWN) for bad in (counts(None, None), counts(-1, -1), {}, [], 7, "x")),
    ],
)  # fmt: skip
def test_what_is_no_count_is_left_out_and_flagged(bad: object, usage: Usage) -> None:
    assert token_counts.openai(bad) == token_counts.Reading(usage=usage, invalid=True)
    stream = ChunkReader(strip_usage=True)
    bad_event = sse_event({"choices": [], "usage": bad})
    feed_all(stream, ROLE + HE + STOP + bad_event + DONE)
    assert (stream.usage, stream.usage_invalid) == (usage, 1)
    assert stream.end == DONE  # it is the usage event all the same, and was not asked for


def test_a_count_that_is_none_leaves_the_one_before_it() -> None:
    stream = ChunkReader(strip_usage=False)
    running = sse_event(chunk(content="a") | {"usage": counts(10, 4)})
    feed_all(stream, ROLE + running + STOP + sse_event({"choices": [], "usage": counts(-10, 5)}) + DONE)
    assert (stream.usage, stream.usage_invalid) == (reported(10, 5), 1)


@pytest.mark.parametrize(
    ("value", "usage", "clamped"),
    [
        (counts(10, 5), reported(10, 5), False),
        (counts(0, 0), reported(0, 0), False),
        (counts(10**9, 0), reported(10**9, 0), False),
        (counts(10, 5, prompt_tokens_details={"cached_tokens": 4}), reported(10, 5, cached=4), False),
        (counts(10, 5, prompt_tokens_details={"cached_tokens": 11}), reported(10, 5, cached=10), True),
        (counts(10, 5, prompt_tokens_details={"cached_tokens": None}), reported(10, 5), False),
        (counts(10, 5, prompt_tokens_details=None), reported(10, 5), False),
        (
            counts(10, 5, completion_tokens_details={"reasoning_tokens": 2}),
            reported(10, 5, reasoning=2),
            False,
        ),
        (
            counts(10, 5, completion_tokens_details={"reasoning_tokens": 9}),
            reported(10, 5, reasoning=5),
            True,
        ),
        ({"prompt_tokens": 10}, Usage(source=UsageSource.REPORTED, prompt_tokens=10), False),
        (
            {"completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(source=UsageSource.REPORTED, completion_tokens=5),
            False,
        ),
    ],
)
def test_usage_is_read_with_its_parts(value: object, usage: Usage, clamped: bool) -> None:
    assert token_counts.openai(value) == token_counts.Reading(usage=usage, clamped=clamped)
    stream = ChunkReader(strip_usage=True)
    feed_all(stream, ROLE + STOP + sse_event({"choices": [], "usage": value}) + DONE)
    assert (stream.usage, stream.usage_clamped) == (usage, int(clamped))


# -- ends that lack something, and ends that have too much


@pytest.mark.parametrize(
    ("tail", "end", "mended"),
    [
        (USAGE[:-1], USAGE + DONE, ("blank_line_added", "done_added")),
        (USAGE[:-2], USAGE + DONE, ("blank_line_added", "done_added")),
        (USAGE, USAGE + DONE, ("done_added",)),
        (b"", DONE, ("done_added",)),
        (USAGE + DONE[:-1], USAGE + DONE, ("blank_line_added",)),
        (USAGE + DONE[:-2], USAGE + DONE, ("blank_line_added",)),
        (USAGE + DONE[:-2] + b"\r", USAGE + DONE[:-2] + b"\r\n\n", ("blank_line_added",)),
        (USAGE[:-9], DONE, ("half_event_dropped", "done_added")),
        (USAGE + b": bye", USAGE + b": bye\n\n" + DONE, ("blank_line_added", "done_added")),
        (LLO[:-2], LLO + DONE, ("blank_line_added", "done_added")),
        (DONE + b"\n\r\n", DONE, ()),
        (DONE + LLO + USAGE + DONE, DONE, ("after_done_dropped",)),
        (DONE + b"da", DONE, ("after_done_dropped",)),
        (USAGE + DONE + b"da", USAGE + DONE, ("after_done_dropped",)),
    ],
)  # fmt: skip
def test_the_end_is_always_well_formed(tail: bytes, end: bytes, mended: tuple[str, ...]) -> None:
    stream = ChunkReader(strip_usage=False)
    assert feed_all(stream, ROLE + HE + STOP, tail) == ROLE + HE + STOP
    assert (stream.end, stream.mended, stream.done) == (end, mended, True)


def test_bytes_after_done_are_dropped_whenever_they_come() -> None:
    stream = ChunkReader(strip_usage=False)
    stream.feed(STANDARD)
    assert stream.feed(b"\n") == b""
    assert stream.mended == ()
    assert stream.feed(HE) == stream.feed(USAGE) == b""
    assert (stream.end, stream.mended) == (USAGE + DONE, ("after_done_dropped",))


def test_a_stream_with_no_finish_gets_no_done() -> None:
    stream = ChunkReader(strip_usage=False)
    feed_all(stream, ROLE + HE)
    assert (stream.done, stream.end, stream.mended) == (False, b"", ())


def test_events_with_one_newline_only_are_never_a_success() -> None:
    stream = ChunkReader(strip_usage=False)
    feed_all(stream, STANDARD.replace(b"\n\n", b"\n"))
    assert (stream.done, stream.finish_reasons, stream.usage) == (False, (), UNKNOWN)


def test_finish_reasons_are_bounded_for_they_stand_in_the_record() -> None:
    stream = ChunkReader(strip_usage=False)
    feed_all(stream, *(sse_event(finish("r" * 1_000, index)) for index in range(200)), DONE)
    bounded = ("r" * reader.REASON_CHARACTERS_MAX,) * reader.CHOICES_MAX
    assert stream.finish_reasons == bounded
    choice = {"message": {}, "finish_reason": "r" * 1_000}
    assert read_sized(Answer.CHAT, json.dumps({"choices": [choice] * 200}).encode()).finish_reasons == bounded


def test_finish_reasons_stand_in_the_order_of_the_choices() -> None:
    stream = ChunkReader(strip_usage=False)
    feed_all(stream, ROLE + sse_event(finish("length", 1)) + sse_event(finish("stop", 0)) + DONE)
    assert stream.finish_reasons == ("stop", "length")


# -- errors

ERROR = {"message": "engine died", "type": "server_error", "param": None, "code": 500}


@pytest.mark.parametrize(
    "value",
    [{"error": ERROR}, {"error": ERROR, "choices": []}, {"error": "engine died"}, {"object": "error", **ERROR},
     {"error": ERROR, "choices": [7]}],
)  # fmt: skip
@pytest.mark.parametrize("before", [b"", ROLE, ROLE + HE])
def test_an_error_event_is_told_and_not_passed(before: bytes, value: object) -> None:
    stream = ChunkReader(strip_usage=False)
    assert stream.feed(before + sse_event(value) + HE) == before
    assert stream.error is not None
    assert stream.error.message == "engine died"
    assert feed_all(stream, HE, DONE) == stream.end == b""
    assert stream.mended == ()


def test_an_error_in_a_read_of_its_own_is_told() -> None:
    stream = ChunkReader(strip_usage=False)
    stream.feed(ROLE + HE)
    assert stream.feed(sse_event({"error": ERROR})) == b""
    assert stream.error is not None


def test_an_error_without_words_is_an_error_too() -> None:
    stream = ChunkReader(strip_usage=False)
    assert stream.feed(ROLE + HE + sse_event({"error": {}})) == ROLE + HE
    assert stream.error is not None


@pytest.mark.parametrize("nothing", [None, False, "", 0])
def test_an_empty_error_field_is_none(nothing: object) -> None:
    raw = sse_event(chunk(content="a") | {"error": nothing})
    stream = ChunkReader(strip_usage=False)
    assert stream.feed(raw) == raw
    assert stream.error is None


def test_a_non_finite_number_does_not_hide_the_rest() -> None:
    raw = STOP.replace(b'"delta":{}', b'"delta":{},"logprobs":{"logprob":-Infinity}')
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, ROLE + HE, raw) == ROLE + HE + raw
    assert (stream.finish_reasons, stream.end) == (("stop",), DONE)


def test_half_an_event_and_its_rest_stay_in_order() -> None:
    stream = ChunkReader(strip_usage=False)
    stream.feed(ROLE + HE)
    assert stream.feed(b"event: message\n") == b""
    assert stream.feed(LLO) == b"event: message\n" + LLO


# -- large events


def test_a_large_event_passes_as_it_comes_and_is_read_at_its_end() -> None:
    big = sse_event(chunk(content="x" * 300_000) | {"usage": counts(10, 7)})
    stream = ChunkReader(strip_usage=True)
    stream.feed(ROLE + HE)
    assert stream.feed(big[:4096]) == b""  # it may still be part of the end
    assert not stream.torn
    assert stream.feed(big[4096:4100]) == big[:4100]
    assert stream.torn
    assert stream.feed(big[4100:] + LLO) == big[4100:] + LLO
    assert not stream.torn
    assert stream.usage == reported(10, 7)


def test_a_large_event_at_the_clean_end_is_completed() -> None:
    big = sse_event(finish() | {"x": "y" * 9000})
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, ROLE + HE, big[:-2]) == ROLE + HE + big[:-2]
    assert stream.end == b"\n\n" + DONE


@pytest.mark.parametrize("cut_at", [-2, -20])
def test_a_large_event_cut_off_by_a_clean_end_leaves_the_client_with_half(cut_at: int) -> None:
    big = sse_event(chunk(content="x" * 9000))
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, ROLE + HE, big[:cut_at]) == ROLE + HE + big[:cut_at]
    assert (stream.torn, stream.done, stream.finish_reasons) == (True, False, ())


def test_a_usage_event_of_more_than_the_hold_is_not_taken_out_in_part() -> None:
    big = sse_event({"x": "y" * 9000, "choices": [], "usage": counts(10, 5)})
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, ROLE + HE + STOP, big[:8000], big[8000:], DONE) == ROLE + HE + STOP + big[:8000]
    assert (stream.end, stream.usage) == (big[8000:] + DONE, reported(10, 5))


def test_a_large_error_is_held_whole() -> None:
    big = sse_event({"error": ERROR | {"message": "x" * 9000}})
    stream = ChunkReader(strip_usage=True)
    assert feed_all(stream, ROLE + HE, big[:6000], big[6000:]) == ROLE + HE
    assert stream.error is not None


def test_nothing_large_passes_once_the_end_is_held() -> None:
    stream = ChunkReader(strip_usage=True)
    comment = b": " + b"x" * 9000 + b"\n\n"
    assert (
        feed_all(stream, ROLE + HE + STOP + USAGE, comment[:8000], comment[8000:] + DONE) == ROLE + HE + STOP
    )
    assert stream.end == comment + DONE


def test_an_event_above_the_bound_is_an_error() -> None:
    stream = ChunkReader(strip_usage=True, event_bytes_max=6000)
    assert stream.feed(ROLE + HE + b"data: " + b"x" * 5000) == ROLE + HE + b"data: " + b"x" * 5000
    assert stream.feed(b"x" * 1000) == b""
    assert stream.error is not None
    assert stream.error.type == "event_too_large"


# -- any stream, any chunking


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a generated stream, and what a reader must make of it."""

    raw: bytes
    choices: bool = False
    usage_event: bool = False
    usage: Usage | None = None
    finish: str | None = None
    token: bool = False
    empty: bool = False


def part(value: object, *, spaced: bool = False, **facts: object) -> Part:
    separators = (", ", ": ") if spaced else (",", ":")
    return Part(b"data: " + json.dumps(value, separators=separators).encode() + b"\n\n", **facts)  # type: ignore[arg-type]


USAGES = st.tuples(st.integers(0, 99), st.integers(0, 99))
SPACED = st.booleans()
PARTS = st.one_of(
    st.builds(lambda s: part(chunk(role="assistant", content=""), spaced=s, choices=True), SPACED),
    st.builds(
        lambda text, s: part(chunk(content=text), spaced=s, choices=True, token=bool(text)),
        st.text(max_size=8)
        | st.sampled_from(['"usage":{', "[DONE]", '"finish_reason":"stop"', '"error"', "\n\n"]),
        SPACED,
    ),
    st.builds(
        lambda u, s: part(
            chunk(content="a") | {"usage": counts(*u)}, spaced=s, choices=True, token=True, usage=reported(*u)
        ),
        USAGES,
        SPACED,
    ),
    st.builds(
        lambda r, s: part(finish(r), spaced=s, choices=True, finish=r),
        st.sampled_from(["stop", "length"]),
        SPACED,
    ),
    st.builds(
        lambda u, s: part(
            {"choices": [], "usage": counts(*u)}, spaced=s, usage_event=True, usage=reported(*u)
        ),
        USAGES,
        SPACED,
    ),
    st.sampled_from([b": ping\n\n", b"\n", b"data: null\n\n", b"data: 7\n\n"]).map(Part),
    st.just(Part(b"event: x\nid: 1\n\n", empty=True)),
    st.builds(lambda s: part({"choices": [], "usage": None}, spaced=s), SPACED),
)
CHUNKINGS = st.lists(st.integers(1, 400), max_size=12) | st.just([1] * 5000)


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Pieces of these sizes, and the rest."""
    edges = [0, *itertools.accumulate(sizes)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    return [*pieces, stream[edges[-1] :]]


def state(stream: ChunkReader) -> dict[str, object]:
    """All that a reader tells, but how often it was told of life."""
    names = ("committed", "counted", "done", "end", "error", "finish_reasons", "mended", "token", "torn", "usage",
             "usage_clamped", "usage_final", "usage_invalid")  # fmt: skip
    return {name: getattr(stream, name) for name in names}


@given(st.lists(PARTS, max_size=10), st.sampled_from(["\n", "\r\n", "\r"]), CHUNKINGS, st.booleans())
def test_any_stream_in_any_chunking(parts: list[Part], newline: str, sizes: list[int], strip: bool) -> None:
    """A slow reference: from the list of events it is plain what passes, what is held and what is read."""
    done = [*parts, Part(DONE)]
    raws = [one.raw.replace(b"\n", newline.encode()) for one in done]
    more = [index for index, one in enumerate(done) if one.choices]
    after = more[-1] + 1 if more else 0
    held_from = next(i for i, one in enumerate(done) if i >= after and (one.usage_event or one.raw == DONE))
    kept = [
        b"" if one.empty or (strip and one.usage_event) else raw for one, raw in zip(done, raws, strict=True)
    ]
    usages = [one.usage for one in parts if one.usage is not None]
    finishes = [one.finish for one in parts if one.finish is not None]

    stream = ChunkReader(strip_usage=strip)
    passed = feed_all(stream, *cut(b"".join(raws), sizes))

    assert passed == b"".join(kept[:held_from])
    assert stream.end == b"".join(kept[held_from:])
    assert stream.usage == (usages[-1] if usages else UNKNOWN)
    assert stream.finish_reasons == tuple(finishes[-1:])
    assert stream.committed is bool(more)
    assert stream.counted == sum(one.token for one in parts)
    assert stream.token is (stream.counted > 0)
    assert set(stream.mended) == {
        *(("usage_removed",) if strip and any(one.usage_event for one in parts) else ()),
        *(("empty_event_dropped",) if any(one.empty for one in parts) else ()),
    }


@given(st.lists(PARTS, max_size=10), CHUNKINGS, st.booleans())
def test_the_fast_path_changes_nothing(parts: list[Part], sizes: list[int], strip: bool) -> None:
    pieces = cut(ROLE + HE + b"".join(one.raw for one in parts) + DONE, sizes)
    fast, slow = ChunkReader(strip_usage=strip), ChunkReader(strip_usage=strip)
    passed = [fast.feed(piece) for piece in pieces]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkReader, "_skim", lambda self, data, at, upto: at)
        assert [slow.feed(piece) for piece in pieces] == passed
    assert state(fast) == state(slow)


class Watched(ChunkReader):
    """Notes which events were read."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        super().__init__(strip_usage=True)
        self.read: list[bytes] = []

    def _take_event(self, data: bytes, raw: bytes, out: list[bytes]) -> None:
        self.read.append(raw)
        super()._take_event(data, raw, out)


TOKEN_EVENTS = [
    lambda text: sse_event(chunk(content=text)),
    lambda text: sse_event(chunk(reasoning_content=text)),
    lambda text: sse_event(chunk(content=None, reasoning=text)),
    lambda text: sse_event(chunk(content="", reasoning=text)),
    lambda text: sse_event(chunk(tool_calls=[{"index": 0, "function": {"arguments": text}}])),
    lambda text: sse_event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}),
    lambda text: b"data: " + json.dumps(chunk(content=text), ensure_ascii=False).encode() + b"\n\n",
]


@pytest.mark.parametrize("make", TOKEN_EVENTS)
@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_events_that_differ_in_their_text_only_are_counted_and_not_read(make: Any, pieces: int) -> None:
    texts = ["a", "b c", 'say "x"', "back\\slash", "\n\n", "é🙂", "[DONE]", '"finish_reason":"stop"', "z\\"]
    first, rest = make("first"), b"".join(map(make, texts))
    stream = Watched()
    stream.feed(ROLE + first)
    size = -(-len(rest) // pieces)
    passed = b"".join([stream.feed(piece) for piece in cut(rest, [size] * (pieces - 1))])
    assert passed == rest
    assert stream.counted == 1 + len(texts)
    assert len(stream.read) <= 2 + pieces  # an event that was cut in two is read
    if pieces == 1:
        assert stream.read == [ROLE, first]


@pytest.mark.parametrize(
    "other",
    [STOP, USAGE, sse_event({"error": ERROR}), sse_event(chunk(content="")), sse_event(chunk(content=None)),
     sse_event(chunk(content="a") | {"usage": counts(1, 1)}), sse_event({"choices": []}), b": ping\n\n", DONE,
     sse_event({"choices": [*chunk(content="a")["choices"], *chunk(content="b")["choices"]]})],  # type: ignore[misc]
)  # fmt: skip
@pytest.mark.parametrize("where", ["alone", "first", "last", "amid"])
def test_an_event_that_says_more_is_read_wherever_it_comes(other: bytes, where: str) -> None:
    stream = Watched()
    stream.feed(ROLE + HE)
    stream.feed({"alone": other, "first": other + LLO, "last": LLO + other, "amid": LLO + other + LLO}[where])
    assert other in stream.read or other.startswith(b":")


def test_a_stream_has_a_few_patterns_and_is_not_searched_for_more_for_ever() -> None:
    def one(index: int, text: str) -> bytes:
        return sse_event({"choices": [{"index": index, "text": text, "finish_reason": None}]})

    stream = Watched()
    for _round in range(3):
        for index in range(20):
            stream.feed(one(index, "a"))
    assert stream.counted == 60
    for index in range(20):
        stream.read.clear()
        stream.feed(one(index, "b"))
        assert bool(stream.read) is (index >= chunks.PATTERNS_MAX)


@pytest.mark.parametrize("name", captures.streams())
@pytest.mark.parametrize("strip", [True, False])
def test_recorded_streams_cut_at_every_point(name: str, strip: bool) -> None:
    """The first and the last events of each recorded stream, in two reads, at every byte."""
    events = captures.streams()[name].split(b"\n\n")[:-1]
    raw = b"".join(event + b"\n\n" for event in (events if len(events) < 9 else events[:4] + events[-4:]))
    whole = ChunkReader(strip_usage=strip)
    expected = feed_all(whole, raw)
    has_usage_event = b'"choices":[],' in raw
    if not (strip and has_usage_event):
        assert expected + whole.end == raw
    assert whole.done
    for at in range(len(raw)):
        stream = ChunkReader(strip_usage=strip)
        assert feed_all(stream, raw[:at], raw[at:]) == expected
        assert state(stream) == state(whole)


# -- sized answers


@pytest.mark.parametrize(
    "name", ["chat", "chat_n2", "chat_tool", "chat_cached", "completions", "completions_n2"]
)
def test_recorded_sized_answers(name: str) -> None:
    body = captures.load(name).response.body
    answer = read_sized(Answer(name.split("_")[0]), body)
    value = json.loads(body)
    assert answer.ok
    assert answer.usage.source is UsageSource.REPORTED
    assert answer.usage.prompt_tokens == value["usage"]["prompt_tokens"]
    assert answer.usage.completion_tokens == value["usage"]["completion_tokens"]
    assert answer.finish_reasons == tuple(choice["finish_reason"] for choice in value["choices"])


SIZED = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": counts(10, 5)}


@pytest.mark.parametrize(
    ("operation", "body", "ok"),
    [
        ("chat", json.dumps(SIZED), True),
        ("chat", json.dumps(SIZED | {"error": None}), True),
        ("chat", json.dumps(SIZED).replace('"hi"', '"hi", "logprob": -Infinity'), True),
        ("completions", json.dumps(SIZED), False),  # another operation's answer
        ("chat", json.dumps(SIZED | {"error": ERROR}), False),
        ("chat", json.dumps({"error": ERROR}), False),
        ("chat", json.dumps({"detail": "Not Found"}), False),
        ("chat", json.dumps({"choices": [7]}), False),
        ("chat", "{}", False),
        ("chat", "[]", False),
        ("chat", "null", False),
        ("chat", "not json", False),
        ("chat", "<html>", False),
        ("chat", "", False),
        ("chat", "[" * 100_000, False),
    ],
)
def test_what_is_an_answer(operation: str, body: str, ok: bool) -> None:
    answer = read_sized(Answer(operation), body.encode())
    assert answer.ok is ok
    assert answer.usage == (reported(10, 5) if ok else UNKNOWN)
    assert (answer.error is not None) == ("engine died" in body or "detail" in body)


def test_a_sized_answer_with_no_usable_usage_is_an_answer() -> None:
    bad = read_sized(Answer.CHAT, json.dumps(SIZED | {"usage": counts(-1, 5)}).encode())
    assert (bad.ok, bad.usage, bad.usage_invalid) == (
        True, Usage(source=UsageSource.REPORTED, completion_tokens=5), 1,
    )  # fmt: skip
    none = read_sized(Answer.CHAT, json.dumps(SIZED | {"usage": None}).encode())
    assert (none.ok, none.usage, none.usage_invalid) == (True, UNKNOWN, 0)
    over = counts(10, 5, prompt_tokens_details={"cached_tokens": 99})
    assert read_sized(Answer.CHAT, json.dumps(SIZED | {"usage": over}).encode()).usage_clamped == 1
