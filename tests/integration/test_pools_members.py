"""Workers of pools on real stores, under the least rights: one server, and a Cluster with a pool on each shard."""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from gateway.calls.pooled import PooledSeats
from gateway.calls.queueing import Seats, Ticket
from metering.limits import pools
from metering.limits.connection import slot_of
from metering.limits.pool_messages import Wake
from metering.limits.pools import Pools
from tests.support import stores
from tests.support.stores import Running

pytestmark = pytest.mark.integration

SLOTS, CLIENTS = 4, 6
SHARDS = ((0, 5460), (5461, 10922), (10923, 16383))
SWEEP_S = 0.05
SOON_S = 20


@pytest.fixture(scope="module", params=["valkey", "cluster", "redis"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp(request.param)
    binary = stores.redis_binary() if request.param == "redis" else stores.valkey_binary()
    if binary is None:
        pytest.skip("no Redis of this version here")
    make = stores.cluster if request.param == "cluster" else stores.single
    with make(binary, directory, user=True) as running, running:
        yield running


def backends() -> list[str]:
    """One whose pool is on each shard of the Cluster."""
    names = [f"b{number}" for number in range(100)]
    return [
        next(name for name in names if first <= slot_of(pools.tag(name)) <= last) for first, last in SHARDS
    ]


class Servers:
    """What is in flight at each backend, and the most there was; who served whom."""

    def __init__(self, names: list[str]) -> None:
        self.now: collections.Counter[str] = collections.Counter()
        self.most = dict.fromkeys(names, 0)
        self.served: collections.Counter[tuple[str, str]] = collections.Counter()

    async def serve(self, backend: str, worker: str) -> None:
        self.now[backend] += 1
        self.most[backend] = max(self.most[backend], self.now[backend])
        await asyncio.sleep(0.01)
        self.now[backend] -= 1
        self.served[worker, backend] += 1


class Member:
    """A worker before all backends. wakes: that it heard, by pool."""

    def __init__(self, url: str, name: str, servers: Servers) -> None:
        names = list(servers.most)
        self.name = name
        self.wakes: collections.Counter[str] = collections.Counter()
        self._servers = servers
        self._seats = Seats(dict.fromkeys(names, 0), calls_max=1_000, clock=time.monotonic_ns)
        self._pools = Pools(url, name, connected=self._connected, woken=self._woken)
        self.pooled = {
            pools.key(backend): PooledSeats(
                backend, SLOTS, name=name, part=SLOTS // 2, seats=self._seats, send=self._pools.sender(backend),
                soon=asyncio.get_running_loop().call_soon, clock=time.monotonic_ns,
            )
            for backend in names
        }  # fmt: skip
        self._pools.start()

    @property
    def joined(self) -> bool:
        return not any(one.away for one in self.pooled.values())

    def _connected(self) -> None:
        for one in self.pooled.values():
            one.connected()

    def _woken(self, key: str, wake: Wake) -> None:
        self.wakes[key] += 1
        self.pooled[key].woken(wake)

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._pools.sweep()
            if self.joined:
                for one in self.pooled.values():
                    one.sweep()

    async def client(self, backend: str) -> None:
        """Always a call under way."""
        while True:
            await self._call(backend)

    async def _call(self, backend: str) -> None:
        if self._seats.take((backend,)) is None:
            granted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._seats.wait(Ticket("acme", "m", granted.set_result), (backend,))
            await granted
        await self._servers.serve(backend, self.name)
        waiting = self._seats.release(backend)
        if waiting is not None:
            waiting.granted(backend)

    async def close(self) -> None:
        await self._pools.close()


@contextlib.asynccontextmanager
async def members(url: str, servers: Servers, *, joined: bool = True) -> AsyncIterator[list[Member]]:
    """Two. joined: the store has answered both."""
    async with asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as stack:
        both = [Member(url, name, servers) for name in ("w-east", "w-west")]
        sweeps = [group.create_task(one.sweep()) for one in both]
        for one, sweep in zip(both, sweeps, strict=True):
            stack.push_async_callback(one.close)
            stack.callback(sweep.cancel)
        if joined:
            await until(lambda: all(one.joined for one in both))
        yield both


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():
            await asyncio.sleep(0.01)


async def overloaded(url: str, servers: Servers) -> list[Member]:
    """Until both have served a number of calls at each backend. returns: both, closed."""
    async with members(url, servers) as both, asyncio.TaskGroup() as group:
        clients = [
            group.create_task(one.client(backend))
            for one in both
            for backend in servers.most
            for _ in range(CLIENTS)
        ]
        await until(
            lambda: all(servers.served[one.name, each] >= 50 for one in both for each in servers.most)
        )
        for client in clients:
            client.cancel()
        return both


def test_pools_on_every_shard_are_kept_and_wake_their_workers(
    store: Running, caplog: pytest.LogCaptureFixture
) -> None:
    servers = Servers(backends())
    both = asyncio.run(overloaded(store.url, servers))
    assert servers.most == dict.fromkeys(servers.most, SLOTS)
    for one in both:
        assert set(one.wakes) == {pools.key(backend) for backend in servers.most}
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert len(store.ask("KEYS", "wb:1:{pool:*")) == len(SHARDS)


def test_a_user_that_may_not_publish_is_refused_and_told(
    store: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """The least rights are no less: without this one a worker takes the store to be away, and says why."""
    servers = Servers(backends())
    store.everywhere("FLUSHALL")
    store.everywhere("ACL", "SETUSER", stores.USER, "-publish")

    async def refused() -> None:
        async with members(store.url, servers, joined=False) as both:
            await until(lambda: "the store refuses a pool's message" in caplog.messages)
            assert not any(one.joined for one in both)

    try:
        asyncio.run(refused())
    finally:
        store.everywhere("ACL", "SETUSER", stores.USER, "+publish")
