"""What a worker and the store say to each other about one pool: the slots of one backend. Pure.

    worker ── Said: what it holds, who waits, what was served ──▶ store
           ◀── Reply: what it was granted so far, how things stand ──
           ◀── Wake: the same, when something has changed, unasked; it may be lost ──

Everything is absolute, so that it may be said twice, or not at all, and the next word mends it: what a worker was
`granted` since it came (the store's count) and how much of that it has `seen`, what it `holds`, what it has served.
Arrays in MessagePack, in the order of the fields; the store's side is metering/data/pool.lua.
"""

import msgspec

SPARE = ""
"""Stands for a tenant where a slot is nobody's in particular: it was granted because there is no other worker."""


class Line(msgspec.Struct, array_like=True, frozen=True):
    """Calls of a tenant that wait here for the backend. age_ms: of the oldest; work: of a call, as expected.

    credit: the work that counts for one that comes back; 0: nothing is known of its calls yet.
    """

    tenant: str
    priority: int
    share: int
    waiting: int
    age_ms: int
    work: float
    credit: float


class Served(msgspec.Struct, array_like=True, frozen=True):
    """The work of a tenant that this worker has charged, all told. base: as of the message that `acked` names."""

    tenant: str
    base: float
    now_is: float
    share: int


class Said(msgspec.Struct, array_like=True, frozen=True):
    """A worker's message.

    life: of the pool, as the worker knows it; "": it has just come. number: grows; acked: of the last message of its
    that was answered. slots: of the backend, by its configuration. holds: of these, its own; idle: those without a
    call. version: of `members` in the last reply. roster: the members it knew in another life, if the store asked.
    """

    name: str
    life: str
    number: int
    acked: int
    slots: int
    seen: int
    holds: int
    idle: int
    version: int
    lines: tuple[Line, ...] = ()
    served: tuple[Served, ...] = ()
    roster: tuple[str, ...] = ()
    leaving: int = 0


class Wake(msgspec.Struct, array_like=True, frozen=True):
    """granted: all told; unseen: the tenants of the last of these, which the store does not know to be seen.

    life "": somebody has come to a pool that the store does not know: who was there before has to say so.
    contended: does somebody wait, anywhere? alone: there is no other worker.
    """

    life: str
    granted: int
    unseen: tuple[str, ...]
    contended: int
    alone: int


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """As a wake. number: of the last message taken. who: say your roster.

    settling: not all members of an earlier life have said what they hold. members: all, if `version` has changed.
    """

    life: str
    granted: int
    unseen: tuple[str, ...]
    contended: int
    alone: int
    number: int
    who: int
    settling: int
    version: int
    members: tuple[str, ...]


def encode(said: Said) -> bytes:
    """As it is sent."""
    return _ENCODER.encode(said)


def decode_reply(data: bytes) -> Reply:
    """Raises msgspec.MsgspecError."""
    return _REPLY.decode(data)


def decode_wake(data: bytes) -> tuple[str, Wake]:
    """The pool's key and what is told of it. Raises msgspec.MsgspecError."""
    return _WAKE.decode(data)


_ENCODER = msgspec.msgpack.Encoder()
_REPLY = msgspec.msgpack.Decoder(Reply)
_WAKE = msgspec.msgpack.Decoder(tuple[str, Wake])
