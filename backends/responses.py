"""The events of the Responses API: `event: response.…`, each with its `type`; the last one carries the response. Pure.

The end is `response.completed` (vLLM's, also of an answer that was cut) or `response.incomplete`. What comes before
the model has begun (`response.created` and the like) does not commit. A failed response is an error.
"""

import re
from typing import Any

import msgspec

from backends import counts, dialects
from backends.dialects import ErrorShape
from backends.reader import StreamReader, decoded
from backends.sse import EVENT_BYTES_MAX

_BEFORE_THE_ANSWER = frozenset({"response.created", "response.queued", "response.in_progress"})
_LAST = frozenset({"response.completed", "response.incomplete"})
_FAILED = frozenset({"error", "response.failed"})

_NUMBER = re.compile(rb'"sequence_number": ?(\d{1,15})\b')
"""Of an event. In the text of a delta its quotes would be escaped."""
_NAMED, _DELTA, _NOTHING = b"event: response.", b".delta\ndata: {", b'"delta":""'


class _Event(msgspec.Struct):
    delta: Any = None
    error: Any = None
    response: msgspec.Raw | None = None
    type: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode


class ResponsesReader(StreamReader):
    """Reads the events of one response. finish_reasons: its status, or why it is incomplete."""

    __slots__ = ("_latest", "_latest_end")

    def __init__(self, *, strip_usage: bool, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        super().__init__(strip_usage=strip_usage, event_bytes_max=event_bytes_max)
        self._latest, self._latest_end = b"", 0  # holds the latest event, and where that ends

    @property
    def sequence(self) -> int:
        numbers = _NUMBER.findall(self._latest, 0, self._latest_end)
        return int(numbers[-1]) + 1 if numbers else 0

    def _skim(self, data: bytes, at: int, upto: int) -> int:
        """An event that is called a delta holds one."""
        begin = at
        while data.startswith(_NAMED, at):
            end = data.find(b"\n\n", at, upto)
            if end < 0 or data.find(_DELTA, at, end) < 0 or data.find(_NOTHING, at, end) >= 0:
                break
            self.counted += 1
            at = end + 2
        if at > begin:
            self._latest, self._latest_end = data, at
        return at

    def _take_event(self, data: bytes, raw: bytes, out: list[bytes]) -> None:
        try:
            event = _decode_event(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            event = _lenient_event(decoded(data))
        if event.type in _FAILED or event.error:
            self.error = _error_of(event, data)
            return
        self._latest, self._latest_end = data, len(data)
        if event.type in _LAST:
            self._note_response(decoded(event.response or b""))
            self.committed = self.done = True
            self._hold(raw)
        elif event.type in _BEFORE_THE_ANSWER or not event.type.startswith("response."):
            self._keep(raw, out)
        else:
            self.committed = True
            self._note_tokens(event.type.endswith(".delta") and bool(event.delta))
            self._pass(raw, out)

    def _note_response(self, response: Any) -> None:
        if not isinstance(response, dict):
            return
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        for word in (reason, response.get("status")):
            if isinstance(word, str) and word:
                self._note_finish(0, word)
                break
        if response.get("usage") is not None:
            self._note_usage(counts.responses(response["usage"]))


def _lenient_event(value: Any) -> _Event:
    """What can be read of an event with values of unexpected types, or of none."""
    fields = value if isinstance(value, dict) else {}
    kind = fields.get("type")
    return _Event(
        delta=fields.get("delta"),
        error=fields.get("error"),
        response=msgspec.Raw(msgspec.json.encode(fields.get("response"))),
        type=kind if isinstance(kind, str) else "",
    )


def _error_of(event: _Event, data: bytes) -> ErrorShape:
    value = decoded(data)
    if event.type == "response.failed":
        value = decoded(event.response or b"")
    return dialects.error_in(value) or dialects.UNREADABLE
