"""One tenant's limits in one worker: its sums, what waits to be asked, and the messages that say so. Pure.

    ask ─▶ waiting ─▶ under way (one message) ─▶ granted or refused
                ▲              │ connection lost, or the store lacks what the message builds on
                └──────────────┘ asked again, in their order, under a higher number, with all sums

Who drives it (limiter.py) sends what `message` makes, one at a time, and hands the answer to `taken`, or calls `lost`.
Times: `now_ms` is monotonic, `wall_ns` since 1970.
"""

import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from metering.limits.asks import (
    NOTHING_HEARD,
    Answer,
    Ask,
    Granted,
    Group,
    Heard,
    Refused,
    Scope,
    Wish,
    ask_of,
    budget_windows,
    tightest,
)
from metering.limits.messages import Kind, Limit, Message, Reply, Status, Verdict, budgets_of, said_ask
from metering.limits.rules import NEVER, ROUND, returnable
from metering.limits.terms import BEFORE_NS, TENANT, BudgetTerms, Era, TenantTerms, Terms, end_ns
from metering.units import NS_PER_MS, usd_text

TRIES_MAX = 2
"""A refusal by concurrency or budget is asked once more: an end may be on its way to the store."""
AGAIN_MS = 20
"""After so long; and so is one by a rate that would let it through by then."""
_NAMED = {"p": "project", "k": "key", "m": "model"}
_NO_ERA = Era(-1, -1)
_said, _place = operator.attrgetter("said"), operator.attrgetter("place")


class Passed(NamedTuple):
    """A threshold of a budget that was passed. scope: as messages name it; spent_pusd: by then."""

    tenant: str
    scope: str
    window: str
    budget: BudgetTerms
    percent: int
    spent_pusd: int


class Outcome:
    """What came of messages, of whichever desks. answers: to be handed out; again: to be asked once more; unjudged: the
    store could not say."""

    __slots__ = ("again", "answers", "passed", "unjudged")

    def __init__(self) -> None:
        self.answers: list[tuple[Ask, Answer]] = []
        self.again: list[Ask] = []
        self.unjudged: list[Ask] = []
        self.passed: list[Passed] = []


class Desk:
    """Of one tenant. waiting: calls that go with the next message; under_way: the one that waits for its answer.

    number: of the last one.
    """

    def __init__(self, tenant: str, terms: TenantTerms) -> None:
        self.tenant = tenant
        self.terms = terms
        self.under_way: Message | None = None
        self.heads: dict[
            bool, tuple[tuple[int, ...], bytes]
        ] = {}  # of its commands, with budgets and without
        self.looks: list[Callable[[], None]] = []  # told once the store was asked how the scopes stand
        self.number = 0
        self._base = 0
        self._scopes: dict[str, Scope] = {}
        self._groups: dict[tuple[str | None, str, str], Group] = {}  # of this era
        self._moved: dict[Group, None] = {}  # they have what is not added up yet
        self._ends: dict[Group, None] = {}  # of these, with what the store does not know
        self._changed: dict[Scope, None] = {}  # by something else, since the last message was made
        self._said: dict[Scope, None] = {}  # in the one under way, in their places
        self._asked: list[Ask] = []
        self._looked: list[Callable[[], None]] = []
        self.waiting: list[Ask] = []
        self._open = 0  # calls under way
        self._ended: list[
            tuple[int, Granted]
        ] = []  # by their records' seqs; they hold until these are folded
        self._folded_seq = 0
        self._told: set[tuple[str, int, BudgetTerms, int]] = set()
        self._era = _NO_ERA
        self.windows: tuple[int, ...] = ()  # of all budgets, in this era
        self.has_budgets = False  # the message under way
        self._spent_news = False  # is there likely more spent than was heard of?

    @property
    def holds(self) -> bool:
        """Is anything under way, or held?"""
        return bool(self._open or self._ended)

    @property
    def all_scopes(self) -> Iterable[Scope]:
        """All that any call was in, with all that has happened."""
        self._add_up()
        return self._scopes.values()

    @property
    def wants(self) -> bool:
        """Is there anything new to be said?"""
        return bool(self.waiting or self._ends or self._changed)

    @property
    def waits(self) -> bool:
        """Does a call wait for an answer?"""
        return bool(self.waiting or self._asked)

    def use(self, terms: TenantTerms) -> None:
        """Go on with other limits; what is under way stays as it was admitted."""
        if terms == self.terms:
            return
        self._add_up()
        self.terms = terms
        self._groups.clear()
        for name, scope in self._scopes.items():
            scope.use(terms.of(name))
        self._era = _NO_ERA

    # What calls do

    def scopes(self, project: str | None, key_id: str, model: str) -> tuple[Scope, ...]:
        """The scopes with limits that such a call is in."""
        return self.group(project, key_id, model).scopes

    def group(self, project: str | None, key_id: str, model: str) -> Group:
        """Likewise, as what its calls change is noted."""
        key = (project, key_id, model)
        found = self._groups.get(key)
        if found is None:
            scopes = tuple(self._scope(*one) for one in self.terms.scopes(project, key_id, model))
            found = self._groups[key] = Group(scopes)
        return found

    def _scope(self, name: str, terms: Terms) -> Scope:
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = Scope(name, terms)
            if self._era != _NO_ERA:
                scope.begin_era(self._era)
                self.windows = tuple(sorted({*self.windows, *scope.windows}))
        return scope

    def ask(self, wish: Wish, answered: Callable[[Answer], None]) -> Ask:
        """Have a call wait for the next message."""
        ask = ask_of(wish, self.group(wish.project, wish.key_id, wish.model), answered)
        self.waiting.append(ask)
        return ask

    def _place(self, ask: Ask) -> None:
        """Have it be in the scopes and windows of now."""
        ask.group = self.group(ask.wish.project, ask.wish.key_id, ask.wish.model)

    def again(self, asks: Iterable[Ask]) -> None:
        """Ask for these once more. The limits, or the windows, may be others since."""
        for ask in asks:
            if not ask.given_up:
                self._place(ask)
                self.waiting.append(ask)

    def look(self, scopes: Iterable[Scope], seen: Callable[[], None]) -> None:
        """Have the store asked how these scopes stand."""
        self._changed |= dict.fromkeys(scopes)
        self.looks.append(seen)

    def give_up(self, ask: Ask, now_ms: int) -> None:
        """The call has gone: nothing of it is under way, and all that it took is given back."""
        if ask.given_up:
            return
        ask.given_up = True
        if isinstance(ask.answer, Granted):
            self._end(ask.answer, now_ms, 1, ask.answer.tokens, 0, None)
        elif ask in self.waiting:
            self.waiting.remove(ask)

    def settle(self, granted: Granted, now_ms: int, *, cost_pusd: int, tokens: int, seq: int | None) -> None:
        """The call has ended: it took so many tokens, and cost so much once the record at `seq` is folded.

        seq None: nobody will fold it.
        """
        self._end(granted, now_ms, 0, granted.tokens - tokens, cost_pusd, seq)

    def failed(self, granted: Granted, now_ms: int, *, cost_pusd: int, seq: int | None) -> None:
        """The call has ended and got nothing: it gives back what it took."""
        self._end(granted, now_ms, 1, granted.tokens, cost_pusd, seq)

    def _end(
        self, granted: Granted, now_ms: int, requests: int, tokens: int, pusd: int, seq: int | None
    ) -> None:
        """requests, tokens: to be given back, as far as they are owed still; tokens below 0: it took more."""
        assert not granted.ended
        granted.ended = True
        self._open -= 1
        group = granted.group
        group.running -= 1
        if granted.judged:
            if tokens < 0:
                group.tokens -= tokens
            elif tokens or requests:
                _give_back(granted, now_ms - granted.heard.ms, requests, tokens)
        if group.holds:
            if seq is None or seq <= self._folded_seq:
                pusd = 0
            group.hold_pusd += pusd - granted.hold_pusd
            granted.hold_pusd = pusd
            if pusd:
                assert seq is not None
                self._ended.append((seq, granted))
        self._moved[group] = self._ends[group] = None

    def folded(self, seq: int) -> bool:
        """Records up to `seq` are in the ledger: their costs are spent, and held no longer. False: no news."""
        self._folded_seq = seq
        if not self._ended or self._ended[0][0] > seq:
            return False
        left = []
        for one in self._ended:
            if one[0] > seq:
                left.append(one)
                continue
            granted = one[1]
            group = granted.group
            group.hold_pusd -= granted.hold_pusd
            self._moved[group] = self._ends[group] = None
        self._ended = left
        self._spent_news = True
        return True

    # Messages

    def message(self, era: Era, *, beat: bool = False) -> Message | None:
        """The next one, which then is under way; None: there is nothing to be said. beat: say at least that we live."""
        assert self.under_way is None
        if not (self.waiting or self._ends or self._changed or self.looks or beat):
            return None
        if era != self._era:
            self._begin_era(era)
        asks, said = self.waiting, self._scopes_now()
        for ask in asks:
            said |= ask.group.keys
        for place, scope in enumerate(said):
            scope.place = place
        lines = [*map(msgspec.structs.replace, map(_said, said))]  # as they are now
        looks = self._spent_news or beat or bool(self.looks)
        self.has_budgets = bool(self.windows and (asks or looks))
        if not self.has_budgets:
            for line in lines:
                line.budgets = []
        asks_said = [said_ask(ask.tokens, ask.hold_pusd, map(_place, ask.group.scopes)) for ask in asks]
        self.number += 1
        message = Message(self.number, self._base, 2 if looks else 0, lines, asks_said)  # 2: Kind.LOOK
        self.under_way, self._said, self._asked, self._looked = message, said, asks, self.looks
        self.waiting, self.looks = [], []
        return message

    def _scopes_now(self) -> dict[Scope, None]:
        """Those of which there is something to be said, all of them if the store may know of none."""
        said, self._changed = self._changed, {}
        for group in self._ends:
            said |= group.keys
        self._ends.clear()
        self._add_up()
        if self._base == 0:
            said |= {scope: None for scope in self._scopes.values() if not scope.is_bare}
        return said

    def _add_up(self) -> None:
        for group in self._moved:
            group.add_up()
        self._moved.clear()

    def leave(self) -> Message:
        """The last one of this worker, if it has ended well: nothing of its is kept."""
        self.number += 1
        return Message(self.number, 0, Kind.LEAVE, [], [])

    def lost(self) -> None:
        """Nobody will answer what is under way: it is asked again, with all sums."""
        self._base = 0
        if self.under_way is not None:
            self._changed |= self._said
            self.waiting = [ask for ask in self._asked if not ask.given_up] + self.waiting
            self.looks = self._looked + self.looks
            self.under_way, self._said, self._asked, self._looked = None, {}, [], []

    def taken(self, reply: Reply, now_ms: int, wall_ns: Callable[[], int], outcome: Outcome) -> None:
        """Take in the answer to the message under way; what comes of it goes into `outcome`."""
        message = self.under_way
        assert message is not None
        status = reply.status
        if status and status > Status.UNREADY:
            self.number = max(self.number, reply.number)
            self.lost()
            return
        self._base = message.number
        heard = Heard(now_ms, reply.stands)
        for scope in self._said:
            scope.heard = heard
            scope.heard_place = scope.place
        if reply.spent:
            self._hear_spent(message, reply.spent, outcome)
        if message.kind:
            self._spent_news = False
        asked, looked = self._asked, self._looked
        self.under_way, self._asked, self._looked = None, [], []
        if status:
            outcome.unjudged += asked
        else:
            answers = outcome.answers
            for ask, said, verdict in zip(asked, message.asks, reply.verdicts, strict=True):
                if verdict or ask.given_up:
                    self._not_granted(ask, verdict, message, outcome, wall_ns)
                else:
                    group = ask.group
                    group.requests += 1
                    group.tokens += ask.tokens
                    answers.append((ask, self._granted(ask, said[3:], heard, True)))
        for seen in looked:
            seen()

    def _hear_spent(self, message: Message, spent: list[str], outcome: Outcome) -> None:
        at = 0
        for scope, said in zip(self._said, message.scopes, strict=True):
            count = len(said.budgets) // 4
            texts = spent[at : at + count]
            at += count
            if texts != scope.spent and said.budgets is scope.budgets:
                scope.spent = texts
                for window, text in zip(budget_windows(said.budgets), texts, strict=True):
                    outcome.passed.extend(self._passed(scope, window, int(text)))

    def _not_granted(
        self,
        ask: Ask,
        verdict: int | Verdict,
        message: Message,
        outcome: Outcome,
        wall_ns: Callable[[], int],
    ) -> None:
        if not isinstance(verdict, Verdict):
            self._changed |= dict.fromkeys(ask.scopes)  # the store counts it until it is told otherwise
        elif not ask.given_up:
            ask.tries += 1
            soon = verdict.limit in (Limit.CONCURRENCY, Limit.BUDGET) or 0 < verdict.wait_ms <= AGAIN_MS
            if soon and ask.tries < TRIES_MAX:
                outcome.again.append(ask)
            else:
                outcome.answers.append((ask, self._refused(ask, verdict, message, wall_ns())))

    def _granted(self, ask: Ask, places: list[int], heard: Heard, judged: bool) -> Granted:
        group, hold_pusd = ask.group, ask.hold_pusd
        group.running += 1
        if group.holds:
            group.hold_pusd += hold_pusd
        self._moved[group] = None
        self._open += 1
        granted = Granted(self.tenant, group, places, heard, ask.tokens, hold_pusd, judged)
        ask.answer = granted
        return granted

    def _refused(self, ask: Ask, verdict: Verdict, message: Message, wall_ns: int) -> Refused:
        said = message.scopes[verdict.scope]
        wait_ms: int | None = None if verdict.wait_ms == NEVER else verdict.wait_ms
        match verdict.limit:
            case Limit.REQUESTS:
                limit = f"requests_per_minute of {scope_words(said.scope)}: {said.requests_per_minute}"
            case Limit.TOKENS:
                limit = f"tokens_per_minute of {scope_words(said.scope)}: {said.tokens_per_minute}"
                if verdict.wait_ms == NEVER:
                    limit += f", and this call alone may take {ask.tokens}"
            case Limit.CONCURRENCY:
                limit = f"concurrency of {scope_words(said.scope)}: {said.concurrency}"
            case _:
                window, pusd, _ = [*budgets_of(said)][verdict.budget]
                limit = f"budget of {scope_words(said.scope)}: {_usd(pusd)} USD in {window}"
                if ask.hold_pusd > pusd:
                    limit += f", and this call alone may cost {_usd(ask.hold_pusd)}"
                wait_ms = max(0, -(-(end_ns(str(window)) + BEFORE_NS - wall_ns) // NS_PER_MS))
        return refusal(ask, limit, wait_ms, of_budget=verdict.limit == Limit.BUDGET)

    # While the store cannot say

    def unjudged(self) -> list[Ask]:
        """All that wait for an answer, and now do not: nobody can be asked."""
        self.lost()
        waiting, self.waiting = self.waiting, []
        return waiting

    def grant_unjudged(self, ask: Ask) -> Granted:
        """Admit a call without the store, which will be told of it when it is back."""
        granted = self._granted(ask, [], NOTHING_HEARD, False)
        self._ends[ask.group] = None
        return granted

    def seen(self) -> list[Callable[[], None]]:
        """Who asked how scopes stand, and will not be told anything newer."""
        looks, self.looks = self.looks, []
        return looks

    def begin(self) -> None:
        """Go on as another worker: what is under way is its own, what has ended stays the former one's."""
        self.lost()
        self.heads.clear()
        self.number = self._folded_seq = 0
        for _, granted in self._ended:
            granted.group.hold_pusd -= granted.hold_pusd
            self._moved[granted.group] = None
        self._ended = []

    # Budgets

    def _begin_era(self, era: Era) -> None:
        self._era = era
        for scope in self._scopes.values():
            scope.begin_era(era)
        self.windows = tuple(sorted({window for scope in self._scopes.values() for window in scope.windows}))
        self._told = {one for one in self._told if one[1] in self.windows}
        self._groups.clear()
        for ask in self.waiting:
            self._place(ask)

    def _passed(self, scope: Scope, window: int, spent: int) -> Iterable[Passed]:
        for budget in scope.terms.budgets:
            if window in self._era.windows(budget.per):
                for percent in budget.thresholds:
                    key = (scope.name, window, budget, percent)
                    if spent * 100 >= budget.pusd * percent and key not in self._told:
                        self._told.add(key)
                        yield Passed(self.tenant, scope.name, str(window), budget, percent, spent)


def _give_back(granted: Granted, elapsed_ms: int, requests: int, tokens: int) -> None:
    """Give back what a call took of rates, as far as it is owed still: with time most has come back by itself."""
    stands, places = granted.heard.stands, iter(granted.places)
    for scope in granted.group.scopes:
        said, at = scope.said, 3 * next(places)
        if tokens and (limit := said.tokens_per_minute) and stands[at + 2] > elapsed_ms * limit:
            back = returnable(tokens, stands[at + 2], elapsed_ms, limit)
            said.tokens = (said.tokens - back) % ROUND
        if requests and said.requests_per_minute:
            back = returnable(requests, stands[at + 1], elapsed_ms, said.requests_per_minute)
            said.requests = (said.requests - back) % ROUND


def refusal(ask: Ask, limit: str, wait_ms: int | None, *, of_budget: bool = False) -> Refused:
    """A refusal in these words, with how the call's rates stand."""
    return Refused(
        code="insufficient_quota" if of_budget else "rate_limit_exceeded",
        limit=limit,
        retry_after_ms=wait_ms,
        requests=tightest([(scope.requests_per_minute, scope.requests_debt) for scope in ask.scopes]),
        rate_of_tokens=tightest([(scope.tokens_per_minute, scope.tokens_debt) for scope in ask.scopes]),
    )


def scope_words(scope: str) -> str:
    """A scope as people name it: "the tenant", "the key 0f3a…"."""
    kind, _, name = scope.partition(":")
    return "the tenant" if scope == TENANT else f"the {_NAMED[kind]} {name}"


def _usd(pusd: int) -> str:
    return usd_text(pusd).rstrip("0").rstrip(".")
