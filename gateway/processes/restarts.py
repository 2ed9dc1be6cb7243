"""When a worker that died is started again, and whether clients may wait for it meanwhile. Pure.

    died ─▶ again after 0.1 s, doubled by each death up to 5 s; 0.1 s again after a life of 10 s
    died 3 times in 10 s ─▶ its listening socket is closed, until a start has lived for 10 s

A listening socket of a worker that is only being restarted stays open: who connects waits a moment.
Of one that does not come up it must not, or a part of all clients would wait for nobody.
"""

from collections import deque
from typing import NamedTuple

from metering.units import NS_PER_S

DELAY_NS_MIN = NS_PER_S // 10
DELAY_NS_MAX = 5 * NS_PER_S
DEATHS_MAX = 3
WINDOW_NS = 10 * NS_PER_S


class Restart(NamedTuple):
    """What follows a death. at_ns: when to start again; listening: does its socket stay open until then?"""

    at_ns: int
    listening: bool


class Restarts:
    """The deaths of one worker. Times are of one monotonic clock, in ns."""

    def __init__(self) -> None:
        self._deaths_ns: deque[int] = deque(maxlen=DEATHS_MAX)
        self._delay_ns = DELAY_NS_MIN
        self.failing = False  # it died too often, and has not lived for long since

    def died(self, started_ns: int, now_ns: int) -> Restart:
        """The worker that was started at `started_ns` has just died."""
        assert started_ns <= now_ns
        if now_ns - started_ns >= WINDOW_NS:
            self._deaths_ns.clear()
            self._delay_ns = DELAY_NS_MIN
            self.failing = False
        self._deaths_ns.append(now_ns)
        often = len(self._deaths_ns) == DEATHS_MAX and now_ns - self._deaths_ns[0] < WINDOW_NS
        self.failing = self.failing or often
        delay_ns = DELAY_NS_MAX if self.failing else self._delay_ns
        self._delay_ns = min(2 * self._delay_ns, DELAY_NS_MAX)
        return Restart(now_ns + delay_ns, listening=not self.failing)
