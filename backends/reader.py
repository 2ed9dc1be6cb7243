"""Read a stream as it passes: bytes → events → usage, finish reasons, errors; and hold back its end. Pure.

This is what all formats share; chunks.py, responses.py and messages.py say what an event means in each. The end of a
stream is all from the first event on that tells its final usage, or that says it is over: it leaves when the call's
record is written. What passes before it are the backend's bytes as they came.
"""

import abc
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from backends.counts import Reading, merged
from backends.dialects import ErrorShape
from backends.sse import BOM, EVENT_BYTES_MAX, Block, EventTooLarge, SseScanner
from metering.usage import UNKNOWN

HOLD_BYTES_MAX = 4 * 1024
"""An unfinished event is held this long at most: the usage event and [DONE] are shorter."""

CHOICES_MAX = 128
REASON_CHARACTERS_MAX = 32
"""Finish reasons stand in the record, which is bounded: of more choices, and of longer reasons, no more is kept."""


class StreamReader(abc.ABC):
    """Reads one stream; says which bytes may go to the client now.

    strip_usage: the client did not ask for the usage event; exactly that event is taken out, where there is one.

    committed: an event of the answer itself was seen. token: a content, reasoning or tool delta was seen.
    counted: how many of those, one for each choice. events: grows when an event arrives (a comment is none; a read
    that passes unread counts as one). usage: of each count the last one reported. usage_invalid, usage_clamped: how
    often something in it was no count, or was cut to size. finish_reasons: in the order of the choices' index.
    done: the event that ends the stream was seen. error: the first error event; its bytes and all after it are not
    passed. too_large: it stands for an event above event_bytes_max. torn: a part of an event that has not ended is
    with the client. mended: of "usage_removed", "after_done_dropped", "blank_line_added", "half_event_dropped",
    "empty_event_dropped", "done_added".
    """

    __slots__ = (
        "_end", "_finish", "_half_out", "_holding", "_plain", "_scanner", "_sent", "_skimmed", "_strip_usage",
        "_usage_at_finish",
        "committed", "counted", "done", "error", "events", "finish_reasons", "mended", "token", "too_large", "usage",
        "usage_clamped", "usage_invalid",
    )  # fmt: skip

    closing_event: bytes | None = None
    """What a stream that has finished ends with; None: nothing can be put there in the backend's place."""

    def __init__(self, *, strip_usage: bool, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.committed = False
        self.token = False
        self.counted = 0
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
        self._usage_at_finish = False  # the last usage came with a finish reason, or after one
        self._end: list[bytes] = []  # held for the end
        self._holding = False
        self._half_out = False  # a part of the event that is being read has gone to the client
        self._sent = 0  # bytes of the unfinished event that have gone to the client
        self._plain = False  # committed, a token seen, nothing held, at an event's boundary
        self._skimmed: tuple[bytes, int, int] | None = None  # a read not passed: where it stopped, its tokens

    @property
    def torn(self) -> bool:
        return self._sent > 0

    @property
    def end(self) -> bytes:
        """The held end for the client; well formed once the stream is done or closed."""
        return b"".join(self._end)

    @property
    def sequence(self) -> int:
        """The number that the next event of the stream has, where its format numbers them; 0 elsewhere."""
        return 0

    @property
    def usage_final(self) -> bool:
        """`usage` is of the whole answer, as far as the backend tells it at all."""
        return self.done or self._usage_at_finish

    def feed(self, data: bytes) -> bytes:
        """Take what the backend sent; return what may go to the client now."""
        if self._plain:
            skimmed, self._skimmed = self._skimmed, None
            if skimmed is not None and skimmed[0] is data:
                _, at, tokens = skimmed
                self.counted += tokens
            else:
                at = self._skim(data, 0, len(data))
            if at == len(data):
                self.events += 1
                return data
            if at:
                self.events += 1
                return data[:at] + self._read(data[at:])
        return self._read(data)

    def passes(self, data: bytes, at: int, upto: int) -> bool:
        """Is data[at:upto] nothing but tokens that may go to the client now, as `feed` would say?

        True: it has been taken in, but for `events`, which nobody reads until something else comes.
        """
        if not self._plain:
            return False
        counted = self.counted
        reached = self._skim(data, at, upto)
        if reached == upto:
            return True
        if upto == len(data):
            self._skimmed = data, reached, self.counted - counted  # `feed` is next, and goes on from there
        self.counted = counted
        return False

    def close(self) -> None:
        """The backend's body ended cleanly: complete what lacks its end. What is still to go is in `end`.

        With no finish reason and no event that ends it it is no answer, and `end` is not for the client: `torn`
        stays as it was.
        """
        self._plain = False
        sent = self._sent
        block = None if self.done or self.error is not None else self._scanner.close()
        if block is not None:
            self._take_last(block)
        if self._finish and not self.done and self.error is None and self.closing_event is not None:
            self._end.append(self.closing_event)
            self._mend("done_added")
            self.done = True
        if not self.done:
            self._sent = sent

    # -- what a format says

    @abc.abstractmethod
    def _skim(self, data: bytes, at: int, upto: int) -> int:
        """Pass over whole events of data[at:upto] that hold tokens and nothing else that is acted on, and count them.

        returns: where the first one stands that must be read. Called at an event's boundary, after the first token.
        """

    @abc.abstractmethod
    def _take_event(self, data: bytes, raw: bytes, out: list[bytes]) -> None:
        """Read an event, and send its bytes where they belong: `_pass`, `_keep` or `_hold`.

        raw: the rest of it that has not gone out; `_half_out`: a part has.
        """

    def _readable(self, data: bytes) -> bool:
        """Is this the data of a whole event?"""
        return isinstance(decoded(data), dict)

    def _pass(self, raw: bytes, out: list[bytes]) -> None:
        """More of the answer: what was held was not its end."""
        out += self._end
        self._end.clear()
        self._holding = False
        out.append(raw)

    def _keep(self, raw: bytes, out: list[bytes]) -> None:
        """Something beside the answer: it stays in its place."""
        (self._end if self._holding else out).append(raw)

    def _hold(self, raw: bytes) -> None:
        """The end begins."""
        self._holding = True
        self._end.append(raw)

    def _note_usage(self, reading: Reading) -> None:
        self.usage = merged(self.usage, reading.usage)
        self.usage_invalid += reading.invalid
        self.usage_clamped += reading.clamped
        self._usage_at_finish = bool(self._finish)

    def _note_tokens(self, tokens: int) -> None:
        self.counted += tokens
        self.token = self.token or tokens > 0

    def _note_finish(self, index: int, reason: str) -> None:
        if index in self._finish or len(self._finish) < CHOICES_MAX:
            self._finish[index] = reason[:REASON_CHARACTERS_MAX]
            self.finish_reasons = tuple(self._finish[index] for index in sorted(self._finish))

    def _mend(self, what: str) -> None:
        if what not in self.mended:
            self.mended += (what,)

    # -- blocks

    def _read(self, data: bytes) -> bytes:
        """Read the events of `data`, but for those that can be passed over once an event cut in two has ended."""
        out: list[bytes] = []
        at = 0
        while at < len(data):
            if self.done:
                self._drop(data[at:])
                break
            if self.error is not None:
                break
            upto = len(data) if self._holding else self._one_event(data, at)
            self._take_bytes(data[at:upto] if at or upto < len(data) else data, out)
            at = upto
            if self._plain and at < len(data):
                skimmed = self._skim(data, at, len(data))
                if skimmed > at:
                    self.events += 1
                    out.append(data[at:skimmed])
                at = skimmed
        return b"".join(out)

    def _one_event(self, data: bytes, at: int) -> int:
        """Where the first event ends, by the line ends that nearly all servers use."""
        end = data.find(b"\n\n", at)
        return end + 2 if end >= 0 else len(data)

    def _take_bytes(self, data: bytes, out: list[bytes]) -> None:
        try:
            blocks = self._scanner.feed(data)
        except EventTooLarge:
            self.too_large = True
            self.error = ErrorShape(
                message="an event of the model's server is too large", type="event_too_large"
            )
            return
        self._take_all(blocks, out)
        self._pass_long_tail(out)
        self._plain = (
            self.token and not (self._holding or self._scanner.pending or self.done) and self.error is None
        )

    def _take_all(self, blocks: Iterable[Block], out: list[bytes]) -> None:
        for block in blocks:
            if self.done:
                self._drop(block.raw)
            elif self.error is None:
                self._take(block, out)
        if self.done and self._scanner.pending:
            self._drop(self._scanner.tail(0))

    def _take(self, block: Block, out: list[bytes]) -> None:
        raw, self._half_out = block.raw[self._sent :], self._sent > 0
        self._sent = 0
        if not block.data:
            if self._half_out or _is_comment(raw):
                self._keep(raw, out)
            else:
                self._mend("empty_event_dropped")
        else:
            self.events += 1
            self._take_event(block.data, raw, out)

    def _take_last(self, block: Block) -> None:
        """The last event may lack its blank line; half of one is dropped, if none of it has gone out."""
        if not block.whole:
            if block.data and not self._sent and not self._readable(block.data):
                self._mend("half_event_dropped")
                return
            missing = b"\n" if block.raw.endswith(b"\n") else b"\n\n"
            block = Block(block.raw + missing, block.data)
            self._mend("blank_line_added")
        out: list[bytes] = []
        self._take(block, out)
        self._end[:0] = out

    def _pass_long_tail(self, out: list[bytes]) -> None:
        """An unfinished event too long to be part of the end goes on as it comes; an error is held whole."""
        pending = self._scanner.pending
        if pending <= HOLD_BYTES_MAX or self._holding or self.done or self.error is not None:
            return
        if self._sent or b'"error"' not in self._scanner.tail(0, HOLD_BYTES_MAX):
            out.append(self._scanner.tail(self._sent))
            self._sent = pending

    def _drop(self, data: bytes) -> None:
        if data.strip(b"\r\n"):
            self._mend("after_done_dropped")


def _is_comment(raw: bytes) -> bool:
    """Is there nothing in this block but comments?

    An event without data is none by the text, and clients of today take it for one all the same: openai-python
    decodes it, and fails.
    """
    return all(line.startswith(b":") for line in raw.removeprefix(BOM).splitlines() if line)


def decoded(data: bytes) -> Any:
    """Decode JSON, with the non-finite numbers that some servers write in logprobs; None: it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
