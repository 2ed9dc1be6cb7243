"""How limits are judged: the store's script in Python, and the arithmetic of rates. Pure.

`Sums` does with a message what metering/data/limits.lua does with it: the same checks, the same order, the same
answers. Tests hold the one against the other; a worker whose tenant shares limits out while the store is away asks one
of its own.

**A rate** is a debt that comes back with time (GCRA): what was taken in the last minute may be at most the limit, and
a limit comes back in a minute. A debt is counted in 1/60000 of one, so that each millisecond brings back exactly
`limit` of these. **A budget** is held to what was spent + what is held + the call's own hold. **Concurrency** to the
calls under way.
"""

from collections.abc import Mapping

import msgspec

from metering.limits.messages import (
    HALF,
    AskSaid,
    Kind,
    Limit,
    Message,
    Reply,
    ScopeSaid,
    Status,
    Verdict,
    budgets_of,
    held_of,
)

UNIT = 60_000
"""Of a debt: one request, or one token."""
DEBT_MAX = 9 * 10**15
ROUND = 2**52
"""What a worker has taken of a rate since it began is counted modulo this."""
SILENT_MS = 20_000
"""A worker that says nothing for longer has nothing under way; who has says something each second."""
SEEN_MS = 1_000
"""How often it is written down that a worker was seen."""
NEVER = -1


class Total(msgspec.Struct):
    """One scope, all workers together."""

    running: int = 0
    requests_debt: int = 0
    requests_at_ms: int = 0
    tokens_debt: int = 0
    tokens_at_ms: int = 0
    held: dict[int, int] = {}


class Part(msgspec.Struct):
    """One scope, one worker."""

    running: int = 0
    requests: int = 0
    tokens: int = 0
    held: dict[int, int] = {}


class Worker(msgspec.Struct):
    """What is known of one worker. whole: are its parts what it has said? seen_ms: to the second; None: silent."""

    number: int = 0
    seen_ms: int | None = None
    whole: bool = False
    parts: dict[str, Part] = {}


def drained(debt: int, at_ms: int, now_ms: int, limit: int) -> int:
    """What is left of a debt. A clock that was set back brings nothing back."""
    return max(0, debt - max(0, now_ms - at_ms) * limit)


def owed(debt: int, more: int) -> int:
    """A debt with so much more, or less."""
    return min(DEBT_MAX, max(0, debt + more))


def since(taken: int, before: int) -> int:
    """What was taken, or given back, between two counts modulo ROUND."""
    return (taken - before + ROUND // 2) % ROUND - ROUND // 2


def wait_ms(debt: int, units: int, limit: int) -> int:
    """How long until a rate lets `units` through: 0: now; NEVER: they are more than a minute's. limit 0: none."""
    if limit == 0:
        return 0
    if units > limit:
        return NEVER
    over = debt + (units - limit) * UNIT
    return max(0, -(-over // limit))


def returnable(units: int, debt: int, elapsed_ms: int, limit: int) -> int:
    """How much of `units` that were taken is still owed, and so can be given back; of a debt, in 1/60000.

    debt: just after they were taken. What has come back with time meanwhile cannot come back twice.
    """
    return min(units * UNIT, max(0, debt - elapsed_ms * limit))


class Sums:
    """What the store has of one tenant's limits. ready, spent: what the ledger says; spent by (window, scope)."""

    def __init__(self) -> None:
        self.totals: dict[str, Total] = {}
        self.workers: dict[str, Worker] = {}
        self.spent: Mapping[tuple[int, str], int] = {}
        self.ready = True

    def take(self, writer: str, message: Message, now_ms: int) -> Reply:
        """Take a worker's message."""
        known = self.workers.get(writer, Worker())
        if message.number <= known.number:
            return Reply(Status.STALE, known.number, [], [], [])
        if message.base > 0 and not (known.whole and message.base == known.number):
            return Reply(Status.BEHIND, known.number, [], [], [])
        worker = self.workers.setdefault(writer, Worker())
        if message.base == 0:
            self._forget_unnamed(worker, {scope.scope for scope in message.scopes})
        if message.kind == Kind.LEAVE:
            del self.workers[writer]
            return Reply(Status.TAKEN, message.number, [], [], [])
        for scope in message.scopes:
            self._set(worker, scope, now_ms)
        verdicts: list[int | Verdict] = []
        ready = self.ready or not (message.asks or message.kind == Kind.LOOK)
        if ready:
            for ask in message.asks:
                verdict = self._judge(writer, message.scopes, ask, now_ms)
                if verdict is None:
                    self._admit(worker, message.scopes, ask)
                verdicts.append(verdict or Limit.GRANTED)
        if worker.seen_ms is None or not worker.whole or now_ms - worker.seen_ms >= SEEN_MS:
            worker.seen_ms = now_ms
        worker.number, worker.whole = message.number, True
        status = Status.TAKEN if ready else Status.UNREADY
        spent = self._spent(message.scopes) if message.kind == Kind.LOOK else []
        return Reply(status, message.number, verdicts, self._stands(message.scopes), spent)

    def clear_running(self, writer: str) -> None:
        """A worker is dead, or silent: nothing of its is under way."""
        worker = self.workers.get(writer)
        if worker is not None:
            worker.whole = False
            for name, part in worker.parts.items():
                _take_out(self.totals[name], part, with_held=False)

    def forget(self, writer: str) -> None:
        """A worker is dead, and all that it has written is in the ledger: nothing of its is held."""
        worker = self.workers.pop(writer, None)
        if worker is not None:
            self._forget_unnamed(worker, set())

    def _forget_unnamed(self, worker: Worker, named: set[str]) -> None:
        for name in worker.parts.keys() - named:
            _take_out(self.totals[name], worker.parts.pop(name), with_held=True)

    def _set(self, worker: Worker, said: ScopeSaid, now_ms: int) -> None:
        total, part = self.totals.setdefault(said.scope, Total()), worker.parts.get(said.scope)
        if said.requests_per_minute:
            total.requests_debt = drained(
                total.requests_debt, total.requests_at_ms, now_ms, said.requests_per_minute
            )
            total.requests_at_ms = now_ms
        if said.tokens_per_minute:
            total.tokens_debt = drained(total.tokens_debt, total.tokens_at_ms, now_ms, said.tokens_per_minute)
            total.tokens_at_ms = now_ms
        if part is not None:
            total.requests_debt = owed(total.requests_debt, since(said.requests, part.requests))
            total.tokens_debt = owed(total.tokens_debt, since(said.tokens, part.tokens))
            _take_out(total, part, with_held=True)
        held: dict[int, int] = {}
        for window, pusd in held_of(said):
            held[window] = held.get(window, 0) + pusd
            total.held[window] = total.held.get(window, 0) + pusd
        worker.parts[said.scope] = Part(said.running, said.requests, said.tokens, held)
        total.running += said.running

    def _judge(self, writer: str, scopes: list[ScopeSaid], ask: AskSaid, now_ms: int) -> Verdict | None:
        hold_pusd = ask[1] * HALF + ask[2]
        for index in ask[3:]:
            said = scopes[index]
            for number, (window, pusd, hard) in enumerate(budgets_of(said)):
                held = self.totals[said.scope].held.get(window, 0)
                if hard and self.spent.get((window, said.scope), 0) + held + hold_pusd > pusd:
                    return Verdict(Limit.BUDGET, index, NEVER, number)
        for index in ask[3:]:
            said = scopes[index]
            if said.concurrency and self.totals[said.scope].running + 1 > said.concurrency:
                self._forget_the_silent(writer, now_ms)
                if self.totals[said.scope].running + 1 > said.concurrency:
                    return Verdict(Limit.CONCURRENCY, index, NEVER, 0)
        return self._judge_rates(scopes, ask)

    def _judge_rates(self, scopes: list[ScopeSaid], ask: AskSaid) -> Verdict | None:
        """The one that keeps it waiting for longest."""
        worst = None
        for index in ask[3:]:
            said, total = scopes[index], self.totals[scopes[index].scope]
            for limit, debt, units, per_minute in (
                (Limit.REQUESTS, total.requests_debt, 1, said.requests_per_minute),
                (Limit.TOKENS, total.tokens_debt, ask[0], said.tokens_per_minute),
            ):
                wait = wait_ms(debt, units, per_minute)
                if wait and (worst is None or (worst.wait_ms != NEVER and not 0 < wait <= worst.wait_ms)):
                    worst = Verdict(limit, index, wait, 0)
        return worst

    def _admit(self, worker: Worker, scopes: list[ScopeSaid], ask: AskSaid) -> None:
        for index in ask[3:]:
            said = scopes[index]
            total, part = self.totals[said.scope], worker.parts[said.scope]
            total.running += 1
            part.running += 1
            if said.requests_per_minute:
                total.requests_debt = owed(total.requests_debt, UNIT)
                part.requests = (part.requests + UNIT) % ROUND
            if said.tokens_per_minute:
                total.tokens_debt = owed(total.tokens_debt, ask[0] * UNIT)
                part.tokens = (part.tokens + ask[0] * UNIT) % ROUND
            for window in {window for window, _, _ in budgets_of(said)}:
                for held in (total.held, part.held):
                    held[window] = held.get(window, 0) + ask[1] * HALF + ask[2]

    def _forget_the_silent(self, writer: str, now_ms: int) -> None:
        for name, worker in self.workers.items():
            if name != writer and worker.seen_ms is not None and now_ms - worker.seen_ms > SILENT_MS:
                self.clear_running(name)
                worker.seen_ms = None

    def _stands(self, scopes: list[ScopeSaid]) -> list[int]:
        totals = [self.totals[said.scope] for said in scopes]
        return [n for total in totals for n in (total.running, total.requests_debt, total.tokens_debt)]

    def _spent(self, scopes: list[ScopeSaid]) -> list[str]:
        return [
            str(self.spent.get((window, said.scope), 0))
            for said in scopes
            for window, _, _ in budgets_of(said)
        ]


def _take_out(total: Total, part: Part, *, with_held: bool) -> None:
    total.running = max(0, total.running - part.running)
    part.running = 0
    if with_held:
        for window, pusd in part.held.items():
            total.held[window] = max(0, total.held.get(window, 0) - pusd)
        part.held = {}
