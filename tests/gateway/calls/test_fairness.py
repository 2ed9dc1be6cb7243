"""Shares of a full backend: a simulation of arrivals, services and ends, judged by what was served.

What a tenant should have had is computed here, from its share alone. Each law is held against counters that break it.
"""

import heapq
import random
from collections.abc import Callable, Mapping

import pytest

from gateway.calls.fairness import FIRST_WORK, RETURN_CALLS, Claim, ExpectedWork, VirtualCounters
from gateway.calls.queueing import Seats, Ticket

SHARES = {f"t{number}": share for number, share in enumerate([1, 1, 1, 2, 2, 3, 4, 4, 6, 8])}
SECOND = 1_000_000_000


class Rush:
    """Tenants that always have `deep` calls waiting before one backend. returns of each: how much work was served when.

    A call's time is its work; work is uneven, and differs by tenant: `scale`.
    """

    def __init__(
        self, claims: Mapping[str, Claim], *, seed: int, slots: int = 16, deep: int = 6, scale: float = 3.0
    ) -> None:
        self._rng = random.Random(seed)
        self._now_ns = 0
        self.seats = Seats({"b": slots}, calls_max=10_000, clock=lambda: self._now_ns, claims=claims)
        self._ends: list[tuple[int, int, Ticket | None, str, float]] = []
        self._number = 0
        self._mean = {tenant: self._rng.uniform(1, scale) * 1e6 for tenant in claims}
        self.served: list[tuple[int, str, float]] = []
        self._deep = deep
        for _ in range(slots):
            assert self.seats.take(("b",)) == "b"
            self._sit(None, "", 0.0)
        for tenant in claims:
            self.come(tenant)

    def come(self, tenant: str) -> None:
        for _ in range(self._deep):
            self._join(tenant)

    def _join(self, tenant: str) -> None:
        self.seats.wait(Ticket(tenant, "m", lambda _: None), ("b",))

    def _sit(self, ticket: Ticket | None, tenant: str, work: float) -> None:
        self._number += 1
        span_ns = round(max(work, 1e5) * 300)  # 0.3 s for a million work units
        heapq.heappush(self._ends, (self._now_ns + span_ns, self._number, ticket, tenant, work))

    def run(self, until_s: float, *, again: Callable[[str], bool] = lambda _: True) -> None:
        """again: does this tenant send another call when one of its has ended?"""
        while self._ends and self._ends[0][0] < until_s * SECOND:
            self._now_ns, _, ticket, tenant, work = heapq.heappop(self._ends)
            if ticket is not None:
                self.served.append((self._now_ns, tenant, work))
                self.seats.settle(ticket, work)
            after = self.seats.release("b")
            if after is not None:
                took = self._rng.expovariate(1 / self._mean[after.tenant])
                self._sit(after, after.tenant, took)
                if again(after.tenant):
                    self._join(after.tenant)

    def parts(self, from_s: float, until_s: float) -> dict[str, float]:
        """What part of all work each tenant was served between these times."""
        sums: dict[str, float] = {}
        for at_ns, tenant, work in self.served:
            if from_s * SECOND <= at_ns < until_s * SECOND:
                sums[tenant] = sums.get(tenant, 0.0) + work
        return {tenant: work / sum(sums.values()) for tenant, work in sums.items()}


def worst_deviation(rush: Rush, shares: Mapping[str, int], window_s: float = 60.0) -> float:
    """The largest relative deviation from a tenant's share over any of two windows after the first 5 s."""
    rush.run(5 + 2 * window_s)
    whole = sum(shares.values())
    worst = 0.0
    for number in range(2):
        parts = rush.parts(5 + number * window_s, 5 + (number + 1) * window_s)
        worst = max(worst, *(abs(parts.get(one, 0.0) * whole / share - 1) for one, share in shares.items()))
    return worst


CLAIMS = {tenant: Claim(share) for tenant, share in SHARES.items()}


@pytest.mark.parametrize("seed", range(3))
def test_served_work_follows_the_shares(seed: int) -> None:
    assert worst_deviation(Rush(CLAIMS, seed=seed, slots=160), SHARES) < 0.05


def ignore_the_work(counters: VirtualCounters, tenant: str, work: float) -> None:
    """Calls are counted, not their work."""
    counters._virtual[tenant] = (
        counters._virtual.get(tenant, 0.0) + (work > 0) / counters.claims[tenant].share
    )


def ignore_the_share(counters: VirtualCounters, tenant: str, work: float) -> None:
    counters._virtual[tenant] = counters._virtual.get(tenant, 0.0) + work


@pytest.mark.parametrize("mutant", [ignore_the_work, ignore_the_share])
def test_a_mutant_strays_from_the_shares(mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualCounters, "correct", mutant)
    assert worst_deviation(Rush(CLAIMS, seed=1, slots=160), SHARES) > 0.1


def test_without_corrections_long_calls_are_a_bargain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seats, "settle", lambda *_: None)
    assert worst_deviation(Rush(CLAIMS, seed=1, slots=160), SHARES) > 0.1


def returns_after(seconds: float) -> float:
    """The part of the work that a tenant of two is served in the 10 s after it came back."""
    rush = Rush({"a": Claim(), "b": Claim()}, seed=7, slots=16, deep=40)
    rush.run(5.0)
    rush.run(5.0 + seconds, again=lambda tenant: tenant == "a")
    rush.come("b")
    rush.run(25.0 + seconds)
    return rush.parts(10 + seconds, 25.0 + seconds)["b"]


def test_who_comes_back_has_no_claim_to_the_time_between() -> None:
    assert 0.4 < returns_after(60.0) < 0.6


def test_a_mutant_that_does_not_lift_serves_who_comes_back_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualCounters, "comes", lambda *_: None)
    assert returns_after(60.0) > 0.8


def test_a_higher_class_goes_first_whatever_it_had() -> None:
    counters = VirtualCounters({"low": Claim(100), "high": Claim(1, priority=1)})
    counters.comes("low", 10, [])
    counters.comes("high", 10, ["low"])
    for _ in range(5):
        assert counters.next(["low", "high"]) == "high"
        counters.serve("high", 1000)
    assert counters.next(["low"]) == "low"
    assert counters.next([]) is None


def test_who_comes_is_lifted_to_two_calls_below_the_present() -> None:
    counters = VirtualCounters({"new": Claim(4)})
    counters.comes("old", 100, [])
    for _ in range(10):
        counters.serve("old", 100)
    counters.comes("new", 400, ["old"])
    turns = []
    for _ in range(RETURN_CALLS + 2):
        tenant = counters.next(["old", "new"])
        assert tenant is not None
        turns.append(tenant)
        counters.serve(tenant, {"old": 100, "new": 400}[tenant])
    assert turns == ["new"] * RETURN_CALLS + ["old", "new"]
    counters.comes("old", 100, ["new"])  # it had left for a moment: what it was served is not forgotten
    assert counters.next(["new", "old"]) == "new"
    counters.comes("unknown", 0, [])
    assert counters.next(["unknown", "old"]) == "unknown"


def test_of_equals_the_first_is_next() -> None:
    assert VirtualCounters({}).next(["b", "a"]) == "b"


def test_what_is_expected_is_learned_by_tenant_and_model() -> None:
    expected = ExpectedWork()
    assert expected.of("a", "m") == FIRST_WORK
    for _ in range(200):
        expected.learn("a", "m", 4000)
    assert expected.of("a", "m") == pytest.approx(4000, rel=0.01)
    assert expected.of("new", "m") == pytest.approx(4000, rel=0.01)
    assert expected.of("a", "other") == FIRST_WORK
    expected.learn("a", "m", 0)
    assert expected.of("a", "m") == pytest.approx(4000, rel=0.01)
    assert [expected.known("a", "m") > 0, expected.known("a", "other")] == [True, 0.0]
