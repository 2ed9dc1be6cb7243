"""A worker as a member of a pool: what it says to the store, and what follows from the answers. Pure.

    alone       there is no other worker: it holds all slots, and orders its calls by itself
    calm        nobody waits anywhere: a freed slot is kept for a moment, for the next call
    contended   somebody waits: a freed slot goes back to the store, which knows whose turn it is
    settling    the store has lost the pool: each keeps what it holds until all have said so
    away        the store does not answer: each comes down to its part of the slots, and then takes up to it

A store that is only slow does not stop calls: while an answer is late freed slots are passed on here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from metering.limits.pool_messages import Line, Reply, Said, Served, Wake
from metering.units import NS_PER_MS, NS_PER_S

UNDER_WAY_MAX = 4
"""Messages that are not answered yet; a slot that is freed meanwhile should not wait for a whole round trip."""
LATE_NS = 100 * NS_PER_MS
"""After so long an answer is late: what is freed then stays here."""
AWAY_NS = NS_PER_S
"""After so long without an answer the store is away."""
GROW_NS = 5 * NS_PER_S
"""How long a store must have been away before a worker takes slots that it does not hold: others come down first."""
BEAT_NS = NS_PER_S
WAITING_BEAT_NS = 200 * NS_PER_MS
"""A wake may be lost: while calls wait, the store is asked at least so often."""


class Member:
    """Of one pool. name: of this worker, of no other ever; slots: of the backend; part: of them, if nobody is known.

    served: work by tenant, all told, as it is counted elsewhere.
    """

    def __init__(self, name: str, slots: int, *, part: int, served: Mapping[str, float], now_ns: int) -> None:
        self.slots = slots
        self.alone = False
        self._name = name
        self._part = part
        self._served = served
        self._life = ""
        self._number = 0
        self._acked = 0
        self._seen = 0
        self._version = -1
        self._members: tuple[str, ...] = ()
        self._roster: tuple[str, ...] = ()
        self._contended = False
        self._who = False
        self._settling = False
        self._extra = 0  # slots taken while the store was away, of which it does not know
        self._away_from_ns: int | None = now_ns - GROW_NS  # until it has been heard for the first time
        self._said_away = 0  # the last message before it was back
        self._said_ns = now_ns
        self._under_way: dict[int, tuple[int, dict[str, float]]] = {}  # number → when, and what was served
        self._told: dict[str, float] = {}  # served, as of the last message that was answered
        self._changed: set[str] = set()  # tenants whose `served` is not told
        self._believed: dict[str, int] = {}  # how many of a tenant the store takes to be waiting here

    @property
    def away(self) -> bool:
        """Is the store away?"""
        return self._away_from_ns is not None

    @property
    def settling(self) -> bool:
        """Does the store wait to hear of others, and give nothing until then?"""
        return self._settling

    @property
    def part(self) -> int:
        """This worker's part of the slots, by how many there are as far as it knows."""
        if self._name not in self._members:
            return self._part
        count, rank = len(self._members), self._members.index(self._name)
        return self.slots // count + (rank < self.slots % count)

    def yields(self, holds: int, now_ns: int) -> bool:
        """Is a slot that is freed now to be given up? holds: with that one."""
        if self._away_from_ns is not None:
            return holds > self.part
        return self._contended and not self.alone and not self._settling and not self._late(now_ns)

    def cap(self, holds: int, taken: int, now_ns: int) -> int:
        """How many slots it may hold. holds: now; taken: of these, with a call."""
        if self._away_from_ns is None:
            if self._contended and not self.alone and not self._settling and not self._late(now_ns):
                return taken
            return holds
        if now_ns - self._away_from_ns < GROW_NS:
            return max(taken, min(holds, self.part))
        cap = max(taken, self.part)
        self._extra += max(cap - holds, 0)
        return cap

    # -- what it says

    def may_say(self) -> bool:
        """May another message be sent?"""
        return len(self._under_way) < UNDER_WAY_MAX

    def is_due(self, waiting: bool, now_ns: int) -> bool:
        """Is it time to say something, though nothing has happened? waiting: does a call wait here?"""
        if self._settling:
            return now_ns - self._said_ns >= LATE_NS
        beat_ns = WAITING_BEAT_NS if waiting and not self.alone else BEAT_NS
        return self._who or now_ns - self._said_ns >= beat_ns

    def is_news(self, tenant: str) -> bool:
        """Does the store not know that a tenant waits here?"""
        return self._believed.get(tenant, 0) <= 0

    def say(
        self,
        *,
        holds: int,
        idle: int,
        lines: tuple[Line, ...],
        changed: Iterable[str],
        share_of: Callable[[str], int],
        now_ns: int,
        leaving: bool = False,
    ) -> Said:
        """The next message. changed: tenants that were charged since the last one; share_of: a tenant's."""
        self._number += 1
        self._said_ns = now_ns
        self._changed.update(changed)
        served = {tenant: self._served[tenant] for tenant in self._changed}
        self._under_way[self._number] = now_ns, served
        self._believed = {line.tenant: line.waiting for line in lines}
        roster = self._roster if self._who else ()
        self._who = False
        return Said(
            name=self._name,
            life=self._life,
            number=self._number,
            acked=self._acked,
            slots=self.slots,
            seen=self._seen,
            holds=holds,
            idle=idle,
            version=self._version,
            lines=lines,
            served=tuple(
                Served(tenant, self._told.get(tenant, 0.0), now_is, share_of(tenant))
                for tenant, now_is in served.items()
            ),
            roster=roster,
            leaving=int(leaving),
        )

    # -- what it hears

    def answered(self, reply: Reply) -> Sequence[str]:
        """A message was answered. returns: the tenants of slots that are this worker's from now on."""
        for number in [one for one in self._under_way if one <= reply.number]:
            _, served = self._under_way.pop(number)
            self._told.update(served)
            self._acked = number
        self._changed = {one for one in self._changed if self._told.get(one) != self._served[one]}
        if self._away_from_ns is not None:
            self._away_from_ns = None
            self._said_away = self._number
        if reply.life != self._life:
            # Of the life before, and if that was not settled yet, of the one before it.
            self._roster = tuple(sorted({*self._members, *(self._roster if self._settling else ())}))
            self._life, self._seen = reply.life, 0
        self.alone = bool(reply.alone)
        granted = self._hear(reply)
        if reply.number > self._said_away:
            self._extra = 0
        self._settling = bool(reply.settling)
        self._who = bool(reply.who)
        if reply.members:
            self._members, self._version = reply.members, reply.version
        return granted

    def woken(self, wake: Wake) -> Sequence[str]:
        """As `answered`, of what was told unasked; of another life it is nothing."""
        if wake.life != self._life:
            return ()
        self.alone = self.alone and bool(wake.alone)  # it may have been overtaken
        return self._hear(wake)

    def _hear(self, told: Wake | Reply) -> Sequence[str]:
        self._contended = bool(told.contended)
        fresh = told.granted - self._seen
        if fresh <= 0:
            return ()
        self._seen = told.granted
        tenants = told.unseen[-fresh:]
        for tenant in tenants:
            self._believed[tenant] = self._believed.get(tenant, 0) - 1
        known = min(self._extra, fresh)  # it had taken so many without being asked
        self._extra -= known
        return tenants[known:]

    # -- when it hears nothing

    def disconnected(self, now_ns: int) -> None:
        """What is under way will not be answered."""
        self._under_way.clear()
        self._believed.clear()
        self._go_away(now_ns)

    def look(self, now_ns: int) -> None:
        """Is an answer so late that the store is away?"""
        if self._oldest_ns(now_ns) > AWAY_NS:
            self._go_away(now_ns)

    def _go_away(self, now_ns: int) -> None:
        if self._away_from_ns is None:
            self._away_from_ns = now_ns
            self.alone = False

    def _late(self, now_ns: int) -> bool:
        return self._oldest_ns(now_ns) > LATE_NS

    def _oldest_ns(self, now_ns: int) -> int:
        oldest = min((said_ns for said_ns, _ in self._under_way.values()), default=math.inf)
        return 0 if oldest is math.inf else now_ns - int(oldest)
