"""The events of a transcript: chat's chunks, and a finish that may come more than once. Pure.

Audio is heard in windows (Whisper's are 30 s), each an answer of its own with a finish reason, one behind the other in
one stream. So no finish reason says that the stream has finished: only its usage event, or [DONE], does.
Source: vllm/entrypoints/speech_to_text/base/serving.py, 0.32.
"""

from backends.chunks import ChunkReader
from backends.sse import EVENT_BYTES_MAX


class TranscriptReader(ChunkReader):
    """Reads the chunks of one transcript. finish_reasons: the last window's, once there can be no other."""

    __slots__ = ("_window",)

    def __init__(self, *, strip_usage: bool, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        super().__init__(strip_usage=strip_usage, event_bytes_max=event_bytes_max)
        self._window: str | None = None

    def _note_finish(self, _index: int, reason: str) -> None:
        self._window = reason

    def _take_event(self, data: bytes, raw: bytes, out: list[bytes]) -> None:
        super()._take_event(data, raw, out)
        if (self._holding or self.done) and self._window is not None:
            super()._note_finish(0, self._window)
            self._usage_at_finish = self._holding
