"""Faults that a test asks for, and which call has which. Pure.

    kind       what the call's client sees
    die        the connection closes
    reset      the same with a TCP reset
    stall      nothing more, until the client leaves; the seat stays taken
    error_500  status 500; in a stream that has begun, what vLLM has for it: an error event and [DONE]; of messages,
               an error event; one of responses breaks off
    garbage    status 200 and bytes that are no answer, ended as an answer is
    slow_head  the answer begins `delay_ms` late, and is whole
    busy_429   status 429 at once; `Retry-After: <retry_after_s>` if that is given
    busy_503   the same with status 503

`after_events` says when: left out, before any byte of the answer; k ≥ 0, after the head and k events (for
an answer that is no stream: after the head and half of the body). It has no meaning for the last three.
"""

import enum
from collections import deque

import msgspec


class Kind(enum.StrEnum):
    DIE = "die"
    STALL = "stall"
    ERROR_500 = "error_500"
    RESET = "reset"
    GARBAGE = "garbage"
    SLOW_HEAD = "slow_head"
    BUSY_429 = "busy_429"
    BUSY_503 = "busy_503"


BUSY_STATUS = {Kind.BUSY_429: 429, Kind.BUSY_503: 503}

GARBAGE = b'\x89\x00\xfe<html>502 Bad Gateway</html>\r\n\x1b[0m{"id": \xff\xfe'
"""No JSON and no UTF-8; in a stream it is the data of an event, and a line that is no field."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /_sim/fault`. times: how many of the next calls it befalls."""

    kind: Kind
    after_events: int | None = None
    times: int = 1
    delay_ms: int = 1_000
    retry_after_s: int | None = None

    def __post_init__(self) -> None:
        if self.after_events is not None and self.after_events < 0:
            raise ValueError("after_events is 0 or more")
        if not 1 <= self.times <= 1_000_000:
            raise ValueError("times is from 1 to 1000000")
        if not 0 <= self.delay_ms <= 3_600_000:
            raise ValueError("delay_ms is from 0 to 3600000")
        if self.retry_after_s is not None and self.retry_after_s < 0:
            raise ValueError("retry_after_s is 0 or more")

    @property
    def strikes(self) -> bool:
        """It ends an answer that was under way; the others only put it off, or refuse it at once."""
        return self.kind is not Kind.SLOW_HEAD and self.kind not in BUSY_STATUS

    @property
    def before_head(self) -> bool:
        return self.strikes and self.after_events is None


class Faults:
    """Faults that wait for a call, first in, first out."""

    def __init__(self) -> None:
        self._waiting: deque[Fault] = deque()

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def next(self) -> Fault | None:
        """The fault of the next call; None: it goes well."""
        if not self._waiting:
            return None
        fault = self._waiting.popleft()
        if fault.times > 1:
            self._waiting.appendleft(msgspec.structs.replace(fault, times=fault.times - 1))
        return fault

    def clear(self) -> None:
        self._waiting.clear()
