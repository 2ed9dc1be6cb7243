"""Workers before one backend, their pool in a model of the store, and a network between; all in simulated time.

The workers' side is the product's own (Seats, PooledSeats, Member); the store is pool_model.py, or one that a test
gives. A run is made of its seed alone. The backend's own count of what is in flight is the judge: `worst`.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from gateway.calls.fairness import Claim
from gateway.calls.pooled import PooledSeats
from gateway.calls.queueing import Seats, Ticket
from metering.limits.pool_messages import Reply, Said, Wake, decode_reply
from tests.support.pool_model import PoolModel

MS = 1_000_000
SECOND = 1_000 * MS
NETWORK_NS = (20_000, 300_000)
"""How long a message is under way, one way."""


class Store(Protocol):
    def step(self, message: tuple[Any, ...], now_ms: int) -> tuple[list[Any], dict[str, Any]]: ...
    def drop(self, member: str, now_ms: int) -> dict[str, Any]: ...
    def flush(self) -> None: ...


class Worker:
    """One worker process. linked: can it reach the store?"""

    def __init__(self, world: "World", name: str, part: int) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.linked = True
        self.epoch = 0  # of its connection
        self.calls: dict[int, Ticket] = {}
        self.seats = Seats({"b": 0}, calls_max=100_000, clock=lambda: world.now_ns, claims=world.claims)
        self.pooled = PooledSeats(
            "b", world.slots, name=name, part=part, seats=self.seats, send=self._send, soon=self._soon,
            clock=lambda: world.now_ns,
        )  # fmt: skip
        self.pooled.connected()
        world.after(world.rng.randrange(50 * MS), self._sweep)

    def _soon(self, work: Callable[[], None]) -> None:
        self.world.after(1_000, lambda: self.dead or work())

    def _sweep(self) -> None:
        if not self.dead:
            self.pooled.sweep()
            self.world.after(50 * MS, self._sweep)

    def _send(self, said: Said, answered: Callable[[Reply | None], None]) -> bool:
        world, epoch = self.world, self.epoch
        if not self.linked:
            return False
        message = tuple(msgspec.msgpack.decode(msgspec.msgpack.encode(said)))

        def reply(data: list[Any]) -> None:
            if self.epoch == epoch and not self.dead:
                answered(decode_reply(msgspec.msgpack.encode(data)))

        world.post(lambda: world.ask(message, reply))
        return True

    def cut(self) -> None:
        """The connection is lost; what was sent may arrive all the same."""
        self.linked, self.epoch = False, self.epoch + 1
        self.pooled.disconnected()

    def join_again(self) -> None:
        if not self.dead:
            self.linked = True
            self.pooled.connected()

    def wake(self, told: Any) -> None:
        if self.linked and not self.dead:
            self.pooled.woken(msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Wake))

    def call(self, tenant: str, then: Callable[[], None] = lambda: None) -> None:
        """A call comes. then: called when it has ended."""
        world = self.world
        number = next(world.numbers)
        if self.seats.take(("b",)) is not None:
            self._run(number, tenant, None, then)
            return

        def granted(_backend: str) -> None:
            del self.calls[number]
            self._run(number, tenant, ticket, then)

        ticket = Ticket(tenant, "m", granted)
        self.calls[number] = ticket
        self.seats.wait(ticket, ("b",))

    def _run(self, number: int, tenant: str, ticket: Ticket | None, then: Callable[[], None]) -> None:
        world = self.world
        work, span_ns = world.take(tenant)
        world.begin(self, number)

        def over() -> None:
            if self.dead:
                return
            world.end(self, number, tenant, work)
            if ticket is not None:
                self.seats.settle(ticket, work)
            after = self.seats.release("b")
            then()
            if after is not None:
                after.granted("b")

        world.after(span_ns, over)

    def die(self) -> None:
        self.dead = True
        self.world.forget(self)


class World:
    """Slots of one backend. Of the slot time (span_ns) in which calls waited, so much was used: busy_ns."""

    def __init__(
        self,
        seed: int,
        *,
        slots: int,
        claims: Mapping[str, Claim],
        store: Store | None = None,
        mean_ms: int = 40,
    ) -> None:
        self.rng = random.Random(seed)
        self.now_ns = SECOND
        self.slots = slots
        self.claims = claims
        self.store: Store = store or PoolModel()
        self.frozen: list[Callable[[], None]] | None = None
        self.numbers = itertools.count(1)
        self.workers: dict[str, Worker] = {}
        self.running: dict[tuple[str, int], None] = {}
        self.worst = 0
        self.served: list[tuple[int, str, float]] = []
        self.busy_ns = self.span_ns = 0
        self._counted_ns, self._waited = self.now_ns, False
        self._mean_ms = mean_ms
        self._scale = {tenant: self.rng.uniform(0.5, 2) for tenant in claims}
        self._events: list[tuple[int, int, Callable[[], object]]] = []

    def worker(self, part: int) -> Worker:
        name = f"w{len(self.workers)}"
        self.workers[name] = worker = Worker(self, name, part)
        return worker

    @property
    def living(self) -> list[Worker]:
        return [one for one in self.workers.values() if not one.dead]

    def after(self, delay_ns: int, work: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self.numbers), work))

    def post(self, work: Callable[[], None]) -> None:
        """Something goes over the network to the store, which may stand still."""

        def arrives() -> None:
            if self.frozen is not None:
                self.frozen.append(work)
            else:
                work()

        self.after(self.rng.randrange(*NETWORK_NS), arrives)

    def ask(self, message: tuple[Any, ...], reply: Callable[[list[Any]], None]) -> None:
        answer, wakes = self.store.step(message, self.now_ns // MS)
        self.after(self.rng.randrange(*NETWORK_NS), lambda: reply(answer))
        self.wake(wakes)

    def wake(self, wakes: dict[str, Any]) -> None:
        if "*" in wakes:
            wakes = wakes | dict.fromkeys(self.workers, wakes["*"])
        for name, told in wakes.items():
            if name in self.workers and self.rng.random() > 0.01:  # a wake may be lost
                self.after(
                    self.rng.randrange(*NETWORK_NS),
                    lambda name=name, told=told: self.workers[name].wake(told),
                )

    def thaw(self) -> None:
        held, self.frozen = self.frozen or [], None
        for work in held:
            work()

    def take(self, tenant: str) -> tuple[float, int]:
        """A call's work and its time."""
        size = self.rng.expovariate(1) * self._scale[tenant] + 0.05
        return size * 1e6, round(size * self._mean_ms * MS)

    def begin(self, worker: Worker, number: int) -> None:
        self._count()
        self.running[worker.name, number] = None
        self.worst = max(self.worst, len(self.running))

    def end(self, worker: Worker, number: int, tenant: str, work: float) -> None:
        self._count()
        del self.running[worker.name, number]
        self.served.append((self.now_ns, tenant, work))

    def forget(self, worker: Worker) -> None:
        """A process is dead: its connections to the backend are closed."""
        self._count()
        for key in [key for key in self.running if key[0] == worker.name]:
            del self.running[key]

    def _count(self) -> None:
        """Of the time since the last look: could slots have been used, and were they?"""
        passed_ns = self.now_ns - self._counted_ns
        if self._waited:
            self.span_ns += passed_ns * self.slots
            self.busy_ns += passed_ns * len(self.running)
        self._counted_ns, self._waited = self.now_ns, any(one.calls for one in self.living)

    def run(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, _, work = heapq.heappop(self._events)
            work()
        self.now_ns = until_ns

    def parts(self, from_ns: int, until_ns: int) -> dict[str, float]:
        """What part of the work that ended between these times was each tenant's."""
        sums: dict[str, float] = {}
        for at_ns, tenant, work in self.served:
            if from_ns <= at_ns < until_ns:
                sums[tenant] = sums.get(tenant, 0.0) + work
        return {tenant: work / sum(sums.values()) for tenant, work in sums.items()}
