"""How fast a line moves, and so whether it is worth joining. Pure.

expected wait = places ahead, and one's own / seats given to the line per second, while somebody waited
"""

MOVES_MIN = 8
"""Fewer seats given say nothing yet: nobody is turned away for them."""

HORIZON_NS = 20_000_000_000
"""After so much waiting what was seen counts half: the pace is that of the last half minute or so."""


class Pace:
    """Of one line. Times are monotonic nanoseconds."""

    __slots__ = ("_moves", "_since_ns", "_waited_ns")

    def __init__(self) -> None:
        self._moves = 0.0
        self._waited_ns = 0.0
        self._since_ns: int | None = None  # up to when the waiting is counted; None: nobody waits

    def waits(self, now_ns: int) -> None:
        """Somebody waits from now on, if nobody did."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def moved(self, now_ns: int) -> None:
        """A seat was given to the line."""
        self._count(now_ns)
        self._moves += 1
        if self._waited_ns > HORIZON_NS:
            self._waited_ns /= 2
            self._moves /= 2

    def rests(self, now_ns: int) -> None:
        """Nobody waits any more."""
        self._count(now_ns)
        self._since_ns = None

    def wait_ns(self, place: int, now_ns: int) -> int | None:
        """How long who joins at this place, from 1, will wait; None: not known."""
        if self._moves < MOVES_MIN:
            return None
        waited_ns = self._waited_ns + (now_ns - self._since_ns if self._since_ns is not None else 0)
        return round(place * waited_ns / self._moves)

    def _count(self, now_ns: int) -> None:
        if self._since_ns is not None:
            self._waited_ns += now_ns - self._since_ns
            self._since_ns = now_ns
