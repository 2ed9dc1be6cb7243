"""What a worker says to the store about one tenant, and what the store answers. Pure.

    worker ── Message(number, base, sums of the scopes that have changed, asks in order) ──▶ store
           ◀── Reply(status, a verdict for each ask, how each scope stands) ──────────────

One message per (tenant, worker) is under way. Its sums are absolute, of the worker alone: said twice they are said
once. `number` grows by one each time; the store takes none that is not above the last. `base` is the number of the
last message that was answered, upon which this one builds: 0 stands for none, and then the message has all sums.

Both are MessagePack arrays, packed and unpacked in the store by its own library. Amounts of money are text, since a Lua
number is exact only up to 2⁵³. The format is described in deploy/reference/ledger.md.
"""

import enum
from typing import Any

import msgspec


class Kind(enum.IntEnum):
    """What a message is besides its sums and asks."""

    USUAL = 0
    LEAVE = 1  # the worker ends: nothing of its is to be kept


class Status(enum.IntEnum):
    """What became of a message."""

    TAKEN = 0
    UNREADY = 1  # its sums were taken; the asks were not judged: the store does not know yet what was spent
    BEHIND = 2  # the store has not what `base` says; nothing was taken: say all
    STALE = 3  # `number` is not above the last one; nothing was taken
    FORM = 4  # the store holds there what is none of ours; nothing was taken


class Limit(enum.IntEnum):
    """Which limit has refused a call; GRANTED: none."""

    GRANTED = 0
    REQUESTS = 1
    TOKENS = 2
    CONCURRENCY = 3
    BUDGET = 4


class BudgetSaid(msgspec.Struct, array_like=True, frozen=True):
    """A budget of a scope in one window. hard: 1 or 0."""

    window: str
    pusd: str
    hard: int


class ScopeSaid(msgspec.Struct, array_like=True, frozen=True):
    """A scope: the worker's own sums, and the limits by which its asks are judged; 0: no such limit.

    running: calls under way. requests, tokens: taken of the rates, all told since the worker began. held: by window,
    what its calls hold of a budget.
    """

    scope: str
    running: int
    requests: int
    tokens: int
    held: list[tuple[str, str]]
    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int
    budgets: list[BudgetSaid]


class AskSaid(msgspec.Struct, array_like=True, frozen=True):
    """A call that asks to be admitted. scopes: places in the message's list. hold: picodollars."""

    scopes: list[int]
    tokens: int
    hold: str


class Message(msgspec.Struct, array_like=True, frozen=True):
    """See above."""

    number: int
    base: int
    kind: int
    scopes: list[ScopeSaid]
    asks: list[AskSaid]


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """On one ask. wait_ms: until a rate lets it through; −1: never, it is larger than the limit, or nobody knows.

    scope: the place in the message's list of the one whose limit has refused; budget: in that one's.
    """

    limit: int
    scope: int = 0
    wait_ms: int = -1
    budget: int = 0


class ScopeStands(msgspec.Struct, array_like=True, frozen=True):
    """How a scope of the message stands after it, all workers together.

    requests_debt, tokens_debt: what is taken of the rate and has not come back, in 1/60000 of one.
    spent: of each budget.
    """

    running: int
    requests_debt: int
    tokens_debt: int
    spent: list[str]


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """See above. number: the last one that the store has taken."""

    status: int
    number: int
    verdicts: list[Verdict]
    scopes: list[ScopeStands]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Reply)


def encode(message: Message) -> bytes:
    """A message as the store reads it."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview | Any) -> Reply:
    """Read an answer. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)
