"""What a worker says to the store about one tenant, and what the store answers. Pure.

    worker ── Message(number, base, sums of the scopes that have changed, asks in order) ──▶ store
           ◀── Reply(status, a verdict for each ask, how each scope stands) ──────────────

One message per (tenant, worker) is under way. Its sums are absolute, of the worker alone: said twice they are said
once. `number` grows by one each time; the store takes none that is not above the last. `base` is the number of the
last message that was answered, upon which this one builds: 0 stands for none, and then the message has all sums.

Both are MessagePack arrays, packed and unpacked in the store by its own library; lists in them are flat where each
call has some. An amount of money is two numbers, its digits above the last ten and the last ten, since a Lua number is
exact only up to 2⁵³. A window is its digits as a number. The format is described in deploy/reference/ledger.md.
"""

import enum
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

HALF = 10**10


class Kind(enum.IntEnum):
    """What a message is besides its sums and asks."""

    USUAL = 0
    LEAVE = 1  # the worker ends: nothing of its is to be kept
    LOOK = 2  # it is asked as well what was spent, and whether the store knows that


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


class ScopeSaid(msgspec.Struct, array_like=True):
    """A scope: the worker's own sums, and the limits by which its asks are judged; 0: no such limit.

    running: calls under way. requests, tokens: taken of the rates since the worker began, in 1/60000 of one, modulo
    2⁵² (rules.py): what was given back of one that fails is a fraction. held: what its
    calls hold of budgets: window, both halves, and so on; a window may come twice. budgets: window, both halves, 1 if
    it is hard, and so on; none where no ask needs them, and nobody wants to know what was spent.
    """

    scope: str
    running: int
    requests: int
    tokens: int
    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int
    held: list[int]
    budgets: list[int]


AskSaid = list[int]
"""A call that asks to be admitted: its tokens, both halves of its hold, the places of its scopes in the message."""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """See above."""

    number: int
    base: int
    kind: int
    scopes: list[ScopeSaid]
    asks: list[AskSaid]


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """Of an ask that is refused. wait_ms: until a rate lets it through; −1: never, or nobody knows.

    scope: the place in the message of the one whose limit has refused; budget: the place in that one's list.
    """

    limit: int
    scope: int
    wait_ms: int
    budget: int


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """See above. number: the last one that the store has taken. verdicts: GRANTED, or why not.

    stands: of each scope, all workers together: calls under way, debt of requests, debt of tokens (in 1/60000 of one).
    spent: of each budget in the message, as the ledger has it; where the message is a LOOK.
    """

    status: int
    number: int
    verdicts: list[int | Verdict]
    stands: list[int]
    spent: list[str]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Reply)

encode = _encoder.encode
"""A message as the store reads it."""


def decode(data: Any) -> Reply:
    """Read an answer. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


def halves(pusd: int) -> tuple[int, int]:
    """An amount as a message has it."""
    return divmod(pusd, HALF)


def said_ask(tokens: int, hold_pusd: int, scopes: Iterable[int]) -> AskSaid:
    """An ask as a message has it."""
    return [tokens, *divmod(hold_pusd, HALF), *scopes]


def said_held(held: Iterable[tuple[int, int]]) -> list[int]:
    """What windows hold as a message has it."""
    return [number for window, pusd in held for number in (window, *divmod(pusd, HALF))]


def said_budgets(budgets: Iterable[tuple[int, int, bool]]) -> list[int]:
    """Budgets (window, picodollars, hard) as a message has them."""
    return [number for window, pusd, hard in budgets for number in (window, *divmod(pusd, HALF), int(hard))]


def held_of(said: ScopeSaid) -> Iterator[tuple[int, int]]:
    """The reverse of `said_held`."""
    held = said.held
    for at in range(0, len(held), 3):
        yield held[at], held[at + 1] * HALF + held[at + 2]


def budgets_of(said: ScopeSaid) -> Iterator[tuple[int, int, bool]]:
    """The reverse of `said_budgets`."""
    budgets = said.budgets
    for at in range(0, len(budgets), 4):
        yield budgets[at], budgets[at + 1] * HALF + budgets[at + 2], budgets[at + 3] == 1
