"""What can be asked of the audit face, and the form in which it goes to the process that answers. Pure.

A question is read of a request here, and answered by gateway/faces/audit_answers.py in a process of its own: reading a
journal takes memory and long, and a worker's loop has calls to carry.
"""

import re

import msgspec

from gateway.api.errors import InvalidRequest, NotFound, shown
from gateway.configuration.config import Config
from gateway.faces import queries
from gateway.faces.queries import Query
from metering.periods import parse_instant

COUNT_DEFAULT = 100
COUNT_MAX = 1_000
FOREVER_NS = 2**63 - 1
_CALL_ID = re.compile(r"w[a-z2-7]{16}-[1-9][0-9]{0,18}")
_CURSOR = re.compile(r"([0-9]{1,19})-(w[a-z2-7]{16})-([0-9]{1,19})")


Place = tuple[int, str, int]
"""Of a line: its `at_ns`, its writer, its seq."""


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """A call's record and what belongs to it. ask_others: other gateways too, if it is not here."""

    call_id: str
    ask_others: bool


class Proof(msgspec.Struct, frozen=True, kw_only=True, tag="proof"):
    """What shows that a call's lines are in the journal that was signed. ask_others: as above."""

    call_id: str
    ask_others: bool


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoints"):
    """The newest signed note of each writer, or of one."""

    writer: str | None


class Changes(msgspec.Struct, frozen=True, kw_only=True, tag="changes"):
    """A page of event lines: from_ns ≤ at_ns < to_ns, of a topic or of all, behind the place `after`."""

    from_ns: int
    to_ns: int
    topic: str | None
    after: Place | None
    count: int


class Keys(msgspec.Struct, frozen=True, kw_only=True, tag="keys"):
    """The public keys that have signed, and when each was good."""


class Verification(msgspec.Struct, frozen=True, kw_only=True, tag="verification"):
    """How the last verification of all journals ended."""


class NewVerification(msgspec.Struct, frozen=True, kw_only=True, tag="new_verification"):
    """Have all journals verified once more, soon."""


Question = Call | Proof | Checkpoints | Changes | Keys | Verification | NewVerification


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What the answering process is started with."""

    config: Config
    question: Question


def call(call_id: str, ask_others: bool) -> Call:
    """Raises NotFound: no call has such an id."""
    return Call(call_id=_call_id(call_id), ask_others=ask_others)


def proof(call_id: str, ask_others: bool) -> Proof:
    """Raises NotFound: no call has such an id."""
    return Proof(call_id=_call_id(call_id), ask_others=ask_others)


def checkpoints(query: Query) -> Checkpoints:
    """Raises InvalidRequest."""
    queries.known(query, "writer")
    return Checkpoints(writer=queries.text(query, "writer"))


def changes(query: Query) -> Changes:
    """Raises InvalidRequest."""
    queries.known(query, "from", "to", "topic", "after", "count")
    return Changes(
        from_ns=_instant(query, "from", 0),
        to_ns=_instant(query, "to", FOREVER_NS),
        topic=queries.text(query, "topic"),
        after=_place(query["after"]) if "after" in query else None,
        count=queries.number(query, "count", COUNT_DEFAULT, COUNT_MAX),
    )


def cursor(place: Place) -> str:
    """The text by which a client asks for what is behind this place."""
    at_ns, writer, seq = place
    return f"{at_ns}-{writer}-{seq}"


def _call_id(text: str) -> str:
    if _CALL_ID.fullmatch(text) is None:
        raise NotFound(f"there is no call {shown(text)}: an id has the form <writer>-<number>")
    return text


def _instant(query: Query, name: str, default: int) -> int:
    if name not in query:
        return default
    try:
        return min(max(parse_instant(query[name]), 0), FOREVER_NS)
    except ValueError as error:
        raise InvalidRequest(str(error), param=name) from None


def _place(text: str) -> Place:
    if (match := _CURSOR.fullmatch(text)) is None:
        raise InvalidRequest("after must be what `next` of the page before says", param="after")
    return int(match[1]), match[2], int(match[3])
