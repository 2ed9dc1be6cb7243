"""What surrounds a call whose driver is tested: upstream, registry and journal in memory; what waits for its client."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from gateway.api import errors
from gateway.api.errors import GatewayError
from gateway.calls import events as m
from gateway.calls.call import Call
from metering.journal.refusals import Refusal
from metering.record import CallRecord, Line

STOPPING = m.Stopping(error=errors.ShuttingDown("the gateway is shutting down"))


class Pipe:
    """What waits for a client, as both drivers see it: more than `most` bytes of a body, and the backend is not read.

    A client that takes nothing still has one piece on its way to it, which does not count.
    """

    def __init__(self, most: int, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.taking = True
        self.full = False
        self.under_way = False
        self._most, self._pause, self._resume = most, pause, resume
        self._head = False
        self._waiting = 0

    def open(self) -> None:
        self._head = True

    def write(self, more: int) -> None:
        self._waiting += more
        if self._waiting > self._most and not self.full:
            self.full = True
            self._pause()

    def settle(self) -> None:
        """The turn is over: what can be taken has been."""
        if self.taking:
            self.under_way = self._head = False
            self._waiting = 0
            if self.full:
                self.full = False
                self._resume()
        elif not self.under_way and (self._head or self._waiting):
            self.under_way = True
            if not self._head:
                self._waiting = 0
            self._head = False


class Seen(msgspec.Struct, kw_only=True):
    """What one side has seen of a call. ended: the client saw the answer's end."""

    status: int | None
    headers: dict[bytes, bytes]
    body: bytes
    ended: bool
    lines: list[Line]
    fates: list[tuple[str, str]]  # of each attempt: backend, what became of it
    told: list[tuple[object, ...]]  # what the registry was told
    turned_away: list[str]  # reasons of `refused` lines
    steps: int

    def __post_init__(self) -> None:
        if (
            not self.ended and not self.body
        ):  # a head may wait for the body's first bytes, and the client was gone
            self.status, self.headers = None, {}


class Laws:
    """What was broken so far: a relay that meets an exception of ours would only take it for a fault of its call."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def hold(self, kept: bool, otherwise: str) -> None:
        if not kept:
            self.broken.append(otherwise)


class FakeAttempt:
    """A request on its way to `name`. fate: "" while it runs."""

    def __init__(self, name: str, listener: Any, laws: Laws) -> None:
        self.name, self.listener, self._laws = name, listener, laws
        self.fate = ""
        self.paused = False

    def abort(self) -> None:
        self._laws.hold(not self.fate, "nothing to abort")
        self.fate = "aborted"

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class FakeLimits:
    """What limits say of a call, when the script has them say it. asked: an answer is waited for."""

    LINES = b"x-ratelimit-remaining-requests: 7\r\n"
    asks = True

    def __init__(self, laws: Laws) -> None:
        self._laws = laws
        self._answered: Callable[[GatewayError | None], None] | None = None
        self._begun = self._told = False
        self.granted = False
        self.record: CallRecord | None = None
        self.ends = 0

    @property
    def asked(self) -> bool:
        return self._answered is not None

    @property
    def lines(self) -> bytes:
        return self.LINES if self._told else b""

    def ask(self, answered: Callable[[GatewayError | None], None]) -> None:
        self._laws.hold(not self._begun, "asked twice")
        self._begun, self._answered = True, answered

    def answer(self, error: GatewayError | None) -> None:
        answered, self._answered = self._answered, None
        assert answered is not None
        self._told, self.granted = True, error is None
        answered(error)

    def give_up(self) -> None:
        self._laws.hold(self.asked, "nothing to give up")
        self._answered = None

    def sealed(self, line: CallRecord) -> None:
        self._laws.hold(self.granted, "a record without room")
        self.record = line

    def unrecorded(self) -> None:
        self.record = None

    def end(self) -> None:
        self._laws.hold(not self.asked, "over, and still asking")
        self.ends += 1


class FakeRefusals:
    """The lines of requests that ended before their admission."""

    def __init__(self) -> None:
        self.lines: list[Refusal] = []

    def refuse(self, one: Refusal) -> None:
        self.lines.append(one)


class FakeEntry:
    """A backend of the registry that is never held back."""

    hold = None
    backend = SimpleNamespace(cache_salt=True)

    def __init__(self, name: str, attempts: list[FakeAttempt], laws: Laws) -> None:
        self._name, self._attempts, self._laws = name, attempts, laws
        self.upstream = self

    def send(self, _method: str, _path: str, _lines: bytes, _body: bytes, listener: Any) -> FakeAttempt:
        self._laws.hold(all(one.fate for one in self._attempts), "two attempts at once")
        self._attempts.append(FakeAttempt(self._name, listener, self._laws))
        return self._attempts[-1]


class FakeRegistry:
    """Backends by name. told: what it was told of them."""

    def __init__(self, names: list[str], attempts: list[FakeAttempt], laws: Laws) -> None:
        self.entries = {name: FakeEntry(name, attempts, laws) for name in names}
        self.told: list[tuple[object, ...]] = []

    def connect_failed(self, name: str, _reason: str) -> None:
        self.told.append(("failed", name))

    def busy(self, name: str, _status: int, retry_after_s: int | None, _now_ns: int) -> None:
        self.told.append(("busy", name, retry_after_s))

    def answered(self, name: str) -> None:
        self.told.append(("warm", name))


class FakeRecorder:
    """A journal whose turns the script ends, in two steps: its line is made, then it is in the file or it is lost."""

    def __init__(self, laws: Laws) -> None:
        self._laws = laws
        self.entry: Any = None
        self.made: Line | None = None
        self.lines: list[Line] = []
        self.lost = False

    def append(self, entry: Any) -> None:
        self._laws.hold(self.entry is None, "two lines at once")
        self.entry = entry

    def make(self) -> None:
        self.made = self.entry.line(2, "0" * 64)

    def end(self) -> None:
        entry, self.entry = self.entry, None
        assert self.made is not None
        self.lines.append(self.made)
        self.made = None
        entry.written()

    def fail(self) -> None:
        entry, self.entry, self.made = self.entry, None, None
        self.lost = True
        entry.failed(OSError("no space"))

    @property
    def over(self) -> bool:
        """Is the call's last line in the file, or lost?"""
        return self.lost or len(self.lines) == 2


def later(call: Call, now_ns: int, *, to_the_end: bool) -> int:
    """When the call's next deadline passes; to_the_end: the one that holds while its backend is not read."""
    due_ns = call.unread_deadline_ns if to_the_end else call.deadline_ns
    return now_ns if due_ns is None else max(now_ns, due_ns)
