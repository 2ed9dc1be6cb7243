"""How long a client's connection may take over what it does, and how late the loop may be. Pure.

    IDLE ─▶ HEAD ─▶ BODY ─▶ ANSWER ─▶ IDLE …       a connection, as its client's bytes and our answers move it
                      ├───▶ REST ──────▲           answered before its body had come
                      └───▶ PARTING ─▶ closed      the same, and that was its last answer
    idle_s  head_s  body_s  body_s

A body has a second more for each body_bytes_per_s_min of it; an answer has no deadline here, the call has. A client
that is parted from has body_s in all, and linger_s between one piece and the next. What waits
to be sent must grow less at times: a client that takes nothing for write_stall_s is gone. A connection notes only
that it entered a phase; one sweep a second gives that a time, so no request reads a clock.
"""

import collections
import enum

import msgspec

from gateway.configuration.config import Bounds
from metering.units import NS_PER_S

ROUNDS = 10
"""How many rounds the loop's lag is remembered: a second, at ten a second."""


class Phase(enum.Enum):
    """What is expected of a client next."""

    IDLE = "idle"  # a request, or nothing
    HEAD = "head"  # the rest of a request's head
    BODY = "body"  # the rest of its body
    REST = "rest"  # the same, though it has its answer and nobody reads it
    PARTING = "parting"  # to leave: it has its last answer, and what it still sends is dropped
    ANSWER = "answer"  # to take its answer


_IDLE, _BODY, _REST, _ANSWER = Phase.IDLE, Phase.BODY, Phase.REST, Phase.ANSWER
"""For what each request passes: to find a member of an enumeration costs as much as to enter a phase."""


class Late(enum.Enum):
    """Which deadline a client has let pass."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    STALLED = "stalled"
    PARTED = "parted"


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """The deadlines of a connection."""

    idle_ns: int
    head_ns: int
    body_ns: int
    body_bytes_per_s_min: int
    linger_ns: int
    write_stall_ns: int

    @classmethod
    def of(cls, bounds: Bounds) -> "Patience":
        """As configured."""
        return cls(
            idle_ns=round(bounds.idle_s * NS_PER_S),
            head_ns=round(bounds.head_s * NS_PER_S),
            body_ns=round(bounds.body_s * NS_PER_S),
            body_bytes_per_s_min=bounds.body_bytes_per_s_min,
            linger_ns=round(bounds.linger_s * NS_PER_S),
            write_stall_ns=round(bounds.write_stall_s * NS_PER_S),
        )

    def body_time_ns(self, body_bytes: int) -> int:
        """How long a body may take of which so much has come."""
        return self.body_ns + body_bytes * NS_PER_S // self.body_bytes_per_s_min


class Watch:
    """What is known of one connection's pace.

    phase: where it is; phase_bytes: what came of its client since; turn: grows with each phase entered.
    """

    __slots__ = (
        "_heard_bytes",
        "_heard_ns",
        "_since_ns",
        "_turn_seen",
        "_unsent_bytes",
        "_unsent_since_ns",
        "phase",
        "phase_bytes",
        "turn",
    )

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.phase_bytes = 0
        self.turn = 1
        self._turn_seen = 0
        self._since_ns = 0
        self._heard_bytes = 0
        self._heard_ns = 0
        self._unsent_bytes = 0
        self._unsent_since_ns = 0

    def enter(self, phase: Phase) -> None:
        """The client's bytes brought it here."""
        self.phase = phase
        self.phase_bytes = 0
        self.turn += 1

    def answered(self) -> None:
        """The end of an answer has been handed out."""
        if self.phase is _ANSWER:  # as `enter` would, once a call
            self.phase = _IDLE
            self.phase_bytes = 0
            self.turn += 1
        elif self.phase is _BODY:
            self.enter(_REST)

    def heard_out(self) -> None:
        """The end of a request has come."""
        self.enter(_IDLE if self.phase is _REST else _ANSWER)

    def look(self, patience: Patience, now_ns: int, *, unsent_bytes: int, heard: bool) -> Late | None:
        """Look at it once more; has it let a deadline pass? A phase begins when it is first seen.

        now_ns: monotonic. unsent_bytes: what waits to be sent to it. heard: its bytes are read as they come; while
        they are not (it sends its next request during an answer), it is not late with more.
        """
        if not 0 < self._unsent_bytes <= unsent_bytes:
            self._unsent_since_ns = now_ns
        self._unsent_bytes = unsent_bytes
        if self.turn != self._turn_seen or not heard:
            self._turn_seen = self.turn
            self._since_ns = self._heard_ns = now_ns
        if self.phase_bytes != self._heard_bytes or unsent_bytes:
            self._heard_bytes = self.phase_bytes
            self._heard_ns = now_ns
        if now_ns - self._unsent_since_ns >= patience.write_stall_ns:
            return Late.STALLED
        waited_ns = now_ns - self._since_ns
        match self.phase:
            case Phase.IDLE if waited_ns >= patience.idle_ns and not unsent_bytes:
                return Late.IDLE
            case Phase.HEAD if waited_ns >= patience.head_ns:
                return Late.HEAD
            case Phase.BODY if waited_ns >= patience.body_time_ns(self.phase_bytes):
                return Late.BODY
            case Phase.REST if waited_ns >= patience.body_ns:
                return Late.BODY
            case Phase.PARTING if not unsent_bytes and (
                waited_ns >= patience.body_ns or now_ns - self._heard_ns >= patience.linger_ns
            ):
                return Late.PARTED
        return None


class LoopLag:
    """How late the event loop is: a round that should come at equal intervals says when it came.

    Once is an accident (a pause of the system, a collection of garbage); twice in a row is too much work: `too_late`.
    """

    def __init__(self, *, interval_ns: int, lag_ns_max: int) -> None:
        self._interval_ns = interval_ns
        self._lag_ns_max = lag_ns_max
        self.too_late = False
        self._due_ns: int | None = None
        self._recent_ns: collections.deque[int] = collections.deque([0, 0], maxlen=ROUNDS)

    def tick(self, now_ns: int) -> int:
        """The round came. returns: by how much it was late."""
        lag_ns = 0 if self._due_ns is None else max(0, now_ns - self._due_ns)
        self._due_ns = now_ns + self._interval_ns
        self.too_late = min(lag_ns, self._recent_ns[-1]) > self._lag_ns_max
        self._recent_ns.append(lag_ns)
        return lag_ns

    @property
    def worst_ns(self) -> int:
        """The greatest of the last ROUNDS lags."""
        return max(self._recent_ns)
