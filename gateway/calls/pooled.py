"""A backend's seats where several workers have some: what this worker says of them, and what it does with the answers.

    a call waits, a seat is freed ─▶ Said, at most one a turn ─▶ the store
    seats of tenants ◀─ Reply, Wake ◀─ the store                        (metering/limits/pool_member.py: the rules)

Nothing is asked for a call that finds a seat of this worker free.
"""

from collections.abc import Callable, Sequence

from gateway.calls.queueing import Seats
from metering.limits.pool_member import Member
from metering.limits.pool_messages import SPARE, Reply, Said, Wake

Send = Callable[[Said, Callable[[Reply | None], None]], bool]
"""Sends a message of a pool; what is called then has the reply, None: there will be none. False: it can't be sent."""


class PooledSeats:
    """This worker's seats at one backend. part: of its slots, where nobody can be asked.

    soon: calls what it is given when this turn of the loop is over. clock: monotonic nanoseconds.
    """

    def __init__(
        self,
        backend: str,
        slots: int,
        *,
        name: str,
        part: int,
        seats: Seats,
        send: Send,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int],
    ) -> None:
        self.backend = backend
        self._seats = seats
        self._send = send
        self._soon = soon
        self._clock = clock
        self._counters = seats.counters(backend)
        seats.join(backend, self)
        seats.set_cap(backend, 0)
        self._member = Member(name, slots, part=part, served=self._counters.charged, now_ns=clock())
        self._idle = 0  # at the last sweep
        self._saying = False
        self._again = False  # there is more to say than could be said
        self._left = False
        self.gone = False  # it has left, and the store knows, or cannot be told

    @property
    def away(self) -> bool:
        """Does the store not answer?"""
        return self._member.away

    @property
    def settling(self) -> bool:
        """Does the store give no seats yet?"""
        return self._member.settling

    # -- what the seats ask

    def takes_back(self) -> bool:
        """Is a seat that is freed now to be given up?"""
        return self._member.yields(self._seats.seats_of(self.backend), self._clock())

    def returned(self) -> None:
        """One was."""
        self._say_soon()

    def waits(self, tenant: str) -> None:
        """A call of a tenant waits."""
        if self._member.is_news(tenant):
            self._say_soon()

    # -- what is said

    def leave(self) -> None:
        """Say that it goes, with all that it holds. Its calls have ended."""
        self._left = True
        self._seats.set_cap(self.backend, self._seats.taken(self.backend))
        self._say()

    def _say_soon(self) -> None:
        if not self._saying:
            self._saying = True
            self._soon(self._say)

    def _say(self) -> None:
        self._saying = False
        member, seats = self._member, self._seats
        if not member.may_say():
            self._again = True
            return
        holds = seats.seats_of(self.backend)
        changed, self._counters.changed = self._counters.changed, set()
        said = member.say(
            holds=holds,
            idle=holds - seats.taken(self.backend),
            lines=seats.lines(self.backend),
            changed=changed,
            share_of=seats.share_of,
            now_ns=self._clock(),
            leaving=self._left,
        )
        self._again = False
        if not self._send(said, self._answered):
            self.gone = self._left
            self.disconnected()

    # -- what is heard

    def _answered(self, reply: Reply | None) -> None:
        self.gone = self._left
        if reply is None:
            self.disconnected()
        elif not self._left:
            self._take(self._member.answered(reply))
            if self._again or self._member.is_due(False, self._clock()):
                self._say_soon()

    def woken(self, wake: Wake) -> None:
        """Something has changed."""
        if wake.life == "":
            self._say_soon()
        elif not self._left:
            self._take(self._member.woken(wake))

    def connected(self) -> None:
        """The store can be asked, again."""
        self._say_soon()

    def disconnected(self) -> None:
        """The store is gone, for now."""
        self._member.disconnected(self._clock())
        self._seats.join(self.backend, self)

    def _take(self, tenants: Sequence[str]) -> None:
        """Seats of these tenants are this worker's from now on; what it may hold follows how things stand."""
        seats, backend = self._seats, self.backend
        if self._member.alone:
            seats.part(backend)  # calls cost nothing more then
        else:
            seats.join(backend, self)
        seated = [seats.grant(backend, None if tenant == SPARE else tenant) for tenant in tenants]
        self._settle()
        if any(self._member.is_news(line.tenant) for line in (seats.lines(backend) if tenants else ())):
            self._say_soon()
        for ticket in seated:
            if ticket is not None:
                ticket.granted(backend)

    def _settle(self) -> None:
        """Hold as many seats as the member may; who waits for one that is free gets it."""
        seats, backend = self._seats, self.backend
        holds, taken = seats.seats_of(backend), seats.taken(backend)
        cap = self._member.cap(holds, taken, self._clock())
        if cap != holds:
            seats.set_cap(backend, cap)
            self._say_soon()
        while (ticket := seats.fill(backend)) is not None:
            ticket.granted(backend)

    def sweep(self) -> None:
        """Twenty times a second: give back what nobody has needed since the last time; say something, if it is time."""
        seats, backend, member, now_ns = self._seats, self.backend, self._member, self._clock()
        member.look(now_ns)
        if member.away:
            seats.join(backend, self)
        self._settle()
        holds = seats.seats_of(backend)
        idle = holds - seats.taken(backend)
        unused = 0 if member.alone or member.away else min(idle, self._idle)
        self._idle = idle - unused
        if unused:
            seats.set_cap(backend, holds - unused)
            self._say_soon()
        elif member.is_due(bool(seats.lines(backend)), now_ns):
            self._say_soon()
