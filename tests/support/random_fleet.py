"""A fleet as chance has it: gateways that start, are killed and start again, servers that move, calls over full hours.

What it tells is kept twice: as makers of journal lines, and plainly, for an oracle that knows nothing of ours.
"""

import collections
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.support.fleet import HOUR, MINUTE_NS, busy, in_time, registration
from tests.support.journals import Make, stop, tick

HOURS = range(HOUR - 2, HOUR + 2)
"""Around midnight of a month's, and a year's, first day."""
FIRST = HOURS.start * 60
MINUTES = len(HOURS) * 60
TENANTS = ("acme", "beta", "gamma")
STATES = ("starting", "ready", "ready", "ready", "down")
INSTANCES = {"i-1": 24, "i-2": 8, "i-3": 8}
"""Instance → units."""


class Call(NamedTuple):
    """finished: minute since 1970."""

    tenant: str
    finished: int
    cost_pusd: int | None


class Journal(NamedTuple):
    """One writer's, whole."""

    writer: str
    at_ns: int
    makes: list[Make]


class Server(NamedTuple):
    """A backend, where it is, and its units."""

    backend: str
    instance: str
    units: int


class RandomFleet:
    """journals: of all writers. words: `registration` lines as tests/oracle/hours.py has them; last: writer → minute
    of its last line. calls: by writer."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._launched = {name: self._rng.choice([None, self._minute(-90, 30)]) for name in INSTANCES}
        self._slots = {name: self._rng.randint(1, 6) for name in ("a", "b", "c")}
        self.words: list[dict[str, Any]] = []
        self.last: dict[str, int] = {}
        self.calls: dict[str, list[Call]] = collections.defaultdict(list)
        self.journals = [
            journal for gateway in "gh"[: self._rng.randint(1, 2)] for journal in self._gateway(gateway)
        ]

    def _minute(self, low: int, high: int) -> int:
        """Since 1970, from one minute of HOURS to another."""
        return FIRST + self._rng.randint(low, high)

    def _gateway(self, name: str) -> Iterator[Journal]:
        """Its writers, one after the other; the second one may find that servers have moved."""
        servers = self._servers()
        ends = sorted({self._minute(20, MINUTES), self._minute(20, MINUTES), FIRST + MINUTES})
        begin = self._minute(0, 15)
        for number, end in enumerate(ends):
            here = servers if number == 0 else self._servers()
            gone = [one for one in servers if (one.backend, one.instance) not in {one[:2] for one in here}]
            yield self._writer("w" + name * 15 + "abc"[number], begin, end, here, gone)
            servers, begin = here, end + self._rng.choice([0, 0, 3, 40])
            if begin >= FIRST + MINUTES:
                return

    def _servers(self) -> list[Server]:
        return [
            Server("a", "i-1", 8),
            Server("b", "i-1", self._rng.choice([8, 16])),
            Server("c", self._rng.choice(["i-2", "i-3"]), self._rng.choice([4, 8])),
        ]

    def _writer(self, writer: str, begin: int, end: int, here: list[Server], gone: list[Server]) -> Journal:
        end = max(end, begin + 1)
        moments: list[tuple[int, str, Server]] = [(begin, "gone", one) for one in gone]
        for one in here:
            changes = sorted(self._rng.randint(begin, end) for _ in range(self._rng.randint(1, 3)))
            moments += [(at, self._rng.choice(STATES), one) for at in (begin, *changes)]
        moments.sort(key=lambda moment: moment[0])
        makes = [(at, self._word(writer, at, state, one)) for at, state, one in moments]
        full_hours = range(begin // 60 + 1, end // 60 + 1)
        makes += [(hour * 60, tick(at_ns=hour * 60 * MINUTE_NS)) for hour in full_hours]
        for number in range(self._rng.randint(0, 8)):
            makes += self._call(f"{writer}-{number}", writer, begin, end, here)
        last = max(at for at, _ in makes)
        if self._rng.random() < 0.5:
            last = end
            makes.append((end, stop(at_ns=end * MINUTE_NS)))
        self.last[writer] = last
        return Journal(writer, begin * MINUTE_NS, in_time(makes))

    def _word(self, writer: str, at: int, state: str, one: Server) -> Make:
        launched = self._launched[one.instance]
        self.words.append(
            {
                "writer": writer, "seq": len(self.words), "at": at, "instance": one.instance, "backend": one.backend,
                "state": state, "source": "config", "billed": "always", "launched": launched, "terminated": None,
            }
        )  # fmt: skip
        return registration(
            at * MINUTE_NS, state, backend=one.backend, instance_id=one.instance, units=one.units,
            units_total=INSTANCES[one.instance], slots=self._slots[one.backend],
            launched_ns=None if launched is None else launched * MINUTE_NS,
        )  # fmt: skip

    def _call(
        self, call_id: str, writer: str, begin: int, end: int, here: list[Server]
    ) -> Iterator[tuple[int, Make]]:
        at = self._rng.randint(begin, end - 1)
        finished = self._rng.randint(at, end)
        call = Call(
            self._rng.choice(TENANTS), finished, self._rng.choice([None, self._rng.randint(0, 10**9)])
        )
        self.calls[writer].append(call)
        tried, served = self._rng.choice(here).backend, self._rng.choice(here).backend
        lines = busy(
            call_id, at * MINUTE_NS, (finished - at) * MINUTE_NS,
            backend=self._rng.choice([served, served, served, None]),
            failed=self._rng.choice([None, None, tried]),
            tenant=call.tenant, cost_pusd=call.cost_pusd,
        )  # fmt: skip
        yield from zip((at, finished), lines, strict=True)
