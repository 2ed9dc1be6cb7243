"""Rates against a bucket that is filled by hand, and what the store must never do, whatever workers say."""

import fractions
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.limits.messages import Kind, Limit, Message, ScopeSaid, Status, Verdict, said_ask, said_budgets
from metering.limits.rules import (
    DEBT_MAX,
    NEVER,
    ROUND,
    SILENT_MS,
    UNIT,
    Sums,
    drained,
    owed,
    returnable,
    since,
    wait_ms,
)

limits = st.integers(1, 10**6)
steps = st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 500)), max_size=60)


class Bucket:
    """A minute's limit of tokens, filled at an even rate: the simple model, in exact fractions."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = fractions.Fraction(limit)

    def wait(self, elapsed_ms: int) -> None:
        self.left = min(
            fractions.Fraction(self.limit), self.left + fractions.Fraction(self.limit * elapsed_ms, 60_000)
        )

    def take(self, units: int) -> bool:
        if units > self.left:
            return False
        self.left -= units
        return True


@given(limits, steps)
def test_a_rate_admits_what_a_bucket_has(limit: int, some: list[tuple[int, int]]) -> None:
    bucket, debt, now_ms, at_ms = Bucket(limit), 0, 0, 0
    for elapsed_ms, units in some:
        now_ms += elapsed_ms
        bucket.wait(elapsed_ms)
        debt, at_ms = drained(debt, at_ms, now_ms, limit), now_ms
        wait = wait_ms(debt, units, limit)
        assert (wait == 0) == bucket.take(units)
        if wait == 0:
            debt = owed(debt, units * UNIT)
        elif wait == NEVER:
            assert units > limit
        else:  # to the millisecond
            assert wait_ms(drained(debt, at_ms, at_ms + wait, limit), units, limit) == 0
            assert wait_ms(drained(debt, at_ms, at_ms + wait - 1, limit), units, limit) != 0


@given(limits, st.integers(0, 10**9), st.integers(1, 1_000), st.integers(0, 200_000))
def test_what_is_given_back_was_owed_still(limit: int, before: int, units: int, elapsed_ms: int) -> None:
    """Giving back leaves what there would be had it never been taken; when nobody else comes, exactly that."""
    debt = owed(before, units * UNIT)
    back = returnable(units, debt, elapsed_ms, limit)
    assert 0 <= back <= units * UNIT
    assert drained(debt, 0, elapsed_ms, limit) - back == drained(before, 0, elapsed_ms, limit)


@given(st.integers(0, ROUND - 1), st.integers(-(10**14), 10**14))
def test_counts_go_round(before: int, more: int) -> None:
    assert since((before + more) % ROUND, before) == more


def test_a_debt_is_bounded_and_a_clock_set_back_pays_nothing() -> None:
    assert owed(DEBT_MAX, 10**9) == DEBT_MAX
    assert (owed(5, -1), owed(5, -9)) == (4, 0)
    assert drained(7, 1_000, 500, 10) == 7
    assert wait_ms(5, 1, 0) == 0


def scope(**said: object) -> ScopeSaid:
    plain = {"running": 0, "requests": 0, "tokens": 0, "requests_per_minute": 0, "tokens_per_minute": 0}
    return ScopeSaid("t", **(plain | {"concurrency": 0, "held": [], "budgets": []} | said))  # type: ignore[arg-type]


ASK = said_ask(0, 10, [0])


@given(st.randoms(use_true_random=False), st.integers(1, 8), st.integers(1, 60))
def test_never_one_too_many_and_never_one_too_few(rng: random.Random, workers: int, limit: int) -> None:
    """Calls of several workers begin and end; messages and answers are lost. Judged by a count of their own."""
    sums, now_ms = Sums(), 0
    numbers, bases, running = [0] * workers, [0] * workers, [0] * workers
    for _ in range(120):
        now_ms += rng.randrange(200)
        worker = rng.randrange(workers)
        if running[worker] and rng.random() < 0.4:
            running[worker] -= 1
            continue
        numbers[worker] += 1
        said = scope(running=running[worker], concurrency=limit)
        message = Message(numbers[worker], bases[worker], Kind.USUAL, [said], [ASK] * rng.randrange(4))
        if rng.random() < 0.1:  # it never came there
            bases[worker] = 0
            continue
        reply = sums.take(f"w{worker}", message, now_ms)
        if rng.random() < 0.1:  # its answer never came here
            bases[worker] = 0
            continue
        assert reply.status == Status.TAKEN
        bases[worker] = message.number
        running[worker] += reply.verdicts.count(Limit.GRANTED)
        assert sum(running) <= limit
    for worker in range(workers):  # quiet: all have said what there is
        numbers[worker] += 1
        sums.take(
            f"w{worker}",
            Message(numbers[worker], 0, Kind.USUAL, [scope(running=running[worker])], []),
            now_ms,
        )
    assert sums.totals["t"].running == sum(running)
    left = limit - sum(running)
    asked = Message(
        numbers[0] + 1, 0, Kind.USUAL, [scope(running=running[0], concurrency=limit)], [ASK] * (left + 1)
    )
    assert sums.take("w0", asked, now_ms).verdicts == [Limit.GRANTED] * left + [
        Verdict(Limit.CONCURRENCY, 0, NEVER, 0)
    ]


def test_the_silent_have_nothing_under_way_and_say_all_again() -> None:
    sums = Sums()
    sums.take("wa", Message(1, 0, Kind.USUAL, [scope(running=5)], []), 1_000)
    full = Message(1, 0, Kind.USUAL, [scope(concurrency=5)], [ASK])
    assert sums.take("wb", full, 1_000 + SILENT_MS).verdicts == [Verdict(Limit.CONCURRENCY, 0, NEVER, 0)]
    again = Message(2, 1, Kind.USUAL, [scope(concurrency=5)], [ASK])
    assert sums.take("wb", again, 1_001 + SILENT_MS).verdicts == [Limit.GRANTED]
    assert sums.take("wa", Message(2, 1, Kind.USUAL, [scope(running=4)], []), 30_000).status == Status.BEHIND
    assert sums.take("wa", Message(2, 0, Kind.USUAL, [scope(running=4)], []), 30_000).status == Status.TAKEN
    assert sums.totals["t"].running == 5


def test_the_dead_hold_until_they_are_folded() -> None:
    sums = Sums()
    held = scope(running=2, held=[202611, 0, 7])
    sums.take("wa", Message(1, 0, Kind.USUAL, [held], []), 0)
    sums.clear_running("wa")
    assert (sums.totals["t"].running, sums.totals["t"].held) == (0, {202611: 7})
    sums.forget("wa")
    sums.forget("wa")
    sums.clear_running("wa")
    assert (sums.totals["t"].held, sums.workers) == ({202611: 0}, {})


@pytest.mark.parametrize("ready", [True, False])
def test_nothing_is_judged_before_it_is_known_what_was_spent(ready: bool) -> None:
    sums = Sums()
    sums.ready = ready
    status = Status.TAKEN if ready else Status.UNREADY
    budget = scope(budgets=said_budgets([(202611, 10, True)]))
    assert sums.take("wa", Message(1, 0, Kind.USUAL, [budget], []), 0).status == Status.TAKEN
    reply = sums.take("wa", Message(2, 1, Kind.LOOK, [budget], [ASK, ASK]), 0)
    assert (reply.status, len(reply.verdicts), reply.spent) == (status, 2 if ready else 0, ["0"])
    assert sums.take("wa", Message(2, 1, Kind.USUAL, [], []), 0).status == Status.STALE


def test_soft_budgets_refuse_nobody() -> None:
    sums = Sums()
    sums.spent = {(202611, "t"): 10**18}
    soft = scope(budgets=said_budgets([(202611, 10, False)]))
    assert sums.take("wa", Message(1, 0, Kind.USUAL, [soft], [ASK]), 0).verdicts == [Limit.GRANTED]
    assert sums.totals["t"].held == {202611: 10}
