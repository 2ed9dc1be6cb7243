"""The words of the call machine: its states, the events it takes, the actions it gives. Pure.

The machine itself is call.py; a driver (relay.py) turns what happens into events and carries out actions.
Most of them lead back to nothing, so the collector need not know them (gc=False): half of what it costs to make one.
What holds an error may, by its traceback.
"""

import enum
from collections.abc import Sequence

import msgspec

from backends.errors import BackendError
from gateway.api.errors import GatewayError
from gateway.calls.routing import Target

Headers = Sequence[tuple[bytes, bytes]]


def header_lines(headers: Headers) -> bytes:
    """Headers as they go on the wire, each line with its end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def header_pairs(lines: bytes) -> list[tuple[bytes, bytes]]:
    """What `header_lines` was made from."""
    parts = [line.partition(b": ") for line in lines.split(b"\r\n")[:-1]]
    return [(name, value) for name, _, value in parts]


class State(enum.IntEnum):
    """Where a call is; see the drawing in call.py. An int, since it is looked up with every event."""

    ADMITTING = 0
    QUEUED = 1
    CONNECTING = 2
    WAITING = 3
    HELD = 4
    SIZED = 5
    REJECTED = 6
    STREAMING = 7
    ENDING = 8
    DRAINING = 9
    SEALING = 10
    DONE = 11
    ASKING = 12


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base. attempt: the number of the attempt it belongs to; 0: of the call itself."""

    attempt: int = 0


class Allowed(Event, frozen=True):
    """The limits of the call's tenant have room for it; what it takes of them is held."""


class Refused(Event, frozen=True, kw_only=True, gc=True):
    """They have none, or nobody could be asked. Nothing is held."""

    error: GatewayError


class Admitted(Event, frozen=True):
    """The `admitted` line is in the file."""


class Seated(Event, frozen=True, kw_only=True):
    """The same, and with it a free seat was taken, at the first backend of `Call.wanted` that had one."""

    backend: str


class Granted(Event, frozen=True, kw_only=True):
    """A seat at a backend was granted."""

    backend: str


class Connected(Event, frozen=True):
    """The request was handed to a connection."""


class Head(Event, frozen=True, kw_only=True):
    """Status and headers (names in lower case) of the backend's answer."""

    status: int
    headers: Headers


class Data(Event, frozen=True, kw_only=True):
    """Bytes of the backend's body, without its chunk framing."""

    data: bytes


class End(Event, frozen=True):
    """The backend's answer is complete."""


class Whole(Event, frozen=True, kw_only=True):
    """Head, body and end of the backend's answer, in one."""

    status: int
    headers: Headers
    data: bytes


class Lost(Event, frozen=True, kw_only=True, gc=True):
    """The attempt failed at the connection; nothing follows."""

    error: BackendError


class Timer(Event, frozen=True):
    """`deadline_ns` has passed."""


class ClientGone(Event, frozen=True):
    """The client has closed its connection."""


class Stopping(Event, frozen=True, kw_only=True, gc=True):
    """The gateway will not go on with this call: it shuts down, or has met a fault of its own."""

    error: GatewayError


class Sealed(Event, frozen=True):
    """The record is in the file."""


class Unrecorded(Event, frozen=True):
    """A line could not be written, and never will be."""


class Action(msgspec.Struct, frozen=True, gc=False):
    """Base of what a driver is told to do."""


class AskLimits(Action, frozen=True):
    """Ask for room under the limits of the call's tenant: `Allowed` or `Refused` follows, unless it is given up."""


class GiveUp(Action, frozen=True):
    """Nobody waits for that answer any more; what may have been held is given back."""


class TurnAway(Action, frozen=True, kw_only=True, gc=True):
    """Append a `refused` line: the request ends before its admission."""

    error: GatewayError


class Admit(Action, frozen=True):
    """Append the `admitted` line."""


class Ask(Action, frozen=True):
    """Ask for a seat at one of these backends, best first; a waiting call keeps its place."""

    wants: tuple[str, ...]


class Leave(Action, frozen=True):
    """Leave the queue."""


class Connect(Action, frozen=True):
    """Send the request to this backend; its events carry this attempt number."""

    target: Target
    attempt: int


class Abort(Action, frozen=True):
    """Close the attempt's connection: the backend stops its work."""


class Release(Action, frozen=True):
    """Give the seat back."""

    backend: str


class ConnectFailed(Action, frozen=True):
    """Tell the registry that a backend could not be reached."""

    backend: str
    reason: str


class HoldBack(Action, frozen=True):
    """Tell the registry that a backend takes no calls for now. status: 429 or 503."""

    backend: str
    status: int
    retry_after_s: int | None


class Answered(Action, frozen=True):
    """Tell the registry that a backend which was cold has answered."""

    backend: str


class Open(Action, frozen=True):
    """Write status and headers to the client. lines: the headers as they go on the wire, names in lower case."""

    status: int
    lines: bytes

    @property
    def headers(self) -> Headers:
        """As pairs."""
        return header_pairs(self.lines)


class Write(Action, frozen=True):
    """Write bytes of the body to the client."""

    data: bytes


class Reply(Action, frozen=True):
    """Write a whole answer to the client, as `Open` and `Finish` would; the call is over."""

    status: int
    lines: bytes
    data: bytes


class Seal(Action, frozen=True):
    """Append the record: the flush calls `record()`, then feeds `Sealed`."""


class Finish(Action, frozen=True):
    """Write the last bytes and end the answer; the call is over."""

    data: bytes
