"""Two gateways of two workers before one server that is full: shares, use, and never one call more than its slots.

The judge is the simulated server's own log; it takes more calls at once than the gateways may send it.
"""

import asyncio
import contextlib
import os
import pathlib
import random
import signal
import time
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.support import gateway, simulator, stores
from tests.support.crowd import SECOND_NS, Crowd, Seen
from tests.support.gateway import Gateway, eventually
from tests.support.processes import is_alive
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

SLOTS = 16
SHARES = {f"t{number}": share for number, share in enumerate([1, 1, 1, 1, 2, 2, 2, 3, 4, 8])}
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}], "max_tokens": 8}
MODEL = "llama-3.1-8b"


@pytest.fixture
def server() -> Iterator[simulator.Running]:
    settings = Settings(instance_type="g6e.xlarge", model=MODEL, slots=4 * SLOTS, time_scale=0.45)
    with simulator.running(settings) as one:
        yield one


class Site:
    """A store and two gateways. store: its process."""

    def __init__(
        self, directory: pathlib.Path, server: simulator.Running, stack: contextlib.ExitStack
    ) -> None:
        backend = {"name": "b1", "url": server.url, "model": MODEL, "slots": SLOTS}
        path = directory / "store" / "sock"
        options = {"port": "0", "unixsocket": str(path)}
        self.store = stack.enter_context(stores.process(stores.valkey_binary(), directory / "store", options))
        self.url = f"unix://{path}"
        eventually(lambda: stores.answers(self.url))
        self.gateways: list[Gateway] = []
        for name in ("east", "west"):
            (directory / name).mkdir()
            self.gateways.append(
                stack.enter_context(
                    gateway.running(
                        directory / name, [backend], tenants=tuple(SHARES), workers=2,
                        of_tenants={name: {"share": share} for name, share in SHARES.items()},
                        redis={"url": self.url}, bounds={"queue_calls_max": 1000, "queue_wait_s": 60.0},
                    )
                )
            )  # fmt: skip
        for one in self.gateways:
            eventually(lambda one=one: len(self.workers(one)) == 2)

    def workers(self, front: Gateway) -> list[int]:
        return [line["pid"] for line in front.lines("start") if is_alive(line["pid"])]

    def round_trip_s(self) -> float:
        """The median of 50, as a worker would see it now."""
        with Valkey(self.url) as one:
            times = []
            for _ in range(50):
                began_s = time.perf_counter()
                one.ask("PING")
                times.append(time.perf_counter() - began_s)
        return sorted(times)[25]


@pytest.fixture
def site(tmp_path: pathlib.Path, server: simulator.Running) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        yield Site(tmp_path, server, stack)


def check_shares(ended: dict[str, list[float]]) -> None:
    """Within 5 % of a tenant's share, of those with 150 calls; of rarer ones within 25 %, or 1.5 points."""
    whole = sum(sum(works) for works in ended.values())
    for tenant, share in SHARES.items():
        wanted = share / sum(SHARES.values())
        works = ended.get(tenant, [])
        got = sum(works) / whole
        within = 0.05 * wanted if len(works) >= 150 else max(0.25 * wanted, 0.015)
        assert abs(got - wanted) <= within, (tenant, got, wanted, len(works))


async def crowded(site: Site, seconds: float) -> tuple[int, float]:
    """Overload for so long. returns: when it began (ns since 1970), and the store's round trip under it."""
    async with Crowd(site.gateways, tuple(SHARES), deep=10, body=ASK) as crowd:
        began_ns = time.time_ns()
        await asyncio.sleep(seconds / 2)
        round_trip_s = await asyncio.to_thread(site.round_trip_s)
        await asyncio.sleep(seconds / 2)
        assert set(crowd.statuses) == {200}
    return began_ns, round_trip_s


def test_shares_and_use_under_overload(site: Site, server: simulator.Running) -> None:
    began_ns, round_trip_s = asyncio.run(crowded(site, 21))
    seen = Seen(server.log())
    assert seen.most() <= SLOTS
    for from_s in (5, 8, 11):
        check_shares(seen.ended(began_ns + from_s * SECOND_NS, began_ns + (from_s + 10) * SECOND_NS))
    mean_s = sum(ended - came for came, ended, *_ in seen.spans) / len(seen.spans) / SECOND_NS
    if mean_s >= 35 * round_trip_s:
        assert seen.busy(began_ns + 3 * SECOND_NS, began_ns + 20 * SECOND_NS) > 0.97 * SLOTS


async def troubled(site: Site, server: simulator.Running) -> None:
    """A killed worker, a store emptied, a store stopped and gone on: calls go on behind each."""
    rng = random.Random(1)

    async def goes_on(within_s: float) -> None:
        before = len(await asyncio.to_thread(server.log))
        async with asyncio.timeout(within_s):
            while len(await asyncio.to_thread(server.log)) < before + 3 * SLOTS:
                await asyncio.sleep(0.2)

    async with Crowd(site.gateways, ("t7", "t8", "t9"), deep=8, body=ASK):
        await goes_on(15)
        victim = rng.choice(site.workers(site.gateways[0]))
        os.kill(victim, signal.SIGKILL)
        await goes_on(15)
        async with asyncio.timeout(30):  # one that is only starting would not be known to hold nothing
            while site.gateways[0].log.read_text().count('"worker ready"') < 3:
                await asyncio.sleep(0.2)
        with Valkey(site.url) as one:
            one.ask("FLUSHALL")
        await goes_on(15)
        site.store.send_signal(signal.SIGSTOP)
        try:
            await goes_on(15)
        finally:
            site.store.send_signal(signal.SIGCONT)
        await goes_on(15)


def test_never_more_than_its_slots_whatever_goes(site: Site, server: simulator.Running) -> None:
    asyncio.run(troubled(site, server))
    seen = Seen(server.log())
    assert seen.most() <= SLOTS
    assert len(seen.spans) > 10 * SLOTS
