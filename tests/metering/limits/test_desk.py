"""Desks of several workers at one model of the store; messages and answers are lost. A budget is never passed."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.limits.asks import Answer, Ask, Granted, Refused, Wish
from metering.limits.desk import Desk, Outcome, refusal, scope_words
from metering.limits.messages import Status
from metering.limits.rules import Sums
from metering.limits.share import Share, divided
from metering.limits.terms import BudgetTerms, Era, TenantTerms, Terms, end_ns, era, window
from metering.units import NS_PER_HOUR

NOON_NS = 1_795_867_200 * 10**9  # 2026-11-28T12:00:00Z
NOW_NS = NOON_NS + NS_PER_HOUR // 2
MONTH = 202611
BUDGET, HOLD = 200, 30
TERMS = TenantTerms(
    own=Terms(concurrency=9, budgets=(BudgetTerms(pusd=BUDGET, per="month"),)),
    keys={"k1": Terms(requests_per_minute=10**6, tokens_per_minute=10**9, concurrency=5)},
)


class Simulation:
    """Workers, a store and a ledger, with faults. broken: the store does not look at what is held."""

    def __init__(self, rng: random.Random, workers: int, *, broken: bool = False) -> None:
        self.rng, self.broken = rng, broken
        self.sums, self.spent, self.now_ms = Sums(), 0, 0
        self.desks = [Desk("acme", TERMS) for _ in range(workers)]
        self.open: list[list[Granted]] = [[] for _ in self.desks]
        self.unfolded: list[list[tuple[int, int]]] = [[] for _ in self.desks]
        self.seqs = [0] * workers
        self.waiting: list[Ask] = []

    def step(self) -> None:
        """Something happens in one worker."""
        rng, n = self.rng, self.rng.randrange(len(self.desks))
        desk = self.desks[n]
        self.now_ms += rng.randrange(5)
        match rng.choice(["ask", "ask", "end", "fail", "fold", "give up"]):
            case "ask":
                wish = Wish(
                    tenant="acme",
                    project=None,
                    key_id=rng.choice(["k1", "k2"]),
                    model="m",
                    tokens=7,
                    hold_pusd=HOLD,
                )
                self.waiting.append(desk.ask(wish, lambda _answer: None))
            case "end" if self.open[n]:
                self.end(n, rng.randint(0, HOLD))
            case "fail" if self.open[n]:
                desk.failed(self.open[n].pop(), self.now_ms, cost_pusd=0, seq=None)
            case "fold" if self.unfolded[n]:
                self.fold(n)
            case "give up" if self.waiting:
                ask = self.waiting.pop(rng.randrange(len(self.waiting)))
                for other, granted in enumerate(self.open):
                    if ask.answer in granted:
                        granted.remove(ask.answer)  # type: ignore[arg-type]
                        self.desks[other].give_up(ask, self.now_ms)
                        return
                if ask.answer is None:
                    desk.give_up(ask, self.now_ms)
        self.say(n, lossy=True)

    def end(self, n: int, cost: int) -> None:
        granted = self.open[n].pop(self.rng.randrange(len(self.open[n])))
        self.seqs[n] += 1
        self.unfolded[n].append((self.seqs[n], cost))
        self.desks[n].settle(
            granted, self.now_ms, cost_pusd=cost, tokens=self.rng.choice([3, 7, 9]), seq=self.seqs[n]
        )

    def fold(self, n: int) -> None:
        """The ledger first; the worker hears of it later."""
        self.spent += sum(cost for _, cost in self.unfolded[n])
        self.sums.spent = {(MONTH, "t"): self.spent}
        self.desks[n].folded(self.unfolded[n][-1][0])
        self.unfolded[n].clear()

    def say(self, n: int, *, lossy: bool, beat: bool = False) -> None:
        desk, rng = self.desks[n], self.rng
        while (message := desk.message(era(NOW_NS), beat=beat)) is not None:
            beat = False
            if lossy and rng.random() < 0.1:
                desk.lost()
                return
            if self.broken:
                for total in self.sums.totals.values():
                    total.held = {}
            reply = self.sums.take(f"w{n}", message, self.now_ms)
            if lossy and rng.random() < 0.1:
                desk.lost()
                return
            outcome = Outcome()
            desk.taken(reply, self.now_ms, lambda: NOW_NS, outcome)
            self.open[n] += [answer for _, answer in outcome.answers if isinstance(answer, Granted)]
            desk.again(outcome.again)

    @property
    def promised(self) -> int:
        """The most that may come to be spent: all that is under way at its hold."""
        unfolded = sum(cost for each in self.unfolded for _, cost in each)
        return self.spent + unfolded + HOLD * sum(map(len, self.open))


def run(rng: random.Random, workers: int, *, broken: bool = False) -> Simulation:
    found = Simulation(rng, workers, broken=broken)
    for _ in range(150):
        found.step()
        assert found.promised <= BUDGET
        assert sum(map(len, found.open)) <= 9
    return found


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_a_budget_is_never_passed_and_nothing_is_left_behind(rng: random.Random, workers: int) -> None:
    one = run(rng, workers)
    for n in range(workers):
        one.say(n, lossy=False, beat=True)
    assert one.sums.totals.get("t") is None or one.sums.totals["t"].running == sum(map(len, one.open))
    for n in range(workers):
        while one.open[n]:
            one.end(n, 1)
        if one.unfolded[n]:
            one.fold(n)
        one.say(n, lossy=False, beat=True)
        assert not one.desks[n].holds
        assert not one.desks[n].wants
    assert all(total.running == 0 and not any(total.held.values()) for total in one.sums.totals.values())
    for n, desk in enumerate(one.desks):
        assert one.sums.take(f"w{n}", desk.leave(), 0).status == Status.TAKEN
    assert one.sums.workers == {}


def test_a_store_that_forgets_what_is_held_is_found() -> None:
    def passed(seed: int) -> bool:
        try:
            run(random.Random(seed), 3, broken=True)
        except AssertionError:
            return True
        return False

    assert any(passed(seed) for seed in range(20))


def asked(desk: Desk, **changes: object) -> Ask:
    plain = {"tenant": "acme", "project": None, "key_id": "k1", "model": "m", "tokens": 7, "hold_pusd": HOLD}
    wish = Wish(**(plain | changes))  # type: ignore[arg-type]
    return desk.ask(wish, lambda _answer: None)


def answer_of(desk: Desk, sums: Sums, ask: Ask) -> Answer:
    outcome = Outcome()
    ask.tries = 1
    message = desk.message(era(NOW_NS))
    assert message is not None
    desk.taken(sums.take("w", message, 0), 0, lambda: NOW_NS, outcome)
    ((_, answer),) = outcome.answers
    return answer


@pytest.mark.parametrize(
    ("limits", "words", "wait_ms"),
    [
        (
            Terms(budgets=(BudgetTerms(pusd=1, per="hour"),)),
            "budget of the key k1: 0.000000000001 USD in 2026112812, and this call alone may cost 0.00000000003",
            1_801_000,
        ),
        (
            Terms(tokens_per_minute=6),
            "tokens_per_minute of the key k1: 6, and this call alone may take 7",
            None,
        ),
    ],
)
def test_a_refusal_says_which_limit_it_was(limits: Terms, words: str, wait_ms: int | None) -> None:
    desk = Desk("acme", TenantTerms(keys={"k1": limits}))
    answer = answer_of(desk, Sums(), asked(desk, tokens_min=7))
    assert isinstance(answer, Refused)
    assert (answer.limit, answer.retry_after_ms) == (words, wait_ms)


def test_other_limits_hold_from_the_next_ask_on() -> None:
    desk, sums = Desk("acme", TERMS), Sums()
    assert isinstance(answer_of(desk, sums, asked(desk)), Granted)
    desk.use(TERMS)
    desk.use(TenantTerms(own=Terms(concurrency=1)))
    refused = answer_of(desk, sums, asked(desk))
    assert isinstance(refused, Refused)
    assert refused.limit == "concurrency of the tenant: 1"
    desk.use(TenantTerms())
    assert desk.scopes(None, "k1", "m") == ()


def test_a_call_is_in_both_windows_where_one_ends() -> None:
    last = era(NOON_NS + NS_PER_HOUR - 5 * 10**9)
    assert last.windows("hour") == (2026112812, 2026112813)
    assert last.windows("month") == (202611,)
    assert Era(0, 0).windows("day") == (19700101,)
    assert end_ns("202612") == end_ns("20261231") == end_ns("2026123123")
    assert window("day", NOON_NS // NS_PER_HOUR) == "20261128"


HOURLY = TenantTerms(own=Terms(concurrency=1, budgets=(BudgetTerms(pusd=BUDGET, per="hour"),)))


@pytest.mark.parametrize("was_refused", [False, True])
def test_a_call_that_has_waited_into_another_hour_is_held_in_that(was_refused: bool) -> None:
    desk, sums, outcome = Desk("acme", HOURLY), Sums(), Outcome()
    first = answer_of(desk, sums, asked(desk))
    assert isinstance(first, Granted)
    waiting = asked(desk)
    if was_refused:  # once, and so it is asked again
        message = desk.message(era(NOW_NS))
        assert message is not None
        desk.taken(sums.take("w", message, 0), 0, lambda: NOW_NS, outcome)
        assert outcome.again == [waiting]
    desk.settle(first, 1, cost_pusd=3, tokens=7, seq=1)
    desk.again(outcome.again)
    later = era(NOW_NS + NS_PER_HOUR)
    for beat in (False, True):
        message = desk.message(later, beat=beat)
        assert message is not None
        desk.taken(sums.take("w", message, 2), 2, lambda: NOW_NS + NS_PER_HOUR, outcome)
    assert isinstance(waiting.answer, Granted)
    held = {2026112812: 3, 2026112813: HOLD}
    assert sums.totals["t"].held == held
    desk.lost()  # all of it is said anew
    message = desk.message(later, beat=True)
    assert message is not None
    assert sums.take("w", message, 3).status == Status.TAKEN
    assert sums.totals["t"].held == held


def test_what_is_given_up_before_it_is_asked_is_not_asked() -> None:
    desk = Desk("acme", TERMS)
    gone, stays = asked(desk), asked(desk)
    for _ in range(2):
        desk.give_up(gone, 0)
    assert desk.waiting == [stays]


def test_rates_are_given_back_as_far_as_they_are_owed() -> None:
    """A call took a thousand tokens; some ms later it turns out what it needed."""
    limits = Terms(requests_per_minute=60, tokens_per_minute=60_000)  # a token each ms
    terms = TenantTerms(own=limits, keys={"k1": Terms(tokens_per_minute=6_000_000)})

    def debts(tokens: int | None, elapsed_ms: int) -> tuple[int, int]:
        desk, sums = Desk("acme", terms), Sums()
        granted = answer_of(desk, sums, asked(desk, tokens=1_000))
        assert isinstance(granted, Granted)
        if tokens is None:
            desk.failed(granted, elapsed_ms, cost_pusd=0, seq=None)
        else:
            desk.settle(granted, elapsed_ms, cost_pusd=0, tokens=tokens, seq=None)
        message = desk.message(era(NOW_NS))
        assert message is not None
        desk.taken(sums.take("w", message, elapsed_ms), elapsed_ms, lambda: NOW_NS, Outcome())
        own, _key = desk.scopes(None, "k1", "m")
        return own.requests_debt // 60, own.tokens_debt // 60_000

    assert debts(1_000, 0) == (1_000, 1_000)
    assert debts(300, 0) == (1_000, 300)
    assert debts(300, 100) == (900, 200)
    assert debts(300, 900) == (100, 0), "of the seven hundred six came back with time"
    assert debts(1_500, 100) == (900, 1_400)
    assert debts(None, 0) == (0, 0)
    assert debts(None, 400) == (0, 0)


def test_a_share_is_a_part_and_never_nothing() -> None:
    parts = divided(TERMS, 4)
    assert (parts.own.concurrency, parts.own.budgets[0].pusd, parts.keys["k1"].concurrency) == (2, 50, 1)
    desk = Desk("acme", TenantTerms(own=Terms(concurrency=9)))
    share = Share(desk)
    share.divide(4)
    first = share.judge(asked(desk, key_id="k2"), 0, lambda: NOW_NS)
    second = share.judge(asked(desk, key_id="k2"), 0, lambda: NOW_NS)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert isinstance(share.judge(asked(desk, key_id="k2"), 0, lambda: NOW_NS), Refused)
    assert first.shared is not None
    share.settle(first.shared, 1, cost_pusd=5, tokens=7)
    desk.settle(first, 1, cost_pusd=5, tokens=7, seq=1)
    assert isinstance(share.judge(asked(desk, key_id="k2"), 2, lambda: NOW_NS), Granted)
    share.end()
    assert second.shared is not None
    share.give_up(second.shared, 3)


def test_words() -> None:
    assert [scope_words(scope) for scope in ("t", "p:web", "k:0a", "m:llama")] == [
        "the tenant", "the project web", "the key 0a", "the model llama"
    ]  # fmt: skip
    desk = Desk("acme", TERMS)
    assert refusal(asked(desk), "x", None).code == "rate_limit_exceeded"
