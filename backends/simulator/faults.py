"""Faults that a test asks for, and which call has which. Pure.

    kind       what the call's client sees
    die        the connection closes
    reset      the same with a TCP reset
    stall      nothing more, until the client leaves; the seat stays taken
    error_500  status 500; in a stream that has begun, an error event and [DONE]
    slow_head  the answer begins `delay_ms` late, and is whole

`after_events` says when: left out, before any byte of the answer; k ≥ 0, after the head and k events (for
an answer that is no stream: after the head and half of the body). It has no meaning for slow_head.
"""

import enum
from collections import deque

import msgspec


class Kind(enum.StrEnum):
    DIE = "die"
    STALL = "stall"
    ERROR_500 = "error_500"
    RESET = "reset"
    SLOW_HEAD = "slow_head"


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /_sim/fault`. times: how many of the next calls it befalls."""

    kind: Kind
    after_events: int | None = None
    times: int = 1
    delay_ms: int = 1_000

    def __post_init__(self) -> None:
        if self.after_events is not None and self.after_events < 0:
            raise ValueError("after_events is 0 or more")
        if not 1 <= self.times <= 1_000_000:
            raise ValueError("times is from 1 to 1000000")
        if not 0 <= self.delay_ms <= 3_600_000:
            raise ValueError("delay_ms is from 0 to 3600000")

    @property
    def before_head(self) -> bool:
        return self.after_events is None


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
