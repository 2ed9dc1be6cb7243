"""Whole answers of every kind: what is one, what it used, why it ended."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.answers import Answer
from backends.sized import Sized, packed_headers, read_any, read_packed, read_sized, read_usual
from metering.usage import UNKNOWN, Usage, UsageSource
from tests.support import captures

KINDS = {
    "chat": Answer.CHAT,
    "completions": Answer.COMPLETIONS,
    "responses": Answer.RESPONSES,
    "messages": Answer.MESSAGES,
    "embeddings": Answer.EMBEDDINGS,
    "score": Answer.SCORE,
    "rerank": Answer.RERANK,
    "pooling": Answer.POOLING,
    "classify": Answer.CLASSIFY,
    "tokenize": Answer.TOKENS,
    "detokenize": Answer.TEXT,
    "count_tokens": Answer.TOKEN_COUNT,
}


def recorded() -> list[tuple[str, Answer, dict[str, Any], Sized]]:
    """Every sized JSON answer that was recorded from a path of these."""
    found = []
    for directory in captures.SUITES.values():
        for name, entry in captures.index(directory).items():
            kind = next(
                (kind for kind in sorted(KINDS, key=len, reverse=True) if name.startswith(kind)), None
            )
            response = captures.load(name, directory).response if kind and entry["status"] == 200 else None
            if response is not None and kind is not None and response.content_type == "application/json":
                found.append(
                    (name, KINDS[kind], json.loads(response.body), read_sized(KINDS[kind], response.body))
                )
    return found


def test_recorded_answers_are_read_with_their_counts() -> None:
    seen = set()
    for name, kind, value, answer in recorded():
        assert (answer.ok, answer.error, answer.usage_invalid, answer.usage_clamped) == (True, None, 0, 0), (
            name
        )
        assert answer.usage.source is UsageSource.REPORTED
        reported = value.get("usage") or {}
        if kind in (Answer.TOKENS, Answer.TOKEN_COUNT):
            number = value["count"] if kind is Answer.TOKENS else value["input_tokens"]
            assert answer.usage.other == {"tokenized_tokens": number}
        if kind in (Answer.TOKENS, Answer.TOKEN_COUNT, Answer.TEXT):
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (0, 0)
        elif kind is Answer.MESSAGES:
            whole = reported["input_tokens"] + reported["cache_read_input_tokens"]
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
                whole,
                reported["output_tokens"],
            )
        else:
            assert answer.usage.prompt_tokens == reported.get("prompt_tokens", reported.get("input_tokens"))
            made = reported.get("completion_tokens", reported.get("output_tokens", 0))
            assert answer.usage.completion_tokens == made
        assert (answer.finish_reasons == ()) is (not kind.generates)
        seen.add(kind)
    assert seen == set(Answer) - {Answer.TRANSCRIPT, Answer.KEPT}


def seconds(number: int) -> Usage:
    return Usage(other={"audio_s": number}, source=UsageSource.REPORTED)


@pytest.mark.parametrize(
    ("value", "usage", "invalid", "text_bytes"),
    [
        ({"text": "hé", "usage": {"type": "duration", "seconds": 6}}, seconds(6), 0, 3),
        ({"text": "", "usage": {"type": "duration", "seconds": 5.2}}, seconds(6), 0, 0),
        ({"text": "", "usage": {"type": "duration", "seconds": 0}}, seconds(0), 0, 0),
        ({"text": "a", "duration": 5.3, "segments": [{"text": "a"}]}, seconds(6), 0, 1),  # verbose_json
        ({"text": "a", "duration": 5.3, "usage": {"type": "duration", "seconds": 7}}, seconds(7), 0, 1),
        ({"text": "a", "duration": "5.300000190734863"}, UNKNOWN, 1, 1),
        ({"text": "a", "duration": -1}, UNKNOWN, 1, 1),
        ({"text": "a", "usage": {"type": "duration", "seconds": True}}, UNKNOWN, 1, 1),
        ({"text": "a", "usage": {"type": "duration"}}, UNKNOWN, 1, 1),
        ({"text": "a", "usage": {"type": "duration", "seconds": 1e10}}, UNKNOWN, 1, 1),
        ({"text": "abcd"}, UNKNOWN, 0, 4),  # a translation
        (
            {
                "text": "a",
                "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59},
            },
            Usage(prompt_tokens=14, completion_tokens=45, source=UsageSource.REPORTED),
            0,
            0,
        ),
    ],
)
def test_a_transcript_tells_seconds_or_tokens_or_nothing(
    value: dict[str, Any], usage: Usage, invalid: int, text_bytes: int
) -> None:
    answer = read_sized(Answer.TRANSCRIPT, json.dumps(value).encode())
    assert answer == Sized(ok=True, usage=usage, usage_invalid=invalid, text_bytes=text_bytes)


@pytest.mark.parametrize(
    "value", [{"text": None}, {"text": ["a"]}, {"usage": {"type": "duration", "seconds": 6}}]
)
def test_a_transcript_has_a_text(value: dict[str, Any]) -> None:
    assert not read_sized(Answer.TRANSCRIPT, json.dumps(value).encode()).ok


@pytest.mark.parametrize(
    ("answer", "kind", "packed"),
    [
        (Answer.TRANSCRIPT, b"text/plain; charset=utf-8", True),
        (Answer.TRANSCRIPT, b"text/vtt", True),
        (Answer.TRANSCRIPT, b"application/x-subrip", True),
        (Answer.TRANSCRIPT, b"application/json", False),
        (Answer.TRANSCRIPT, b"text/html", False),  # a page of some proxy
        (Answer.TRANSCRIPT, b"application/octet-stream", False),
        (Answer.EMBEDDINGS, b"text/plain", False),
        (Answer.CHAT, b"text/plain", False),
    ],
)
def test_a_transcript_may_be_bare_text(answer: Answer, kind: bytes, packed: bool) -> None:
    headers = [(b"content-type", kind), (b"x", b"y")]
    assert packed_headers(answer, headers) == ([(b"content-type", kind)] if packed else None)
    if packed:
        assert read_packed(answer, headers, b"12345") == Sized(ok=True, text_bytes=5)


@pytest.mark.parametrize(
    ("kind", "value", "reasons"),
    [
        (Answer.RESPONSES, {"output": [], "status": "completed"}, ("completed",)),
        (
            Answer.RESPONSES,
            {"output": [], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            ("max_output_tokens",),
        ),
        (Answer.RESPONSES, {"output": [], "status": 5, "incomplete_details": "x"}, ()),
        (Answer.MESSAGES, {"content": [], "stop_reason": "end_turn"}, ("end_turn",)),
        (Answer.MESSAGES, {"content": [], "stop_reason": "s" * 99}, ("s" * 32,)),
        (Answer.MESSAGES, {"content": []}, ()),
    ],
)
def test_why_it_ended(kind: Answer, value: dict[str, Any], reasons: tuple[str, ...]) -> None:
    assert read_sized(kind, json.dumps(value).encode()).finish_reasons == reasons


@pytest.mark.parametrize("kind", Answer)
@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{}", b"<html>", b'{"choices":{}}', b'{"content":[7],"data":[7],"results":[{}]}',
     b'{"output":[{}]}', b'{"data":{"embedding":[]}}', b'{"created_at":7}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_answer(kind: Answer, body: bytes) -> None:
    assert read_sized(kind, body) == Sized(ok=False, usage=read_sized(kind, body).usage)
    assert not read_sized(kind, body).ok


@pytest.mark.parametrize("kind", Answer)
@pytest.mark.parametrize(
    "value",
    [
        {"error": {"message": "no", "type": "x", "param": None, "code": None}},
        {"type": "error", "error": {"type": "api_error", "message": "no"}},
        {"object": "error", "message": "no"},
        {"detail": "no"},
    ],
)
def test_an_error_is_none(kind: Answer, value: dict[str, Any]) -> None:
    answer = read_sized(kind, json.dumps(value).encode())
    assert (answer.ok, answer.usage) == (False, UNKNOWN)
    assert answer.error is not None
    assert answer.error.message == "no"


@pytest.mark.parametrize(
    ("kind", "value", "text_bytes"),
    [
        (Answer.CHAT, {"choices": [{"message": {"role": "assistant", "content": "hé🙂"}}]}, 7),
        (
            Answer.CHAT,
            {
                "choices": [
                    {"message": {"content": None, "reasoning": "ab", "tool_calls": [
                        {"id": "t-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}},
                    {"message": {"content": "c"}},
                ]
            },
            6,
        ),
        (Answer.COMPLETIONS, {"choices": [{"text": "abcd"}]}, 4),
        (Answer.COMPLETIONS, {"choices": [{"text": "\ud800"}]}, 3),
        (Answer.RESPONSES, {"output": [{"type": "message", "content": [{"type": "output_text", "text": "abc"}]}]}, 3),
        (Answer.MESSAGES, {"content": [{"type": "text", "text": "ab"}, {"type": "tool_use", "input": {"a": 1.5}}]}, 2),
        (Answer.EMBEDDINGS, {"data": [{"embedding": "AAAA"}]}, 0),
        (Answer.POOLING, {"data": [{"data": [[0.5], [1.0]]}]}, 0),  # a vector for each token
        (Answer.POOLING, {"request_id": None, "created_at": 7, "data": "a plug-in's"}, 0),
        (Answer.CLASSIFY, {"data": [{"label": None, "probs": [0.25, 0.75]}]}, 0),
    ],
)  # fmt: skip
def test_without_counts_the_text_is_measured(kind: Answer, value: dict[str, Any], text_bytes: int) -> None:
    answer = read_sized(kind, json.dumps(value).encode())
    assert (answer.ok, answer.usage, answer.text_bytes) == (True, UNKNOWN, text_bytes)


def test_a_bad_count_is_left_out_and_the_text_measured_if_it_was_the_answers() -> None:
    value = {
        "output": [{"type": "message", "content": "abcd"}],
        "usage": {"input_tokens": 5, "output_tokens": -1},
    }
    answer = read_sized(Answer.RESPONSES, json.dumps(value).encode())
    assert answer.usage == Usage(prompt_tokens=5, source=UsageSource.REPORTED)
    assert (answer.usage_invalid, answer.text_bytes) == (1, 4)


# -- answers as bare numbers


@pytest.mark.parametrize("name", ["embeddings", "pooling"])
def test_recorded_bare_numbers_are_described_by_a_header(name: str) -> None:
    response = captures.load(f"{name}_bytes", captures.VLLM_POOLING).response
    headers = [(name.encode(), value.encode()) for name, value in response.headers]
    described = packed_headers(KINDS[name], headers)
    assert described is not None
    assert [name for name, _ in described] == [b"metadata", b"content-type"]
    assert read_packed(Answer.EMBEDDINGS, described, b"") == Sized(
        ok=True, usage=Usage(prompt_tokens=2, completion_tokens=0, source=UsageSource.REPORTED)
    )


@pytest.mark.parametrize("metadata", [b"", b"[]", b"not json", b"{}", b'{"usage":null}'])
def test_bare_numbers_may_say_nothing_of_their_usage(metadata: bytes) -> None:
    headers = [(b"content-type", b"Application/octet-stream"), (b"metadata", metadata), (b"server", b"x")]
    described = packed_headers(Answer.EMBEDDINGS, headers if metadata else headers[:1])
    assert described == (headers[:2] if metadata else headers[:1])
    assert read_packed(Answer.EMBEDDINGS, described, b"") == Sized(ok=True)
    assert read_packed(Answer.EMBEDDINGS, [(b"metadata", b'{"usage":{}}')], b"").usage_invalid == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer.EMBEDDINGS, b"application/json"),
        (Answer.POOLING, b"application/json"),
        (Answer.CHAT, b"application/octet-stream"),
        (Answer.CLASSIFY, b"application/octet-stream"),
        (Answer.EMBEDDINGS, None),
    ],
)
def test_all_else_is_json(answer: Answer, kind: bytes | None) -> None:
    assert packed_headers(answer, [(b"content-type", kind)] if kind else []) is None


# -- the usual answer, read at a third of the cost

GOOD = json.dumps({
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m1",
    "choices": [{"index": 0, "message": {"content": 'he"llo\n'}, "finish_reason": "stop", "stop_reason": 1.5e3}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}},
    "more": {"a": [1, True, None, "x"]},
}).encode()  # fmt: skip


def test_usual_answers_are_read_as_any_other() -> None:
    usual = 0
    for directory in (captures.VLLM, captures.VLLM_APIS):
        for name, entry in captures.index(directory).items():
            kind = next((kind for kind in ("chat", "completions") if name.startswith(kind)), None)
            response = captures.load(name, directory).response if kind and entry["status"] == 200 else None
            if response is None or response.content_type != "application/json":
                continue
            read = read_usual(KINDS[kind], response.body)
            usual += read is not None
            assert read in (None, read_any(KINDS[kind], response.body)), name
    assert usual > 5


@settings(max_examples=2_000, deadline=None)
@given(st.randoms())
def test_what_is_read_as_usual_is_what_anybody_would_read(rng: random.Random) -> None:
    body = bytearray(GOOD)
    for _ in range(rng.randint(0, 2)):
        at, new = rng.randrange(len(body)), rng.choice(b'{}[]",:\\0123456789eE+-.tfnul \n\x01\x7f\xff')
        body[at : at + rng.randint(0, 1)] = bytes([new])[: rng.randint(0, 1)]
    assert read_usual(Answer.CHAT, bytes(body)) in (None, read_any(Answer.CHAT, bytes(body)))


@pytest.mark.parametrize("odd", [
    {"object": "error"}, {"type": "error"}, {"error": {"message": "x"}}, {"detail": "x"}, {"model": "日本"},
    {"usage": {"prompt_tokens": 1, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}},
    {"usage": {"prompt_tokens": 1, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 6}}},
    {"usage": {"prompt_tokens": True, "completion_tokens": 5}}, {"usage": None},
    {"choices": [{"message": {}, "finish_reason": None}]}, {"choices": [{"finish_reason": "stop"}]},
])  # fmt: skip
def test_what_is_not_usual_is_left_to_the_other_reader(odd: dict[str, Any]) -> None:
    body = json.dumps(json.loads(GOOD) | odd, ensure_ascii=False).encode()
    assert read_usual(Answer.CHAT, GOOD) == read_any(Answer.CHAT, GOOD)
    assert read_usual(Answer.CHAT, body) is None
    assert read_sized(Answer.CHAT, body) == read_any(Answer.CHAT, body)


@pytest.mark.parametrize(
    "more", [{}, {"error": {"code": "server_error", "message": "no"}, "status": "failed"}]
)
def test_a_kept_response_has_been_counted_before(more: dict[str, Any]) -> None:
    body = captures.load("responses", captures.VLLM_APIS).response.body
    value = json.loads(body) | more
    assert value["usage"]["output_tokens"] > 0
    answer = read_sized(Answer.KEPT, json.dumps(value).encode())
    assert (answer.ok, answer.usage.prompt_tokens, answer.usage.completion_tokens) == (True, 0, 0)
    assert answer.finish_reasons == ()


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"object":"error","message":"no"}', b"no JSON"])
def test_what_is_no_kept_response(body: bytes) -> None:
    assert not read_sized(Answer.KEPT, body).ok
