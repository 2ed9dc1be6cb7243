"""Cut a byte stream into the blocks of an SSE stream, however it was chunked. Pure.

The format is WHATWG HTML §9.2 (server-sent events): lines end in LF, CR or CRLF; a blank line ends an event;
lines that begin with a colon are comments; one leading byte order mark is ignored. The bytes of the blocks,
joined, are the bytes of the stream: the relay forwards them as they came, and this reads along beside it.
"""

import re
from typing import NamedTuple

EVENT_BYTES_MAX = 8 * 1024 * 1024
"""Unless told otherwise. A longer event is a fault of the backend: it has to be held whole to be read."""

BOM = b"\xef\xbb\xbf"
_CR = 13
"""As a number: that bytes hold it is seen in a fifth of the time."""

# A first line end is no CR that begins a CRLF; a last CR counts only once the next byte is known.
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")


class EventTooLarge(ValueError):
    """An event grew above its bound without an end."""


class Block(NamedTuple):
    """What stands between two blank lines.

    raw: its bytes as they came, its blank line included. data: its data lines joined by LF; None: it has
    none, as a comment. whole: False if the stream ended before its blank line came.
    """

    raw: bytes
    data: bytes | None
    whole: bool = True


class SseScanner:
    """Bytes in, blocks out. `pending`: length of the block that has not ended yet."""

    __slots__ = ("_event_bytes_max", "_has_cr", "_searched", "_started", "_tail", "pending")

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.pending = 0
        self._event_bytes_max = event_bytes_max
        self._tail = bytearray()
        self._searched = 0  # no blank line ends before this offset of the tail
        self._has_cr = False
        self._started = False

    def feed(self, chunk: bytes) -> list[Block]:
        """Take the next bytes of the stream; return the blocks they complete.

        A CR at the very end waits for the next byte: it may be half of CRLF.
        Raises EventTooLarge when the unfinished block is too long (blocks before it are returned first).
        """
        if not self._tail and self._is_one_event(chunk):
            return [Block(chunk, chunk[6:-2])]
        self._has_cr = self._has_cr or _CR in chunk
        buffer: bytes | bytearray = chunk
        if self._tail:
            self._tail += chunk
            buffer = self._tail
        blocks: list[Block] = []
        start, search = 0, self._searched
        while (end := self._block_end(buffer, start, search)) >= 0:
            raw = bytes(buffer[start:end])
            blocks.append(Block(raw, self._data(raw)))
            start = search = end
        if buffer is chunk:
            self._tail += chunk[start:]
        elif start:
            del self._tail[:start]
        self.pending = len(self._tail)
        self._searched = max(0, self.pending - 3)  # a blank line is at most CRLF CRLF
        if self.pending > self._event_bytes_max and not blocks:
            raise EventTooLarge
        return blocks

    def tail(self, start: int, end: int | None = None) -> bytes:
        """The bytes of the unfinished block between two offsets of it."""
        return bytes(self._tail[start:end])

    def close(self) -> Block | None:
        """The stream has ended: what is left of it, if anything, as one block."""
        raw = bytes(self._tail)
        self._tail.clear()
        self.pending = self._searched = 0
        if not raw:
            return None
        return Block(raw, self._data(raw), raw.endswith((b"\n\r", b"\r\r")) or raw == b"\r")

    def _is_one_event(self, chunk: bytes) -> bool:
        """Is this the usual event, whole and alone? Not before the first block, which may have a byte order mark."""
        return (
            chunk.find(b"\n") == len(chunk) - 2
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and self._started
            and not self._has_cr
            and _CR not in chunk
        )

    def _block_end(self, buffer: bytes | bytearray, start: int, search: int) -> int:
        """The offset behind the blank line that ends the block at `start`; -1: it has not come yet."""
        if self._has_cr:
            found = _LINE_END.match(buffer, start) or _BLANK_LINE.search(buffer, search)
            return found.end() if found else -1
        if buffer.startswith(b"\n", start):
            return start + 1
        end = buffer.find(b"\n\n", search)
        return end + 2 if end >= 0 else -1

    def _data(self, raw: bytes) -> bytes | None:
        if not self._started:
            self._started = True
            raw = raw.removeprefix(BOM)
        if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and not self._has_cr:
            return raw[6:-2]  # the usual one: a single line
        values = []
        for line in raw.splitlines():  # of bytes: at LF, CR and CRLF only
            name, _, value = line.partition(b":")
            if name == b"data":
                values.append(value.removeprefix(b" "))
        return b"\n".join(values) if values else None
