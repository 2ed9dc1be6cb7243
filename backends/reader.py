"""Read an answer as it passes: bytes → events → usage, finish reasons, errors; and hold back its end. Pure.

The end of a stream is all from the first usage event (`choices: []` and a usage that is not null) or `[DONE]`
on: it leaves when the call's record is written. What passes before it are the backend's bytes as they came.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from backends import dialects
from backends.dialects import ErrorShape
from backends.sse import EVENT_BYTES_MAX, Block, EventTooLarge, SseScanner
from metering.usage import UNKNOWN, Usage, UsageSource

HOLD_BYTES_MAX = 4 * 1024
"""An unfinished event is held this long at most: the usage event and [DONE] are shorter."""

COUNT_MAX = 10**9
"""A larger token count is no count: no model has such a context, and one lying backend must not fill a ledger."""

CHOICES_MAX = 128
REASON_CHARACTERS_MAX = 16
"""Finish reasons stand in the record, which is bounded: of more choices, and of longer reasons, no more is kept."""

ANSWER_PART = {"chat": "message", "completions": "text"}
"""Operation → what each choice of a sized answer holds."""

_DONE = b"[DONE]"
_DONE_EVENT = b"data: [DONE]\n\n"


class _Delta(msgspec.Struct):
    content: str | None = None
    function_call: msgspec.Raw | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None

    def token(self) -> bool:
        return bool(
            self.content
            or self.reasoning_content
            or self.reasoning
            or self.tool_calls
            or self.refusal
            or self.function_call is not None
        )


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None
    index: int = 0
    text: str | None = None

    def token(self) -> bool:
        return bool(self.text) or (self.delta is not None and self.delta.token())


class _Chunk(msgspec.Struct):
    """The few fields of a chunk that are read. choices: None where absent or null."""

    choices: list[_Choice] | None = None
    error: Any = None
    object: Any = None
    usage: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A usage object as read. clamped: a part was larger than its whole and was cut to it."""

    usage: Usage
    clamped: bool = False


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """A sized answer as read. ok: it is an answer, not an error nor something else."""

    ok: bool
    usage: Usage = UNKNOWN
    usage_invalid: int = 0
    usage_clamped: int = 0
    finish_reasons: tuple[str, ...] = ()
    error: ErrorShape | None = None


class StreamReader:
    """Reads one stream of chat or text completion chunks; says which bytes may go to the client now.

    strip_usage: the client did not ask for the usage event; exactly that event is taken out.

    committed: an event with non-empty `choices` was seen. token: a content, reasoning or tool delta was seen.
    events: grows when an event arrives (a comment is none; a read that passes unread counts as one).
    usage: the last valid one. usage_invalid, usage_clamped: how many were no usage, or were cut to size.
    finish_reasons: in the order of the choices' index. done: [DONE] was seen. error: the first error event;
    its bytes and all after it are not passed. too_large: it stands for an event above event_bytes_max.
    torn: a part of an event that has not ended is with the client.
    mended: of "usage_removed", "after_done_dropped", "blank_line_added", "half_event_dropped", "done_added".
    """

    __slots__ = (
        "_end", "_finish", "_holding", "_plain", "_scanner", "_sent", "_strip_usage", "committed", "done",
        "error", "events", "finish_reasons", "mended", "token", "too_large", "usage", "usage_clamped", "usage_invalid",
    )  # fmt: skip

    def __init__(self, *, strip_usage: bool, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.committed = False
        self.token = False
        self.events = 0
        self.usage = UNKNOWN
        self.usage_invalid = 0
        self.usage_clamped = 0
        self.done = False
        self.error: ErrorShape | None = None
        self.too_large = False
        self.finish_reasons: tuple[str, ...] = ()
        self.mended: tuple[str, ...] = ()
        self._strip_usage = strip_usage
        self._scanner = SseScanner(event_bytes_max)
        self._finish: dict[int, str] = {}
        self._end: list[bytes] = []  # held for the end
        self._holding = False
        self._sent = 0  # bytes of the unfinished event that have gone to the client
        self._plain = False  # committed, a token seen, nothing held, at an event's boundary

    @property
    def torn(self) -> bool:
        return self._sent > 0

    @property
    def end(self) -> bytes:
        """The held end for the client; well formed once the stream is done or closed."""
        return b"".join(self._end)

    def feed(self, data: bytes) -> bytes:
        """Take what the backend sent; return what may go to the client now."""
        if self._plain and _passes_unread(data):
            self.events += 1
            return data
        if self.done:
            self._drop(data)
            return b""
        if self.error is not None:
            return b""
        out: list[bytes] = []
        try:
            blocks = self._scanner.feed(data)
        except EventTooLarge:
            self.too_large = True
            self.error = ErrorShape(
                message="an event of the model's server is too large", type="event_too_large"
            )
            return b""
        self._take_all(blocks, out)
        self._pass_long_tail(out)
        self._plain = (
            self.token and not (self._holding or self._scanner.pending or self.done) and self.error is None
        )
        return b"".join(out)

    def close(self) -> None:
        """The backend's body ended cleanly: complete what lacks its end. What is still to go is in `end`.

        With no finish reason and no [DONE] it is no answer, and `end` is not for the client: `torn` stays as it was.
        """
        self._plain = False
        sent = self._sent
        block = None if self.done or self.error is not None else self._scanner.close()
        if block is not None:
            self._take_last(block)
        if self._finish and not self.done and self.error is None:
            self._end.append(_DONE_EVENT)
            self._mend("done_added")
            self.done = True
        if not self.done:
            self._sent = sent

    def _take_all(self, blocks: Iterable[Block], out: list[bytes]) -> None:
        for block in blocks:
            if self.done:
                self._drop(block.raw)
            elif self.error is None:
                self._take(block, out)
        if self.done and self._scanner.pending:
            self._drop(self._scanner.tail(0))

    def _take_last(self, block: Block) -> None:
        """The last event may lack its blank line; half of one is dropped, if none of it has gone out."""
        if not block.whole:
            if (
                block.data
                and not self._sent
                and block.data.strip() != _DONE
                and _chunk_of(block.data) is None
            ):
                self._mend("half_event_dropped")
                return
            missing = b"\n" if block.raw.endswith(b"\n") else b"\n\n"
            block = Block(block.raw + missing, block.data)
            self._mend("blank_line_added")
        out: list[bytes] = []
        self._take(block, out)
        self._end[:0] = out

    def _take(self, block: Block, out: list[bytes]) -> None:
        raw, torn = block.raw[self._sent :], self._sent > 0
        self._sent = 0
        if not block.data:
            self._keep(raw, out)
        elif block.data.strip() == _DONE:
            self.events += 1
            self.done = True
            self._end.append(raw)
        else:
            self.events += 1
            self._take_event(block.data, raw, torn, out)

    def _take_event(self, data: bytes, raw: bytes, torn: bool, out: list[bytes]) -> None:
        chunk = _chunk_of(data)
        if chunk is None:  # no JSON, or no object: not ours to judge
            self._keep(raw, out)
            return
        self.error = _error_of(chunk, data)
        if self.error is not None:
            return
        if chunk.usage is not None:
            self._note_usage(chunk.usage)
        if chunk.choices:
            self._note_choices(chunk.choices)
            out += self._end  # more of the answer: what was held was not its end
            self._end.clear()
            self._holding = False
            out.append(raw)
        elif chunk.choices is None or chunk.usage is None:
            self._keep(raw, out)
        else:
            self._holding = True
            if self._strip_usage and not torn:
                self._mend("usage_removed")
            else:
                self._end.append(raw)

    def _keep(self, raw: bytes, out: list[bytes]) -> None:
        (self._end if self._holding else out).append(raw)

    def _note_usage(self, value: Any) -> None:
        reading = read_usage(value)
        if reading is None:
            self.usage_invalid += 1
        else:
            self.usage = reading.usage
            self.usage_clamped += reading.clamped

    def _note_choices(self, choices: list[_Choice]) -> None:
        self.committed = True
        for choice in choices:
            if choice.finish_reason and (choice.index in self._finish or len(self._finish) < CHOICES_MAX):
                self._finish[choice.index] = choice.finish_reason[:REASON_CHARACTERS_MAX]
                self.finish_reasons = tuple(self._finish[index] for index in sorted(self._finish))
            self.token = self.token or choice.token()

    def _pass_long_tail(self, out: list[bytes]) -> None:
        """An unfinished event too long to be part of the end goes on as it comes; an error is held whole."""
        pending = self._scanner.pending
        if pending <= HOLD_BYTES_MAX or self._holding or self.done or self.error is not None:
            return
        if self._sent or b'"error"' not in self._scanner.tail(0, HOLD_BYTES_MAX):
            out.append(self._scanner.tail(self._sent))
            self._sent = pending

    def _mend(self, what: str) -> None:
        if what not in self.mended:
            self.mended += (what,)

    def _drop(self, data: bytes) -> None:
        if data.strip(b"\r\n"):
            self._mend("after_done_dropped")


def read_sized(operation: str, body: bytes) -> Sized:
    """Read a whole answer: a JSON object with choices, each with the part that `operation` is asked for."""
    value = _json(body)
    if not isinstance(value, dict):
        return Sized(ok=False)
    error = dialects.error_in(value)
    choices = value.get("choices")
    part = ANSWER_PART[operation]
    if error is not None or not isinstance(choices, list):
        return Sized(ok=False, error=error)
    if not all(isinstance(choice, dict) and part in choice for choice in choices):
        return Sized(ok=False)
    reasons = [reason for choice in choices if isinstance(reason := choice.get("finish_reason"), str)]
    usage = value.get("usage")
    reading = read_usage(usage) if usage is not None else None
    return Sized(
        ok=True,
        usage=reading.usage if reading else UNKNOWN,
        usage_invalid=int(usage is not None and reading is None),
        usage_clamped=int(reading is not None and reading.clamped),
        finish_reasons=tuple(reason[:REASON_CHARACTERS_MAX] for reason in reasons[:CHOICES_MAX]),
    )


def read_usage(value: Any) -> Reading | None:
    """A decoded usage object as `Usage`; None: it is none, for a count in it is no count.

    total_tokens is not read: the bill is made from its parts. Null and absent counts are unknown.
    """
    if not isinstance(value, dict):
        return None
    prompt = value.get("prompt_tokens")
    completion = value.get("completion_tokens")
    cached = _detail(value.get("prompt_tokens_details"), "cached_tokens")
    reasoning = _detail(value.get("completion_tokens_details"), "reasoning_tokens")
    if prompt is completion is None or not all(map(_is_count, (prompt, completion, cached, reasoning))):
        return None
    cached, cached_clamped = _part_of(cached, prompt)
    reasoning, reasoning_clamped = _part_of(reasoning, completion)
    usage = Usage(
        cached_prompt_tokens=cached,
        completion_tokens=completion,
        prompt_tokens=prompt,
        reasoning_tokens=reasoning,
        source=UsageSource.REPORTED,
    )
    return Reading(usage=usage, clamped=cached_clamped or reasoning_clamped)


def _detail(details: Any, name: str) -> Any:
    return details.get(name) if isinstance(details, dict) else None


def _is_count(value: Any) -> bool:
    """None is unknown; True is an int to Python and no count to us."""
    return value is None or (type(value) is int and 0 <= value <= COUNT_MAX)


def _part_of(part: int | None, whole: int | None) -> tuple[int | None, bool]:
    if part is None or whole is None:
        return None, False
    return min(part, whole), part > whole


def _passes_unread(data: bytes) -> bool:
    """Whole events with nothing in them that the reader acts on.

    A key is found however its value is spaced; one spelt with JSON escapes is not, and no server writes so.
    """
    return (
        data.endswith(b"\n\n")
        and data.startswith(b"data:")
        and (data.rfind(b'"usage"') < 0 or data.count(b'"usage"') == data.count(b'"usage":null'))
        and data.rfind(_DONE) < 0
        and data.rfind(b'"error"') < 0
        and data.count(b'"finish_reason"') == data.count(b'"finish_reason":null')
    )


def _chunk_of(data: bytes) -> _Chunk | None:
    """Decode one event; None: it is no JSON, or no object."""
    try:
        return _decode_chunk(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = _json(data)
    return _lenient_chunk(value) if isinstance(value, dict) else None


def _error_of(chunk: _Chunk, data: bytes) -> ErrorShape | None:
    """The error an event carries, whatever else it carries."""
    if chunk.error or chunk.error == {} or chunk.object == "error":
        return dialects.error_in(_json(data))
    return None


def _lenient_chunk(value: dict[str, Any]) -> _Chunk:
    """What can be read of a chunk with values of unexpected types."""
    choices = value.get("choices")
    return _Chunk(
        choices=[_lenient_choice(choice) for choice in choices] if isinstance(choices, list) else None,
        error=value.get("error"),
        object=value.get("object"),
        usage=value.get("usage"),
    )


def _lenient_choice(value: Any) -> _Choice:
    fields = value if isinstance(value, dict) else {}
    reason, index, delta = fields.get("finish_reason"), fields.get("index"), fields.get("delta")
    spoken = [delta.get(name) for name in _Delta.__struct_fields__] if isinstance(delta, dict) else []
    return _Choice(
        finish_reason=reason if isinstance(reason, str) else None,
        index=index if type(index) is int else 0,
        text="…" if fields.get("text") or any(spoken) else None,
    )


def _json(data: bytes) -> Any:
    """Decode JSON, with the non-finite numbers that some servers write in logprobs; None: it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
