"""Read a whole answer: is it one, what did it use, how did it end? Pure.

An answer is known by what its kind always has; an error that comes with the status 200, or a page of a proxy, is none.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from backends import counts, dialects
from backends.answers import Answer
from backends.counts import COUNT_MAX, Reading
from backends.dialects import ErrorShape
from backends.reader import CHOICES_MAX, REASON_CHARACTERS_MAX, decoded
from metering.usage import UNKNOWN, Usage, UsageSource

Fields = dict[str, Any]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class Sized(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sized answer as read. ok: it is an answer, not an error nor something else.

    text_bytes: how much text was generated, in UTF-8; only counted where the usage does not say how many tokens.
    """

    ok: bool
    usage: Usage = UNKNOWN
    usage_invalid: int = 0
    usage_clamped: int = 0
    finish_reasons: tuple[str, ...] = ()
    text_bytes: int = 0
    error: ErrorShape | None = None


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of answer. holds: has it what such an answer always has? reasons: why each choice ended.

    said: the parts that hold what was generated. used: its usage object. usage: how that is read.
    """

    holds: Callable[[Fields], bool]
    reasons: Callable[[Fields], list[Any]] = lambda _fields: []
    said: Callable[[Fields], Any] = lambda _fields: None
    used: Callable[[Fields], Any] = lambda fields: fields.get("usage")
    usage: Callable[[Any], Reading] = counts.pooled


def read_sized(answer: Answer, body: bytes) -> Sized:
    """Read a whole answer of this kind."""
    return read_usual(answer, body) or read_any(answer, body)


def read_any(answer: Answer, body: bytes) -> Sized:
    """Read it, whatever it is."""
    value = decoded(body)
    if not isinstance(value, dict):
        return Sized(ok=False)
    if answer is Answer.KEPT:
        return _read_kept(value)
    error = dialects.error_in(value)
    if error is not None:
        return Sized(ok=False, error=error)
    if (made := _TOKENIZED.get(answer)) is not None:
        held, number = made
        return Sized(ok=held in value, usage=counts.tokenized(value.get(number) if number else None))
    kind = _KINDS[answer]
    if not kind.holds(value):
        return Sized(ok=False)
    usage = kind.used(value)
    reading = Reading(usage=UNKNOWN) if usage is None else kind.usage(usage)
    reasons = [reason for reason in kind.reasons(value) if isinstance(reason, str) and reason]
    return Sized(
        ok=True,
        usage=reading.usage,
        usage_invalid=int(reading.invalid),
        usage_clamped=int(reading.clamped),
        finish_reasons=tuple(reason[:REASON_CHARACTERS_MAX] for reason in reasons[:CHOICES_MAX]),
        text_bytes=_text_bytes(kind.said(value)) if reading.usage.completion_tokens is None else 0,
    )


def _read_kept(value: Fields) -> Sized:
    """A response that was made before. One that failed holds its error, and is what was asked for all the same."""
    if value.get("object") == "response":
        return Sized(ok=True, usage=counts.tokenized(None))
    return Sized(ok=False, error=dialects.error_in(value))


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


_NO_DETAILS = _Details()


class _UsualUsage(msgspec.Struct, gc=False):
    completion_tokens: Count
    prompt_tokens: Count
    completion_tokens_details: _Details | None = None
    prompt_tokens_details: _Details | None = None


class _UsualChoice(msgspec.Struct, gc=False):
    finish_reason: Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_CHARACTERS_MAX)]


class _Said(_UsualChoice):
    message: Any


class _Text(_UsualChoice):
    text: Any


class _Usual(msgspec.Struct, gc=False):
    """What a good answer has, as nearly all have it; of what an error may have, nothing."""

    usage: _UsualUsage
    detail: None = None
    error: None = None
    object: str | None = None
    type: str | None = None


class _UsualChat(_Usual, kw_only=True):
    choices: Annotated[list[_Said], msgspec.Meta(max_length=CHOICES_MAX)]


class _UsualText(_Usual, kw_only=True):
    choices: Annotated[list[_Text], msgspec.Meta(max_length=CHOICES_MAX)]


_USUAL: dict[Answer, Callable[[bytes], _UsualChat | _UsualText]] = {
    Answer.CHAT: msgspec.json.Decoder(_UsualChat).decode,
    Answer.COMPLETIONS: msgspec.json.Decoder(_UsualText).decode,
}


def read_usual(answer: Answer, body: bytes) -> Sized | None:
    """The same as `read_any` at a third of its cost, for a chat's or a text's answer with nothing odd in it.

    None: it is another, or there is something. ASCII only: what is skipped is not checked to be UTF-8.
    """
    decode = _USUAL.get(answer)
    if decode is None or not body.isascii():
        return None
    try:
        read = decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    used = read.usage
    cached = (used.prompt_tokens_details or _NO_DETAILS).cached_tokens
    reasoning = (used.completion_tokens_details or _NO_DETAILS).reasoning_tokens
    if (cached or 0) > used.prompt_tokens or (reasoning or 0) > used.completion_tokens:
        return None
    if read.object == "error" or read.type == "error":
        return None
    usage = Usage(
        cached_prompt_tokens=cached,
        completion_tokens=used.completion_tokens,
        prompt_tokens=used.prompt_tokens,
        reasoning_tokens=reasoning,
        source=UsageSource.REPORTED,
    )
    return Sized(
        ok=True, usage=usage, finish_reasons=tuple([choice.finish_reason for choice in read.choices])
    )


Headers = Sequence[tuple[bytes, bytes]]

_NUMBERS = ("application/octet-stream",)
PACKABLE = {
    Answer.EMBEDDINGS: _NUMBERS,
    Answer.POOLING: _NUMBERS,
    Answer.TRANSCRIPT: ("text/plain", "text/vtt", "text/srt", "application/x-subrip"),
}
"""Answers that need not be JSON, by the media types that they then have.

Bare numbers (vLLM: `encoding_format` `bytes` and `bytes_only`); text and subtitles (OpenAI: `response_format` `text`,
`vtt` and `srt`).
"""

_PACKED = frozenset({b"content-type", b"metadata"})


def packed_headers(answer: Answer, headers: Headers) -> Headers | None:
    """What describes an answer that is no JSON.

    headers: of the answer, names in lower case. None: it is JSON, or should be.
    """
    kinds = PACKABLE.get(answer)
    if kinds is None:
        return None
    kind = dict(headers).get(b"content-type", b"").decode("latin-1")
    if not kind.lower().startswith(kinds):
        return None
    return [(name, value) for name, value in headers if name in _PACKED]


def read_packed(answer: Answer, headers: Headers, body: bytes) -> Sized:
    """Such an answer: its usage stands in the header `metadata`, or nowhere."""
    if answer is Answer.TRANSCRIPT:
        return Sized(ok=True, text_bytes=len(body))
    metadata = decoded(dict(headers).get(b"metadata", b""))
    usage = metadata.get("usage") if isinstance(metadata, dict) else None
    reading = Reading(usage=UNKNOWN) if usage is None else counts.pooled(usage)
    return Sized(ok=True, usage=reading.usage, usage_invalid=int(reading.invalid))


_TOKENIZED: dict[Answer, tuple[str, str | None]] = {
    Answer.TOKENS: ("tokens", "count"),
    Answer.TOKEN_COUNT: ("input_tokens", "input_tokens"),
    Answer.TEXT: ("prompt", None),
}
"""What such an answer always has, and where it says how many tokens there are."""


def _list_of(name: str, part: str) -> Callable[[Fields], bool]:
    """A list of objects, each with that part."""

    def holds(fields: Fields) -> bool:
        items = fields.get(name)
        return isinstance(items, list) and all(isinstance(item, dict) and part in item for item in items)

    return holds


_pooled = _list_of("data", "data")


def _made_by_plugin(fields: Fields) -> bool:
    """vLLM's IOProcessorResponse: `data` is whatever the plug-in likes, and there is no usage."""
    return "data" in fields and "created_at" in fields


def _of_choices(part: str) -> Callable[[Fields], list[Any]]:
    return lambda fields: [choice.get(part) for choice in fields["choices"]]


def _response_reasons(fields: Fields) -> list[Any]:
    details = fields.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return [reason or fields.get("status")]


def _heard(fields: Fields) -> Any:
    """A verbose transcript has no usage, but says how long the audio is."""
    if "usage" in fields or "duration" not in fields:
        return fields.get("usage")
    return {"type": "duration", "seconds": fields["duration"]}


_KINDS = {
    Answer.CHAT: _Kind(
        holds=_list_of("choices", "message"),
        reasons=_of_choices("finish_reason"),
        said=_of_choices("message"),
        usage=counts.openai,
    ),
    Answer.COMPLETIONS: _Kind(
        holds=_list_of("choices", "text"),
        reasons=_of_choices("finish_reason"),
        said=_of_choices("text"),
        usage=counts.openai,
    ),
    Answer.RESPONSES: _Kind(
        holds=_list_of("output", "type"),
        reasons=_response_reasons,
        said=lambda fields: fields["output"],
        usage=counts.responses,
    ),
    Answer.MESSAGES: _Kind(
        holds=_list_of("content", "type"),
        reasons=lambda fields: [fields.get("stop_reason")],
        said=lambda fields: fields["content"],
        usage=counts.anthropic,
    ),
    Answer.TRANSCRIPT: _Kind(
        holds=lambda fields: isinstance(fields.get("text"), str),
        said=lambda fields: fields["text"],
        used=_heard,
        usage=counts.transcribed,
    ),
    Answer.EMBEDDINGS: _Kind(holds=_list_of("data", "embedding")),
    Answer.SCORE: _Kind(holds=_list_of("data", "score")),
    Answer.RERANK: _Kind(holds=_list_of("results", "relevance_score")),
    Answer.POOLING: _Kind(holds=lambda fields: _pooled(fields) or _made_by_plugin(fields)),
    Answer.CLASSIFY: _Kind(holds=_list_of("data", "probs")),
}

_NOT_SAID = frozenset({"id", "role", "status", "type"})


def _text_bytes(value: Any) -> int:
    """Of all strings in it that a model may have written."""
    match value:
        case str():
            return len(value.encode("utf-8", "surrogatepass"))
        case list():
            return sum(map(_text_bytes, value))
        case dict():
            return sum(_text_bytes(part) for name, part in value.items() if name not in _NOT_SAID)
    return 0
