"""A tenant's limits shared out: what one worker admits of them by itself while the store is away. Pure.

Each limit is divided by the workers that lived when last heard of. What the worker had under way before counts in full,
and of budgets what was spent is divided as they are. The shares are judged by the rules of the store.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from metering.limits.asks import Ask, Granted, Refused, budget_windows
from metering.limits.desk import Desk, Outcome
from metering.limits.messages import Kind, Message, ScopeSaid, said_held
from metering.limits.rules import Sums
from metering.limits.terms import BudgetTerms, TenantTerms, Terms, era

_EARLIER = "earlier"  # what was under way before, as if it were another worker's
_HERE = "here"


class Share:
    """Of one tenant in one worker. desk: the one that the store hears of."""

    def __init__(self, desk: Desk) -> None:
        self._whole = desk
        self._sums = Sums()
        self._desk = Desk(desk.tenant, desk.terms)
        self._workers = 0
        self._number = 0

    def divide(self, workers: int) -> None:
        """Share out the limits that hold now among so many."""
        self._workers = workers
        self._desk.use(divided(self._whole.terms, workers))

    def judge(self, ask: Ask, now_ms: int, wall_ns: Callable[[], int]) -> Granted | Refused:
        """Admit a call, or not."""
        self._sums.spent = {
            (window, scope.name): -(-int(text) // self._workers)
            for scope in self._whole.all_scopes
            for window, text in zip(budget_windows(scope.budgets), scope.spent, strict=False)
        }
        self._number += 1
        self._sums.take(_EARLIER, Message(self._number, 0, Kind.USUAL, self._earlier(), []), now_ms)
        wish = ask.wish
        asked = self._desk.ask(wish, _ignore)
        asked.tries = 1  # nobody else's end is on its way
        message = self._desk.message(era(wall_ns()))
        assert message is not None
        outcome = Outcome()
        self._desk.taken(self._sums.take(_HERE, message, now_ms), now_ms, wall_ns, outcome)
        ((_, answer),) = outcome.answers
        if isinstance(answer, Refused):
            return answer
        granted = self._whole.grant_unjudged(ask)
        granted.shared = answer
        return granted

    def give_up(self, granted: Granted, now_ms: int) -> None:
        """A call that was admitted here has gone."""
        self._desk.failed(granted, now_ms, cost_pusd=0, seq=None)

    def settle(self, granted: Granted, now_ms: int, *, cost_pusd: int, tokens: int) -> None:
        """A call that was admitted here has ended. What it cost is held: the ledger is away as well."""
        self._desk.settle(granted, now_ms, cost_pusd=cost_pusd, tokens=tokens, seq=self._number)

    def end(self) -> None:
        """The store is back: what was spent is its to say."""
        self._desk.folded(self._number)

    def _earlier(self) -> list[ScopeSaid]:
        ours = {scope.name: scope for scope in self._desk.all_scopes}
        said = []
        for scope in self._whole.all_scopes:
            our = ours.get(scope.name)
            running = scope.running - (our.running if our else 0)
            held: Counter[int] = Counter()
            for window, pusd in scope.held_pairs():
                held[window] += pusd
            for window, pusd in our.held_pairs() if our else ():
                held[window] -= pusd
            pairs = said_held((window, pusd) for window, pusd in held.items() if pusd > 0)
            said.append(ScopeSaid(scope.name, max(0, running), 0, 0, 0, 0, 0, pairs, []))
        return said


def divided(terms: TenantTerms, workers: int) -> TenantTerms:
    """One worker's share of a tenant's limits; of none that there is nothing."""

    def each(one: Terms) -> Terms:
        return Terms(
            requests_per_minute=_part(one.requests_per_minute, workers),
            tokens_per_minute=_part(one.tokens_per_minute, workers),
            concurrency=_part(one.concurrency, workers),
            budgets=tuple(_budget(budget, workers) for budget in one.budgets),
        )

    return TenantTerms(
        own=each(terms.own),
        keys={name: each(one) for name, one in terms.keys.items()},
        projects={name: each(one) for name, one in terms.projects.items()},
        models={name: each(one) for name, one in terms.models.items()},
        policy=terms.policy,
    )


def _part(limit: int | None, workers: int) -> int | None:
    return None if limit is None else max(1, limit // workers)


def _budget(budget: BudgetTerms, workers: int) -> BudgetTerms:
    return msgspec.structs.replace(budget, pusd=max(1, budget.pusd // workers), thresholds=())


def _ignore(_answer: object) -> None:
    """The asker is told by who judges."""
