"""A call that asks for admission, and what it is told. Pure.

Wish ─▶ Ask ──▶ Granted ──▶ settled, or failed ──▶ folded
            └─▶ Refused
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import msgspec

from metering.limits.messages import HALF, ScopeSaid, said_budgets
from metering.limits.rules import UNIT
from metering.limits.terms import Era, Terms


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

    running, requests, tokens, budgets: as messages say them (metering/limits/messages.py); 0 is no limit. windows: of
    its budgets, in this era; held: what calls hold, by the windows that they are in. spent: of each budget, as text.
    heard_ms: when it was heard of last (monotonic). place: in the message under way.
    """

    __slots__ = (
        "budgets", "concurrency", "heard_ms", "held", "name", "place", "requests", "requests_debt",
        "requests_per_minute", "running", "running_everywhere", "spent", "terms", "tokens",
        "tokens_debt", "tokens_per_minute", "windows",
    )  # fmt: skip

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = name
        self.budgets: list[int] = []
        self.windows: tuple[int, ...] = ()
        self.spent: list[str] = []
        self.held: dict[tuple[int, ...], int] = {}
        self.place = 0
        self.running = 0
        self.requests = 0
        self.tokens = 0
        self.running_everywhere = 0
        self.requests_debt = 0
        self.tokens_debt = 0
        self.heard_ms = 0
        self.use(terms)

    def use(self, terms: Terms) -> None:
        """Go on with these limits."""
        self.terms = terms
        self.requests_per_minute = terms.requests_per_minute or 0
        self.tokens_per_minute = terms.tokens_per_minute or 0
        self.concurrency = terms.concurrency or 0

    def begin_era(self, era: Era) -> None:
        """Take the windows of this era."""
        before = dict(zip(budget_windows(self.budgets), self.spent, strict=False))
        self.budgets = said_budgets(
            (window, budget.pusd, budget.hard)
            for budget in self.terms.budgets
            for window in era.windows(budget.per)
        )
        self.windows = tuple(sorted({*budget_windows(self.budgets)}))
        self.spent = [before.get(window, "0") for window in budget_windows(self.budgets)]

    def hold(self, windows: tuple[int, ...], pusd: int) -> None:
        """Hold so much more, or less, in these windows."""
        held = self.held
        if windows in held:
            pusd += held[windows]
        assert pusd >= 0
        if pusd:
            held[windows] = pusd
        else:
            held.pop(windows, None)

    def spent_in(self, window: str) -> int:
        """What was spent of its budgets of this window, when last heard of."""
        windows = budget_windows(self.budgets)
        return int(self.spent[windows.index(int(window))]) if int(window) in windows else 0

    def held_pairs(self) -> list[tuple[int, int]]:
        """What is held, by window."""
        return [(window, pusd) for windows, pusd in self.held.items() for window in windows]

    def said(self, *, with_budgets: bool) -> ScopeSaid:
        """As a message says it."""
        held: list[int] = []
        for windows, pusd in self.held.items():
            high, low = divmod(pusd, HALF)
            for window in windows:
                held += (window, high, low)
        said = (
            self.name,
            self.running,
            self.requests,
            self.tokens,
            self.requests_per_minute,
            self.tokens_per_minute,
            self.concurrency,
            held,
            self.budgets if with_budgets else [],
        )
        made: ScopeSaid = tuple.__new__(ScopeSaid, said)  # its own `__new__` costs five times as much
        return made


class Place(NamedTuple):
    """A scope that a call was admitted in. windows: in which it holds; debts: of the rates, just after."""

    scope: Scope
    windows: tuple[int, ...]
    requests_debt: int
    tokens_debt: int


class Granted:
    """It may go on. To be settled once, or given up.

    hold_pusd: what it holds now: once it has ended, its cost. judged: by the store, and so taken of the rates.
    shared: the same call, as a worker that shares limits out without the store has judged it; None: it has not.
    """

    __slots__ = ("at_ms", "ended", "hold_pusd", "judged", "places", "shared", "tenant", "tokens")

    def __init__(
        self, tenant: str, places: list[Place], tokens: int, hold_pusd: int, at_ms: int, judged: bool
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
        if not self.judged:
            return None
        found: Rate | None = None
        for place in self.places:
            if limit := place[0].requests_per_minute:
                found = _tighter(found, limit, place[2])
        return found

    @property
    def rate_of_tokens(self) -> Rate | None:
        """Likewise of tokens."""
        if not self.judged:
            return None
        found: Rate | None = None
        for place in self.places:
            if limit := place[0].tokens_per_minute:
                found = _tighter(found, limit, place[3])
        return found


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
                limit = scope.tokens_per_minute
                if limit and self.tokens > limit:
                    self.tokens = max(limit, wish.tokens_min)
        self.hold_pusd = wish.hold_pusd or 0
        self.answer: Answer | None = None
        self.given_up = False
        self.tries = 0

    @property
    def has_hard_budget(self) -> bool:
        """Is it held to one?"""
        return any(budget.hard for scope in self.scopes for budget in scope.terms.budgets)


def budget_windows(budgets: list[int]) -> list[int]:
    """The windows of budgets as a message has them."""
    return budgets[::4]


def tightest(rates: list[tuple[int, int]]) -> Rate | None:
    """Of rates (limit, debt) the one with the least left; a limit of 0 is none."""
    found: Rate | None = None
    for limit, debt in rates:
        if limit:
            found = _tighter(found, limit, debt)
    return found


def _tighter(found: Rate | None, limit: int, debt: int) -> Rate:
    """This rate, if it has less left than the one that was found."""
    remaining = limit - -(-debt // UNIT)
    if remaining < 0:
        remaining = 0
    if found is not None and remaining >= found.remaining:
        return found
    return Rate(limit, remaining, -(-debt // limit))
