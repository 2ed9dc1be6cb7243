"""What can be asked of the audit face, and the form in which it goes to the process that answers. Pure.

A question is read of a request here, and answered by gateway/audit_answers.py in a process of its own: reading a
journal takes memory and long, and a worker's loop has calls to carry.
"""

import re
from collections.abc import Mapping

import msgspec

from gateway.config import Config
from gateway.errors import InvalidRequest, NotFound, shown
from metering.periods import parse_instant

COUNT_DEFAULT = 100
COUNT_MAX = 1_000
TEXT_MAX = 128
"""Characters of an id or a name in a question."""
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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What it says. status: 200, 404 or 503; content: of a 200; message: of the others."""

    status: int
    content: msgspec.Raw = msgspec.Raw(b"null")
    message: str = ""


Query = Mapping[str, str]


def call(call_id: str, ask_others: bool) -> Call:
    """Raises NotFound: no call has such an id."""
    return Call(call_id=_call_id(call_id), ask_others=ask_others)


def proof(call_id: str, ask_others: bool) -> Proof:
    """Raises NotFound: no call has such an id."""
    return Proof(call_id=_call_id(call_id), ask_others=ask_others)


def checkpoints(query: Query) -> Checkpoints:
    """Raises InvalidRequest."""
    _known(query, "writer")
    writer = query.get("writer")
    return Checkpoints(writer=None if writer is None else _text("writer", writer))


def changes(query: Query) -> Changes:
    """Raises InvalidRequest."""
    _known(query, "from", "to", "topic", "after", "count")
    topic = query.get("topic")
    return Changes(
        from_ns=_instant(query, "from", 0),
        to_ns=_instant(query, "to", FOREVER_NS),
        topic=None if topic is None else _text("topic", topic),
        after=_place(query["after"]) if "after" in query else None,
        count=_count(query.get("count", str(COUNT_DEFAULT))),
    )


def cursor(place: Place) -> str:
    """The text by which a client asks for what is behind this place."""
    at_ns, writer, seq = place
    return f"{at_ns}-{writer}-{seq}"


def nothing(query: Query) -> None:
    """For what takes no parameters. Raises InvalidRequest."""
    _known(query)


def _known(query: Query, *names: str) -> None:
    for name in query:
        if name not in names:
            takes = f"this path takes {', '.join(names)}" if names else "this path takes none"
            raise InvalidRequest(f"there is no parameter {shown(name)}; {takes}", param=name[:TEXT_MAX])


def _call_id(text: str) -> str:
    if _CALL_ID.fullmatch(text) is None:
        raise NotFound(f"there is no call {shown(text)}: an id has the form <writer>-<number>")
    return text


def _text(what: str, value: str) -> str:
    if not value or len(value) > TEXT_MAX or not value.isprintable():
        raise InvalidRequest(f"{what} must be 1 to {TEXT_MAX} printable characters")
    return value


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


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= COUNT_MAX:
        raise InvalidRequest(f"count must be 1 to {COUNT_MAX}", param="count")
    return int(text)
