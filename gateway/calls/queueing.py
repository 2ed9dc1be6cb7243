"""This worker's seats at each backend, and who sits down next when all are taken. Pure.

A free seat is taken at once. When there is none a call waits in its tenant's line; a seat that is freed goes to the
tenant whose turn it is (fairness.py), and there to the call that has waited longest, of those that may use it. A seat
is held from the grant to the release, whatever happens in between.

Where other workers have seats at the same backend, the store says how many are this worker's (pooled.py): a freed seat
may have to go back there, and one that comes from there is a tenant's.
"""

import collections
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.calls.fairness import NO_CLAIM, Claims, ExpectedWork, VirtualCounters
from gateway.calls.pace import Pace
from metering.limits.pool_messages import Line
from metering.units import NS_PER_MS, NS_PER_S

KEPT_PART = 10
"""One of so many places is kept for tenants that have nobody waiting, of which there may be fewer."""

RETRY_AFTER_S_MAX = 60


class Ticket:
    """A call's place in its tenant's line. wants: the backends it may go to, best first.

    granted: whoever frees a seat calls it with the backend, if the seat is now this ticket's.
    asked_ns: since when it waits. charged: the backend whose counters were charged for its seat, and how much.
    """

    __slots__ = ("asked_ns", "charged", "granted", "model", "tenant", "wants")

    def __init__(self, tenant: str, model: str, granted: Callable[[str], None]) -> None:
        self.tenant = tenant
        self.model = model
        self.granted = granted
        self.wants: tuple[str, ...] = ()
        self.asked_ns = 0
        self.charged: tuple[str, float] | None = None


class TurnedAway(NamedTuple):
    """A call that may not wait. late: its turn would come too late; else there is no place. retry_after_s: from 1."""

    late: bool
    retry_after_s: int


class Pool(Protocol):
    """Where seats at a backend come from, if they are not this worker's for good."""

    def takes_back(self) -> bool:
        """Is a seat that is freed now to be given up?"""

    def returned(self) -> None:
        """One was."""

    def waits(self, tenant: str) -> None:
        """A call of a tenant waits."""


class _Waiting:
    """The tickets of a tenant that wait, in order of arrival, and how many there are of each model."""

    __slots__ = ("of_model", "tickets")

    def __init__(self) -> None:
        self.tickets: dict[Ticket, None] = {}
        self.of_model: collections.Counter[str] = collections.Counter()

    def first(self, backend: str) -> Ticket | None:
        """The one that has waited longest, of those that may go there."""
        return next((ticket for ticket in self.tickets if backend in ticket.wants), None)


class Seats:
    """Seats by backend, and the lines before them.

    caps: seats at each backend, all of this worker until its pool says otherwise; None: no cap.
    calls_max: how many calls of one model may wait.
    clock: monotonic nanoseconds; looked at only when somebody waits.
    """

    def __init__(
        self,
        caps: Mapping[str, int | None],
        *,
        calls_max: int,
        clock: Callable[[], int],
        claims: Claims | None = None,
    ) -> None:
        self._calls_max = calls_max
        self._few = min(1, calls_max)  # while fewer than this wait, nobody is turned away
        self._sizes = dict(caps)
        self._caps = dict(caps)
        self._clock = clock
        self._claims: Claims = claims or {}
        self._taken = dict.fromkeys(caps, 0)
        self._waits = 0  # tickets, in all lines
        self._lines: dict[str, _Waiting] = {}  # by tenant, those with somebody in them
        self._of_model: collections.Counter[str] = collections.Counter()  # tickets, in all lines
        self._counters = {backend: VirtualCounters(self._claims) for backend in caps}
        self._expected = ExpectedWork()
        self._paces: dict[str, Pace] = {}  # by model
        self._pools: dict[str, Pool] = {}  # by backend

    def use(self, claims: Claims) -> None:
        """What tenants may claim, from now on."""
        self._claims = claims
        for counters in self._counters.values():
            counters.claims = claims

    def counters(self, backend: str) -> VirtualCounters:
        """What is charged for seats at a backend."""
        return self._counters[backend]

    def join(self, backend: str, pool: Pool) -> None:
        """From now on the pool is asked for the seats of a backend, and told of those that wait for them."""
        self._pools[backend] = pool

    def part(self, backend: str) -> None:
        """From now on no pool is: this worker's seats are its own."""
        self._pools.pop(backend, None)

    def share_of(self, tenant: str) -> int:
        """Of the tenant, as it is now."""
        return self._claims.get(tenant, NO_CLAIM).share

    def taken(self, backend: str) -> int:
        """Seats in use at a backend."""
        return self._taken[backend]

    def size(self, backend: str) -> int | None:
        """A backend's seats, of this worker or not; None: no cap."""
        return self._sizes[backend]

    def waiting(self, model: str) -> int:
        """How many calls of a model wait."""
        return self._of_model[model]

    def turns_away(
        self, tenant: str, model: str, backends: Iterable[str], patience_ns: int
    ) -> TurnedAway | None:
        """May a call of a tenant that may use `backends` not even wait? None: it may, or finds a seat.

        Of a model's places in the line a tenant has its part, by share, of those that wait; alone it has nearly all.
        patience_ns: how long it would wait at most: whose turn would come later is told so at once.
        """
        if self._waits < self._few or any(map(self._free, backends)):
            return None
        line = self._lines.get(tenant)
        own = line.of_model[model] if line is not None else 0
        waiting = self._of_model[model]
        share, priority = self._claims.get(tenant, NO_CLAIM)
        rivals, rival_shares, before = 0, 0, 0  # of its priority class; calls of the classes before it
        for other, others in self._lines.items():
            calls = others.of_model[model]
            if other == tenant or not calls:
                continue
            claim = self._claims.get(other, NO_CLAIM)
            if claim.priority > priority:
                before += calls
            elif claim.priority == priority:
                rivals += calls
                rival_shares += claim.share
        kept = min(self._calls_max // KEPT_PART, max(len(self._claims) - 1, 0))
        part = max(1, (self._calls_max - kept) * share // (share + rival_shares))
        if waiting >= self._calls_max or (own >= part) or (own and waiting >= self._calls_max - kept):
            return TurnedAway(late=False, retry_after_s=1)
        # In the time of its own calls each rival has as many more as its share is larger, if it has as many.
        place = before + min(own + rivals + 1, math.ceil((own + 1) * (share + rival_shares) / share))
        pace = self._paces.get(model)
        wait_ns = pace.wait_ns(place, self._clock()) if pace is not None else None
        if wait_ns is None or wait_ns <= patience_ns:
            return None
        late_s = math.ceil((wait_ns - patience_ns) / NS_PER_S)
        return TurnedAway(late=True, retry_after_s=min(max(late_s, 1), RETRY_AFTER_S_MAX))

    def take(self, wants: tuple[str, ...]) -> str | None:
        """Take a free seat, at the best backend that has one. None: all are taken."""
        caps, taken = self._caps, self._taken
        for backend in wants:
            cap = caps[backend]
            if cap is None or taken[backend] < cap:
                taken[backend] += 1
                return backend
        return None

    def wait(self, ticket: Ticket, wants: tuple[str, ...]) -> None:
        """Wait for a seat: `release` will name it. A ticket that waits and asks for more keeps its place."""
        line = self._lines.get(ticket.tenant)
        more = [backend for backend in wants if backend not in ticket.wants]
        if line is None or ticket not in line.tickets:
            now_ns = self._clock()
            more = list(wants)
            ticket.asked_ns = now_ns
            if line is None:
                line = self._lines[ticket.tenant] = _Waiting()
            line.tickets[ticket] = None
            line.of_model[ticket.model] += 1
            self._of_model[ticket.model] += 1
            self._waits += 1
            self._paces.setdefault(ticket.model, Pace()).waits(now_ns)
        known = self._expected.known(ticket.tenant, ticket.model)
        for backend in more:
            if not any(backend in other.wants for other in line.tickets if other is not ticket):
                others = [one for one, its in self._lines.items() if its is not line and its.first(backend)]
                self._counters[backend].comes(ticket.tenant, known, others)
        ticket.wants = wants
        for backend in more:
            if (pool := self._pools.get(backend)) is not None:
                pool.waits(ticket.tenant)

    def leave(self, ticket: Ticket) -> None:
        """Stop waiting; a ticket that does not wait is left alone."""
        line = self._lines.get(ticket.tenant)
        if line is None or ticket not in line.tickets:
            return
        del line.tickets[ticket]
        line.of_model[ticket.model] -= 1
        self._of_model[ticket.model] -= 1
        self._waits -= 1
        if not line.tickets:
            del self._lines[ticket.tenant]
        if not self._of_model[ticket.model]:
            self._paces[ticket.model].rests(self._clock())

    def settle(self, ticket: Ticket, work: float | None) -> None:
        """The attempt that a ticket got its seat for is over, and took so much work: what it was charged is corrected.

        To be told before the seat is released: whose turn it is may hang on it. work: None: nobody knows.
        """
        if ticket.charged is None:
            return
        (backend, charge), ticket.charged = ticket.charged, None
        if work is None:
            return
        self._counters[backend].correct(ticket.tenant, work - charge)
        self._expected.learn(ticket.tenant, ticket.model, work)

    def release(self, backend: str) -> Ticket | None:
        """Give a seat back.

        returns: the ticket that now holds it; None if nobody waits for it.
        """
        assert self._taken[backend] > 0
        pool = self._pools.get(backend)
        if pool is not None and pool.takes_back():
            self._taken[backend] -= 1
            self.set_cap(backend, self.seats_of(backend) - 1)
            pool.returned()
            return None
        if self._waits:
            ticket = self._next(backend)
            if ticket is not None:
                return ticket
        self._taken[backend] -= 1
        return None

    # -- what the pool of a backend does

    def seats_of(self, backend: str) -> int:
        """This worker's seats at a backend that has a cap."""
        cap = self._caps[backend]
        assert cap is not None
        return cap

    def set_cap(self, backend: str, cap: int) -> None:
        """So many seats are this worker's: not less than are taken."""
        assert cap >= self._taken[backend]
        self._caps[backend] = cap

    def grant(self, backend: str, tenant: str | None) -> Ticket | None:
        """One seat more is this worker's. tenant: whose it is; None: that tenant's whose turn it is here.

        returns: the ticket that now holds it; None: nobody waits for it, and it is free.
        """
        self.set_cap(backend, self.seats_of(backend) + 1)
        return self.fill(backend, tenant)

    def fill(self, backend: str, tenant: str | None = None) -> Ticket | None:
        """Give a free seat to who waits for it. As `grant`; None also if there is none free."""
        if not self._waits or not self._free(backend):
            return None
        if tenant is None:
            ticket = self._next(backend)
        else:
            line = self._lines.get(tenant)
            ticket = line.first(backend) if line is not None else None
            if ticket is not None:
                self._serve(ticket, backend)
        if ticket is not None:
            self._taken[backend] += 1
        return ticket

    def lines(self, backend: str) -> tuple[Line, ...]:
        """Who waits for a backend, and how many of each."""
        now_ns = self._clock()
        return tuple(
            [
                self._line(tenant, tickets, now_ns)
                for tenant, line in self._lines.items()
                if (tickets := [ticket for ticket in line.tickets if backend in ticket.wants])
            ]
        )

    def _line(self, tenant: str, tickets: Sequence[Ticket], now_ns: int) -> Line:
        share, priority = self._claims.get(tenant, NO_CLAIM)
        first = tickets[0]
        return Line(
            tenant=tenant,
            priority=priority,
            share=share,
            waiting=len(tickets),
            age_ms=(now_ns - first.asked_ns) // NS_PER_MS,
            work=self._expected.of(tenant, first.model),
            credit=self._expected.known(tenant, first.model),
        )

    def _next(self, backend: str) -> Ticket | None:
        """Whose turn it is at a backend: the ticket waits no longer and is charged."""
        firsts = {tenant: line.first(backend) for tenant, line in self._lines.items()}
        counters = self._counters[backend]
        tenant = counters.next(tenant for tenant, first in firsts.items() if first is not None)
        if tenant is None:
            return None
        ticket = firsts[tenant]
        assert ticket is not None
        self._serve(ticket, backend)
        return ticket

    def _serve(self, ticket: Ticket, backend: str) -> None:
        work = self._expected.of(ticket.tenant, ticket.model)  # as it is known by now
        self._counters[backend].serve(ticket.tenant, work)
        ticket.charged = (backend, work)
        self._paces[ticket.model].moved(self._clock())
        self.leave(ticket)

    def _free(self, backend: str) -> bool:
        cap = self._caps[backend]
        return cap is None or self._taken[backend] < cap


def share(slots: int, worker: int, workers: int) -> int:
    """A worker's share of a backend's slots: slots ÷ workers, the remainder to the first workers."""
    assert 0 <= worker < workers
    return slots // workers + (worker < slots % workers)
