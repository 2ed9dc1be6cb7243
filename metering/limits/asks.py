"""A call that asks for admission, and what it is told. Pure.

Wish ─▶ Ask ──▶ Granted ──▶ settled, or failed ──▶ folded
            └─▶ Refused
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import msgspec

from metering.limits.messages import HALF, ScopeSaid, said_budgets
from metering.limits.rules import ROUND, UNIT
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


class Heard(msgspec.Struct, frozen=True):
    """An answer, as far as it tells how scopes stand: `stands` as a reply has it. ms: when it was heard (monotonic)."""

    ms: int
    stands: list[int]

    def requests_debt(self, place: int) -> int:
        """Of the scope at this place of the message."""
        return self.stands[3 * place + 1]

    def tokens_debt(self, place: int) -> int:
        """Likewise."""
        return self.stands[3 * place + 2]


NOTHING_HEARD = Heard(0, [0, 0, 0])


class Scope:
    """One scope of a tenant in this worker: its limits, the worker's own sums, and how it stood when last heard of.

    said: its sums and limits, as the next message says them. windows: of its budgets, in this era; held: what calls
    hold, by the windows that they are in. spent: of each budget, as text. place: in the message under way. heard,
    heard_place: the last answer that tells of it, and where.
    """

    __slots__ = (
        "budgets",
        "heard",
        "heard_place",
        "held",
        "name",
        "place",
        "said",
        "spent",
        "terms",
        "windows",
    )

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = name
        self.budgets: list[int] = []
        self.windows: tuple[int, ...] = ()
        self.spent: list[str] = []
        self.held: dict[tuple[int, ...], int] = {}
        self.place = self.heard_place = 0
        self.heard = NOTHING_HEARD
        self.said = ScopeSaid(name, 0, 0, 0, 0, 0, 0, [], [])
        self.use(terms)

    def use(self, terms: Terms) -> None:
        """Go on with these limits."""
        self.terms = terms
        said = self.said
        said.requests_per_minute = terms.requests_per_minute or 0
        said.tokens_per_minute = terms.tokens_per_minute or 0
        said.concurrency = terms.concurrency or 0

    def begin_era(self, era: Era) -> None:
        """Take the windows of this era."""
        before = dict(zip(budget_windows(self.budgets), self.spent, strict=False))
        self.budgets = self.said.budgets = said_budgets(
            (window, budget.pusd, budget.hard)
            for budget in self.terms.budgets
            for window in era.windows(budget.per)
        )
        self.windows = tuple(sorted({*budget_windows(self.budgets)}))
        self.spent = [before.get(window, "0") for window in budget_windows(self.budgets)]

    @property
    def running(self) -> int:
        """Calls of this worker that are under way."""
        return self.said.running

    @property
    def requests_per_minute(self) -> int:
        """0: no such limit."""
        return self.said.requests_per_minute

    @property
    def tokens_per_minute(self) -> int:
        """0: no such limit."""
        return self.said.tokens_per_minute

    @property
    def running_everywhere(self) -> int:
        """Calls of all workers that were under way when it was heard of last."""
        return self.heard.stands[3 * self.heard_place]

    @property
    def requests_debt(self) -> int:
        """Of its rate of requests, when it was heard of last; likewise of tokens."""
        return self.heard.requests_debt(self.heard_place)

    @property
    def tokens_debt(self) -> int:
        """See above."""
        return self.heard.tokens_debt(self.heard_place)

    @property
    def is_bare(self) -> bool:
        """Is there nothing that the store would have to know?"""
        said = self.said
        return not (said.running or said.requests or said.tokens or self.held)

    def hold(self, windows: tuple[int, ...], pusd: int) -> None:
        """Hold so much more, or less, in these windows."""
        held = self.held
        pusd += held.get(windows, 0)
        assert pusd >= 0
        if pusd:
            held[windows] = pusd
        else:
            held.pop(windows, None)
        flat: list[int] = []
        for windows, pusd in held.items():
            high, low = divmod(pusd, HALF)
            for window in windows:
                flat += (window, high, low)
        self.said.held = flat  # another list: a message may have the former

    def spent_in(self, window: str) -> int:
        """What was spent of its budgets of this window, when last heard of."""
        windows = budget_windows(self.budgets)
        return int(self.spent[windows.index(int(window))]) if int(window) in windows else 0

    def held_pairs(self) -> list[tuple[int, int]]:
        """What is held, by window."""
        return [(window, pusd) for windows, pusd in self.held.items() for window in windows]


class Group:
    """The scopes that calls of one project, key and model are in, and what these calls have changed in all of them.

    A call's beginning and its end are noted here once, and go into the sums of each scope with the next message: most
    messages tell of both. running, requests, tokens (of the rates, one each), hold_pusd: to be added, or taken off.
    keys: the scopes, to be put among others. holds: has any of them a budget? Its limits, and the windows of these
    budgets, are those of when it was made: under others there is another group. tokens_max: what a call may take at
    once by the tightest limit; None: there is none.
    """

    __slots__ = (
        "_of_budgets", "_of_requests", "_of_tokens", "_said", "hold_pusd", "holds", "keys", "requests", "running",
        "scopes", "tokens", "tokens_max",
    )  # fmt: skip

    def __init__(self, scopes: tuple[Scope, ...]) -> None:
        self.scopes = scopes
        self.keys: dict[Scope, None] = dict.fromkeys(scopes)
        self.tokens_max = min(
            (one.tokens_per_minute for one in scopes if one.tokens_per_minute), default=None
        )
        self.running = self.requests = self.tokens = self.hold_pusd = 0
        self._said = [scope.said for scope in scopes]
        self._of_requests = [said for said in self._said if said.requests_per_minute]
        self._of_tokens = [said for said in self._said if said.tokens_per_minute]
        self._of_budgets = [(scope, scope.windows) for scope in scopes if scope.windows]
        self.holds = bool(self._of_budgets)

    def add_up(self) -> None:
        """Put what has changed into the sums of the scopes."""
        if running := self.running:
            self.running = 0
            for said in self._said:
                said.running += running
        if self.requests:
            taken = self.requests * UNIT
            self.requests = 0
            for said in self._of_requests:
                said.requests = (said.requests + taken) % ROUND
        if self.tokens:
            taken = self.tokens * UNIT
            self.tokens = 0
            for said in self._of_tokens:
                said.tokens = (said.tokens + taken) % ROUND
        if hold_pusd := self.hold_pusd:
            self.hold_pusd = 0
            for scope, windows in self._of_budgets:
                scope.hold(windows, hold_pusd)


class Granted(msgspec.Struct, eq=False):
    """It may go on. To be settled once, or given up.

    hold_pusd: what it holds now: once it has ended, its cost. judged: by the store, and so taken of the rates; heard:
    what that said; places: of the group's scopes in it. shared: the same call, as a worker that shares limits out
    without the store has judged it; None: it has not.
    """

    tenant: str
    group: Group
    places: list[int]
    heard: Heard
    tokens: int
    hold_pusd: int
    judged: bool
    ended: bool = False
    shared: "Granted | None" = None

    @property
    def requests(self) -> Rate | None:
        """The tightest limit of requests, just after this one was admitted; None: there is none."""
        if not self.judged:
            return None
        found, stands = None, self.heard.stands
        for scope, place in zip(self.group.scopes, self.places, strict=True):
            if limit := scope.said.requests_per_minute:
                found = _tighter(found, limit, stands[3 * place + 1])
        return found

    @property
    def rate_of_tokens(self) -> Rate | None:
        """Likewise of tokens."""
        if not self.judged:
            return None
        found, stands = None, self.heard.stands
        for scope, place in zip(self.group.scopes, self.places, strict=True):
            if limit := scope.said.tokens_per_minute:
                found = _tighter(found, limit, stands[3 * place + 2])
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


class Ask(msgspec.Struct, eq=False):
    """One call's, from its wish to its answer. tokens: that it asks for; answer: None until there is one."""

    wish: Wish
    group: Group
    answered: Callable[[Answer], None]
    tokens: int
    hold_pusd: int
    answer: Answer | None = None
    given_up: bool = False
    tries: int = 0

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Those that it is in."""
        return self.group.scopes

    @property
    def has_hard_budget(self) -> bool:
        """Is it held to one?"""
        return any(budget.hard for scope in self.scopes for budget in scope.terms.budgets)


def ask_of(wish: Wish, group: Group, answered: Callable[[Answer], None]) -> Ask:
    """What a wish comes to: what is a guess of its tokens is no more than fits all limits."""
    tokens, tokens_max = wish.tokens, group.tokens_max
    if tokens_max is not None and tokens > tokens_max:
        tokens = max(min(tokens, wish.tokens_min), tokens_max)
    return Ask(wish, group, answered, tokens, wish.hold_pusd or 0)


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
