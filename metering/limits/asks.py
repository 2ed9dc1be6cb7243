"""A call that asks for admission, and what it is told. Pure.

Wish ─▶ Ask ──▶ Granted ──▶ settled, or failed ──▶ folded
            └─▶ Refused
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import msgspec

from metering.limits.messages import BudgetSaid
from metering.limits.rules import UNIT, returnable
from metering.limits.terms import Terms


class Principal(Protocol):
    """Whose call it is: what is needed of the gateway's."""

    @property
    def tenant(self) -> str:
        """Its tenant."""

    @property
    def project(self) -> str | None:
        """Its project; None: none."""

    @property
    def key_id(self) -> str:
        """Its key."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a call asks for. model: its id. tokens: that it is expected to take, prompt and completion.

    tokens_min: those that the client names itself. What is above that is a guess, which no limit refuses for ever.
    hold_pusd: what it reserves of budgets until its cost is known; None: it can't be priced beforehand.
    """

    tenant: str
    project: str | None
    key_id: str
    model: str
    tokens: int
    tokens_min: int = 0
    hold_pusd: int | None


class Rate(NamedTuple):
    """How a rate stands: `remaining` of `limit` may come at once; in `reset_ms` all of it may."""

    limit: int
    remaining: int
    reset_ms: int


class Scope:
    """One scope of a tenant in this worker: its limits, the worker's own sums, and how it stood when last heard of.

    running, requests, tokens, held: as messages say them (metering/limits/messages.py). budgets, windows: of its
    budgets, in this era. place: in the message under way. spent_texts: by window.
    """

    __slots__ = (
        "budgets", "heard_ms", "held", "name", "place", "requests", "requests_debt", "running", "running_everywhere",
        "spent_texts", "terms", "tokens", "tokens_debt", "windows",
    )  # fmt: skip

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = name
        self.terms = terms
        self.budgets: list[BudgetSaid] = []
        self.windows: tuple[str, ...] = ()
        self.place = 0
        self.running = 0
        self.requests = 0
        self.tokens = 0
        self.held: dict[str, int] = {}
        self.spent_texts: dict[str, str] = {}
        self.running_everywhere = 0
        self.requests_debt = 0
        self.tokens_debt = 0
        self.heard_ms = 0

    def hold(self, windows: tuple[str, ...], pusd: int) -> None:
        """Hold so much more, or less, in these windows."""
        held = self.held
        for window in windows:
            now = held.get(window, 0) + pusd
            assert now >= 0
            if now:
                held[window] = now
            else:
                held.pop(window, None)


class Place(NamedTuple):
    """A scope that a call was admitted in. windows: in which it holds; debts: of the rates, just after."""

    scope: Scope
    windows: tuple[str, ...]
    requests_debt: int
    tokens_debt: int


class Granted:
    """It may go on. To be settled once, or given up.

    hold_pusd: what it holds now: once it has ended, its cost. judged: by the store, and so taken of the rates.
    shared: the same call, as a worker that shares limits out without the store has judged it; None: it has not.
    """

    __slots__ = ("at_ms", "ended", "hold_pusd", "judged", "places", "shared", "tenant", "tokens")

    def __init__(
        self, tenant: str, places: tuple[Place, ...], tokens: int, hold_pusd: int, at_ms: int, judged: bool
    ) -> None:
        self.tenant = tenant
        self.places = places
        self.tokens = tokens
        self.hold_pusd = hold_pusd
        self.at_ms = at_ms
        self.judged = judged
        self.ended = False
        self.shared: Granted | None = None

    @property
    def requests(self) -> Rate | None:
        """The tightest limit of requests, just after this one was admitted; None: there is none."""
        return tightest(
            [
                (place.scope.terms.requests_per_minute, place.requests_debt)
                for place in self.places
                if self.judged
            ]
        )

    @property
    def rate_of_tokens(self) -> Rate | None:
        """Likewise of tokens."""
        return tightest(
            [(place.scope.terms.tokens_per_minute, place.tokens_debt) for place in self.places if self.judged]
        )

    def undrained(self, place: Place, units: int, now_ms: int, *, of_tokens: bool) -> int:
        """How many of `units` that it has taken of a rate there can be given back now."""
        terms = place.scope.terms
        limit = terms.tokens_per_minute if of_tokens else terms.requests_per_minute
        if limit is None or not self.judged:
            return 0
        debt = place.tokens_debt if of_tokens else place.requests_debt
        return returnable(units, debt, now_ms - self.at_ms, limit)


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """It may not. Nothing is reserved.

    limit: which one, in words for a person: "requests_per_minute of the key 0f3a…: 60". retry_after_ms: when to try
    again; None: that is not known, or it will never do. requests, rate_of_tokens: the tightest rates, as they stand.
    """

    code: Literal["rate_limit_exceeded", "insufficient_quota"]
    limit: str
    retry_after_ms: int | None = None
    requests: Rate | None = None
    rate_of_tokens: Rate | None = None


Answer = Granted | Refused


class Ask:
    """One call's, from its wish to its answer. answer: None until there is one."""

    __slots__ = ("answer", "answered", "given_up", "hold_pusd", "scopes", "tokens", "tries", "wish")

    def __init__(self, wish: Wish, scopes: tuple[Scope, ...], answered: Callable[[Answer], None]) -> None:
        self.wish = wish
        self.scopes = scopes
        self.answered = answered
        self.tokens = wish.tokens
        if wish.tokens > wish.tokens_min:
            for scope in scopes:
                limit = scope.terms.tokens_per_minute
                if limit is not None and self.tokens > limit:
                    self.tokens = max(limit, wish.tokens_min)
        self.hold_pusd = wish.hold_pusd or 0
        self.answer: Answer | None = None
        self.given_up = False
        self.tries = 0

    @property
    def has_hard_budget(self) -> bool:
        """Is it held to one?"""
        return any(budget.hard for scope in self.scopes for budget in scope.terms.budgets)


def tightest(rates: list[tuple[int | None, int]]) -> Rate | None:
    """Of rates (limit, debt) the one with the least left."""
    found: Rate | None = None
    for limit, debt in rates:
        if limit is not None:
            remaining = max(0, limit - -(-debt // UNIT))
            if found is None or remaining < found.remaining:
                found = Rate(limit, remaining, -(-debt // limit))
    return found
