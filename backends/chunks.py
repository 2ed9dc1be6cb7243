"""The events of chat and text completions: `data: {"choices": …}`, and at last `data: [DONE]`. Pure.

The end begins with the usage event (`choices: []` and a usage that is not null) or with [DONE].

Most events of a stream differ in one string only. Once one of them has been read, the bytes before and behind that
string are a pattern: an event made of them and of another string says nothing new but one more token.
"""

import re
from typing import Any, NamedTuple

import msgspec

from backends import counts, dialects
from backends.dialects import ErrorShape
from backends.reader import StreamReader, decoded
from backends.sse import EVENT_BYTES_MAX

PATTERNS_MAX = 4
"""Streams of several choices, or of reasoning and then content, have more than one pattern."""

_LESSONS_MAX = 8
"""How many events of a stream are looked at for patterns: one that has none costs no more than that."""

_DONE = b"[DONE]"
_BACKSLASH = ord("\\")


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

    def one_token(self) -> bool:
        """Is it a token of one choice, and nothing else?"""
        if self.usage is not None or self.error is not None or self.object == "error":
            return False
        choices = self.choices or ()
        return len(choices) == 1 and choices[0].finish_reason is None and choices[0].token()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _Pattern(NamedTuple):
    """What stands before and behind the string of an event that is one token; and between those of two."""

    before: bytes
    behind: bytes
    between: bytes
    before_length: int


class ChunkReader(StreamReader):
    """Reads the chunks of one stream. committed: an event with non-empty `choices` was seen."""

    __slots__ = ("_lessons", "_patterns")

    closing_event = b"data: [DONE]\n\n"

    def __init__(self, *, strip_usage: bool, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        super().__init__(strip_usage=strip_usage, event_bytes_max=event_bytes_max)
        self._patterns: tuple[_Pattern, ...] = ()
        self._lessons = 0

    def passes(self, data: bytes, at: int, upto: int) -> bool:
        """As the other readers', and at once if it is one event of the commonest pattern."""
        if self._plain and self._patterns:
            before, behind, _, before_length = self._patterns[0]
            start = at + before_length
            end = upto - len(behind)
            if (
                start < end
                and data.startswith(before, at)
                and data.find(b'"', start) == end
                and data[end - 1] != _BACKSLASH
                and data.startswith(behind, end)
            ):
                self.counted += 1
                return True
        return super().passes(data, at, upto)

    def _skim(self, data: bytes, at: int, upto: int) -> int:
        while at < upto:
            for before, behind, between, before_length in self._patterns:
                if not data.startswith(before, at):
                    continue
                start, last = at + before_length, upto - len(between)
                while True:  # a run of events of one pattern
                    end = data.find(b'"', start)
                    if data[end - 1] == _BACKSLASH:  # an escaped quote, or a backslash before the last one
                        end = _end_of_string(data, start)
                    if end <= start:
                        return start - before_length
                    if end <= last and data.startswith(between, end):
                        self.counted += 1
                        start = end + len(between)
                    elif data.startswith(behind, end):
                        self.counted += 1
                        at = end + len(behind)
                        break
                    else:
                        return start - before_length
                break
            else:
                break
        return at

    def _take_event(self, data: bytes, raw: bytes, out: list[bytes]) -> None:
        if data.strip() == _DONE:
            self.done = True
            self._end.append(raw)
            return
        chunk = _chunk_of(data)
        if chunk is None:  # no JSON, or no object: not ours to judge
            self._keep(raw, out)
            return
        self.error = _error_of(chunk, data)
        if self.error is not None:
            return
        if chunk.choices:
            self._note_choices(chunk.choices)
        if chunk.usage is not None:
            self._note_usage(counts.openai(chunk.usage))
        if chunk.choices:
            self._pass(raw, out)
            if self._lessons < _LESSONS_MAX and chunk.one_token():
                self._learn(raw, data)
        elif chunk.choices is None or chunk.usage is None:
            self._keep(raw, out)
        elif self._strip_usage and not self._half_out:
            self._holding = True
            self._mend("usage_removed")
        else:
            self._hold(raw)

    def _readable(self, data: bytes) -> bool:
        return data.strip() == _DONE or _chunk_of(data) is not None

    def _note_choices(self, choices: list[_Choice]) -> None:
        self.committed = True
        for choice in choices:
            if choice.finish_reason:
                self._note_finish(choice.index, choice.finish_reason)
            self._note_tokens(choice.token())

    def _learn(self, raw: bytes, data: bytes) -> None:
        """Keep the pattern of an event that is one token."""
        self._lessons += 1
        if len(self._patterns) < PATTERNS_MAX and len(raw) == len(data) + 8 and raw.endswith(b"\n\n"):
            pattern = _pattern_of(data)
            if pattern is not None and pattern not in self._patterns:
                self._patterns += (pattern,)


_SPOKEN = re.compile(rb'"(?:content|text|reasoning|reasoning_content|arguments)" ?: ?"')
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def _end_of_string(data: bytes, start: int) -> int:
    """Where the text of the string that begins at `start` ends."""
    rest = _REST_OF_STRING.match(data, start)
    assert rest is not None
    return rest.end()


def _pattern_of(data: bytes) -> _Pattern | None:
    """The pattern of a chunk that is one token: with another text in place of its own it is one token as well.

    Nothing else is read of what was spoken than whether it is empty, and an empty one is not of the pattern.
    """
    for key in _SPOKEN.finditer(data):
        start = key.end()
        end = _end_of_string(data, start)
        if end > start:
            before, behind = b"data: " + data[:start], data[end:] + b"\n\n"
            return _Pattern(before, behind, behind + before, len(before))
    return None


def _chunk_of(data: bytes) -> _Chunk | None:
    """Decode one event; None: it is no JSON, or no object."""
    try:
        return _decode_chunk(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = decoded(data)
    return _lenient_chunk(value) if isinstance(value, dict) else None


def _error_of(chunk: _Chunk, data: bytes) -> ErrorShape | None:
    """The error an event carries, whatever else it carries."""
    if chunk.error or chunk.error == {} or chunk.object == "error":
        return dialects.error_in(decoded(data))
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
