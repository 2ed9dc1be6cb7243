"""Virtual token counters: whose turn it is, of the tenants that wait for a backend. Pure.

    virtual work of a tenant = Σ work of its calls that had to wait / its fairness share

Of those that wait, the highest priority class goes first; in it, the tenant with the least virtual work. A call's
work is charged as expected when it gets its seat, and corrected at its end by what it really was. Who comes back
after a while has no claim to what passed meanwhile: it is lifted to RETURN_CALLS calls below the present. A call that
found a seat free has taken nothing from anybody, and is not charged.

After Sheng et al., Fairness in Serving Large Language Models (VTC), OSDI 2024, with shares. Work is in work units,
prompt and completion tokens weighted (metering/cost/work_units.py).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

RETURN_CALLS = 2
"""How many calls' worth of virtual work a tenant that comes back may be ahead of those that have waited."""

FIRST_WORK = 1
"""Of a call of which nothing is known, so that calls are counted until something is. Too much would hold back for long
who comes while others are charged with it; too little is made good at the first ends."""

LEARNED_PART = 0.125
"""How much of what is expected the last call makes."""


class Claim(NamedTuple):
    """What a tenant may claim of a backend that is full. share: in relation to others' of its priority class."""

    share: int = 1
    priority: int = 0


NO_CLAIM = Claim()
Claims = Mapping[str, Claim]
"""By tenant; who is not there has NO_CLAIM."""


class VirtualCounters:
    """Those of one backend. claims: may be replaced at any time.

    charged: the work of each tenant, all told; changed: those of it that were charged since this was last emptied.
    """

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self.charged: dict[str, float] = {}
        self.changed: set[str] = set()
        self._virtual: dict[str, float] = {}
        self._last: dict[int, str] = {}  # by priority class: who was served last

    def comes(self, tenant: str, work: float, others: Iterable[str]) -> None:
        """A tenant with nobody waiting begins to wait. others: those that wait.

        work: of its call, as expected; 0: nothing is known of it.
        """
        claim = self.claims.get(tenant, NO_CLAIM)
        present = self._present(claim.priority, others)
        if present is not None:
            floor = present - RETURN_CALLS * work / claim.share
            self._virtual[tenant] = max(self._virtual.get(tenant, floor), floor)

    def _present(self, priority: int, others: Iterable[str]) -> float | None:
        """The least virtual work of those that wait in a class; if nobody does, that of who was served last."""
        waiting = [
            self._virtual.get(one, 0.0)
            for one in others
            if self.claims.get(one, NO_CLAIM).priority == priority
        ]
        if waiting:
            return min(waiting)
        last = self._last.get(priority)
        return None if last is None else self._virtual[last]

    def next(self, tenants: Iterable[str]) -> str | None:
        """Whose turn it is; None: nobody is there. Of equals it is the first."""
        claims, virtual = self.claims, self._virtual
        return min(
            tenants,
            key=lambda tenant: (-claims.get(tenant, NO_CLAIM).priority, virtual.get(tenant, 0.0)),
            default=None,
        )

    def serve(self, tenant: str, work: float) -> None:
        """A call of a tenant that waited gets a seat. work: as expected."""
        self._last[self.claims.get(tenant, NO_CLAIM).priority] = tenant
        self.correct(tenant, work)

    def correct(self, tenant: str, work: float) -> None:
        """work: what a call took beyond what it was charged; negative: it took less."""
        share = self.claims.get(tenant, NO_CLAIM).share
        self._virtual[tenant] = self._virtual.get(tenant, 0.0) + work / share
        self.charged[tenant] = self.charged.get(tenant, 0.0) + work
        self.changed.add(tenant)


class ExpectedWork:
    """What a call of a tenant and a model is expected to take, learned from those that have ended."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], float] = {}
        self._of_model: dict[str, float] = {}

    def of(self, tenant: str, model: str) -> float:
        """In work units, above 0; of a new tenant it is the model's, of a new model FIRST_WORK."""
        return self._of.get((tenant, model)) or self._of_model.get(model, FIRST_WORK)

    def known(self, tenant: str, model: str) -> float:
        """The same, but 0 of a new model."""
        return self._of.get((tenant, model)) or self._of_model.get(model, 0.0)

    def learn(self, tenant: str, model: str, work: float) -> None:
        """A call took this much. One that took nothing says nothing of the next."""
        if work > 0:
            expected = self.of(tenant, model)
            self._of[tenant, model] = expected + LEARNED_PART * (work - expected)
            known = self._of_model.get(model, work)
            self._of_model[model] = known + LEARNED_PART * (work - known)
