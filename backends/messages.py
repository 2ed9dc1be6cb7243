"""The events of Anthropic's Messages API: a message's start, its content blocks, its delta, its stop. Pure.

`message_start` tells the prompt's tokens, `message_delta` the answer's and why it ended; each count's last value
holds. The end begins with the `message_delta` that has a stop reason.
"""

from typing import Any

import msgspec

from backends import counts, dialects
from backends.reader import StreamReader, decoded

_DELTA = b"event: content_block_delta\ndata: {"
_NOTHING, _SIGNATURE = b':""', b"signature"
"""What an event that may hold no token has in it."""

_SPOKEN = ("text", "partial_json", "thinking")


class _Event(msgspec.Struct):
    content_block: Any = None
    delta: Any = None
    error: Any = None
    message: Any = None
    type: str = ""
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class MessagesReader(StreamReader):
    """Reads the events of one message."""

    __slots__ = ()

    closing_event = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    @property
    def usage_final(self) -> bool:
        """The zero of `message_start` is a count so far, also where nothing but the stop follows."""
        return self._usage_at_finish

    def _skim(self, data: bytes, at: int, upto: int) -> int:
        """An event that is called a delta holds one."""
        while data.startswith(_DELTA, at):
            end = data.find(b"\n\n", at, upto)
            if end < 0 or data.find(_NOTHING, at, end) >= 0 or data.find(_SIGNATURE, at, end) >= 0:
                break
            self.counted += 1
            at = end + 2
        return at

    def _take_event(self, data: bytes, raw: bytes, out: list[bytes]) -> None:
        try:
            event = _decode_event(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            event = _lenient_event(decoded(data))
        match event.type:
            case "message_start":
                self.committed = True
                self._note_usage_of(event.message)
                self._pass(raw, out)
            case "content_block_start" | "content_block_delta":
                self.committed = True
                self._note_tokens(_is_token(event))
                self._pass(raw, out)
            case "message_delta":
                self._take_message_delta(event, raw, out)
            case "message_stop":
                self.done = True
                self._hold(raw)
            case _ if event.type == "error" or event.error:
                self.error = dialects.error_in(decoded(data)) or dialects.UNREADABLE
            case _:
                self._keep(raw, out)

    def _take_message_delta(self, event: _Event, raw: bytes, out: list[bytes]) -> None:
        reason = _field(event.delta, "stop_reason")
        if isinstance(reason, str) and reason:
            self._note_finish(0, reason)
        self._note_usage_of({"usage": event.usage})
        if self._finish:
            self._hold(raw)
        else:
            self._keep(raw, out)

    def _note_usage_of(self, value: Any) -> None:
        usage = _field(value, "usage")
        if usage is not None:
            self._note_usage(counts.anthropic(usage))


def _is_token(event: _Event) -> bool:
    """A delta of text, thinking or a tool's input; or the beginning of a tool's use: it has the tool's name."""
    if event.type == "content_block_start":
        return bool(_field(event.content_block, "type") == "tool_use")
    return any(_field(event.delta, name) for name in _SPOKEN)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _lenient_event(value: Any) -> _Event:
    """What can be read of an event with values of unexpected types, or of none."""
    fields = value if isinstance(value, dict) else {}
    kind = fields.get("type")
    known = {name: fields.get(name) for name in _Event.__struct_fields__ if name != "type"}
    return _Event(**known, type=kind if isinstance(kind, str) else "")
