"""This worker's seats at each backend, and who sits down next when all are taken. Pure.

First come, first served: a freed seat goes to the longest-waiting call that may use it.
A seat is held from the grant to the release, whatever happens in between.
"""

from collections.abc import Callable, Iterable


class Ticket:
    """A call's place in the queue. wants: the backends it may go to, best first.

    granted: whoever releases a seat calls it with the backend, if the seat is now this ticket's.
    """

    __slots__ = ("granted", "model", "wants")

    def __init__(self, model: str, granted: Callable[[str], None]) -> None:
        self.model = model
        self.granted = granted
        self.wants: tuple[str, ...] = ()


class Seats:
    """Seats by backend, and one line of waiting tickets.

    caps: seats of this worker at each backend; None: no cap. calls_max: how many calls of one model may wait.
    """

    def __init__(self, caps: dict[str, int | None], *, calls_max: int) -> None:
        self._calls_max = calls_max
        self._caps = caps
        self._taken = dict.fromkeys(caps, 0)
        self._waiting: dict[Ticket, None] = {}  # in order of arrival

    def taken(self, backend: str) -> int:
        """Seats in use at a backend."""
        return self._taken[backend]

    def cap(self, backend: str) -> int | None:
        """This worker's seats at a backend; None: no cap."""
        return self._caps[backend]

    def waiting(self, model: str) -> int:
        """How many calls of a model wait."""
        return sum(ticket.model == model for ticket in self._waiting)

    def full(self, model: str, backends: Iterable[str]) -> bool:
        """Would a call that may use `backends` find neither a seat nor a place in the line?"""
        if len(self._waiting) < self._calls_max:
            return False
        return not any(map(self._free, backends)) and self.waiting(model) >= self._calls_max

    def ask(self, ticket: Ticket, wants: tuple[str, ...]) -> str | None:
        """Take a free seat, the best first, or wait. A waiting ticket keeps its place when it asks again.

        returns: the backend whose seat was taken; None: the ticket waits, `release` will name it.
        """
        ticket.wants = wants
        caps, taken = self._caps, self._taken
        for backend in wants:
            cap = caps[backend]
            if cap is None or taken[backend] < cap:
                self._waiting.pop(ticket, None)
                taken[backend] += 1
                return backend
        self._waiting.setdefault(ticket)
        return None

    def leave(self, ticket: Ticket) -> None:
        """Stop waiting; a ticket that does not wait is left alone."""
        self._waiting.pop(ticket, None)

    def release(self, backend: str) -> Ticket | None:
        """Give a seat back.

        returns: the ticket that now holds it; None if nobody waits for it.
        """
        assert self._taken[backend] > 0
        for ticket in self._waiting:
            if backend in ticket.wants:
                del self._waiting[ticket]
                return ticket
        self._taken[backend] -= 1
        return None

    def _free(self, backend: str) -> bool:
        cap = self._caps[backend]
        return cap is None or self._taken[backend] < cap


def share(slots: int | None, worker: int, workers: int) -> int | None:
    """A worker's share of a backend's slots: slots ÷ workers, the remainder to the first workers."""
    if slots is None:
        return None
    assert 0 <= worker < workers
    return slots // workers + (worker < slots % workers)
