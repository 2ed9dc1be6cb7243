"""Two gateways of two workers before one server that is full: shares, use, and never one call more than its slots.

The judge is the simulated server's own log; it takes more calls at once than the gateways may send it. Of calls that
were broken off it has to be told when (tests/support/crowd.py).
"""

import asyncio
import contextlib
import os
import pathlib
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from backends.simulator.settings import Settings
from tests.support import gateway, mutants, simulator, stores
from tests.support.crowd import NOTICED_NS_MAX, SECOND_NS, Crowd, Seen, broken_off
from tests.support.gateway import Gateway, eventually
from tests.support.processes import is_alive
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

SLOTS = 16
SHARES = {f"t{number}": share for number, share in enumerate([1, 1, 1, 1, 2, 2, 2, 3, 4, 8])}
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}], "max_tokens": 8}
MODEL = "llama-3.1-8b"
OFTEN = 150
"""Of a tenant with so many calls in ten seconds the work follows its share within 5 %."""


@pytest.fixture
def server() -> Iterator[simulator.Running]:
    settings = Settings(instance_type="g6e.xlarge", model=MODEL, slots=4 * SLOTS, time_scale=0.35)
    with simulator.running(settings) as one:
        yield one


class Site:
    """A store and two gateways. store: its process; env: of the gateways; killed: writers, and when (ns since 1970)."""

    def __init__(
        self,
        directory: pathlib.Path,
        server: simulator.Running,
        stack: contextlib.ExitStack,
        env: dict[str, str] | None = None,
    ) -> None:
        self._server = server
        self.killed: dict[str, int] = {}
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
                        redis={"url": self.url}, bounds={"queue_calls_max": 1000, "queue_wait_s": 60.0}, env=env,
                    )
                )
            )  # fmt: skip
        for one in self.gateways:
            eventually(lambda one=one: len(self.workers(one)) == 2)

    def workers(self, front: Gateway) -> list[int]:
        return [line["pid"] for line in front.lines("start") if is_alive(line["pid"])]

    def kill_one_of(self, front: Gateway, rng: random.Random) -> None:
        """A worker: nothing that it has begun goes on."""
        victim = rng.choice([line for line in front.lines("start") if is_alive(line["pid"])])
        self.killed[victim["writer"]] = time.time_ns()
        os.kill(victim["pid"], signal.SIGKILL)

    def seen(self) -> Seen:
        """What the server saw, once it has ended all calls and the journals say which of them were broken off."""

        def log() -> list[dict[str, Any]] | None:
            entries = self._server.log()
            return entries if all(entry["ended_ns"] for entry in entries) else None

        def causes() -> dict[str, int] | None:
            found = broken_off(self.gateways, self.killed)
            return found if aborted <= found.keys() and not under_way() else None

        def under_way() -> set[str]:
            """Calls without a record."""
            begun, ended = (
                {line["call_id"] for one in self.gateways for line in one.lines(kind)}
                for kind in ("admitted", "call")
            )
            return begun - ended

        entries = eventually(log)
        aborted = {entry["request_id"] for entry in entries if entry["outcome"] == "aborted"}
        return Seen(entries, eventually(causes))

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
    counts = {tenant: len(ended.get(tenant, ())) for tenant in SHARES}
    strays = {
        tenant: sum(ended.get(tenant, ())) / whole * sum(SHARES.values()) / share - 1
        for tenant, share in SHARES.items()
    }
    print("calls", counts, "off by", {tenant: f"{stray:+.1%}" for tenant, stray in strays.items()})
    assert max(counts.values()) >= OFTEN, counts
    for tenant, share in SHARES.items():
        part = share / sum(SHARES.values())
        within = 0.05 if counts[tenant] >= OFTEN else max(0.25, 0.015 / part)
        assert abs(strays[tenant]) <= within, (tenant, strays, counts)


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
    seen = site.seen()
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
        site.kill_one_of(site.gateways[0], rng)
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
    seen = site.seen()
    assert seen.most() <= SLOTS
    assert len(seen.spans) > 10 * SLOTS


async def leaving(site: Site, seconds: float) -> None:
    """Clients that mostly leave before their answer has come, be it in the line or at the server."""
    async with Crowd(site.gateways, ("t7", "t8", "t9"), deep=10, body=ASK, stay_s=(0.05, 1.5)):
        await asyncio.sleep(seconds)


def seen_of_leaving(site: Site) -> Seen:
    asyncio.run(leaving(site, 8))
    return site.seen()


def test_a_call_that_is_broken_off_makes_room_at_once_and_for_one(site: Site) -> None:
    seen = seen_of_leaving(site)
    print(
        "broken off",
        len(seen.late_ns),
        "finished",
        len(seen.finished),
        "seen late by",
        max(seen.late_ns.values()),
    )
    assert len(seen.late_ns) > 3 * SLOTS
    assert seen.most() <= SLOTS
    assert max(seen.late_ns.values()) < NOTICED_NS_MAX
    assert len(seen.finished) < len(seen.late_ns) / 4, "its connection was closed: the server stops its work"


def test_a_mutant_that_breaks_off_late_is_found(tmp_path: pathlib.Path, server: simulator.Running) -> None:
    """Its slot is given on, and the server works on."""
    with contextlib.ExitStack() as stack:
        site = Site(tmp_path, server, stack, mutants.environment("broken_off_late"))
        seen = seen_of_leaving(site)
        assert len(seen.finished) > len(seen.late_ns) / 2
