"""One ledger, many gateways and folders; a store of several servers that loses a part, or falls back to a replica."""

import asyncio
import contextlib
import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from metering.ledger.store import Store
from tests.oracle import journal, ledger
from tests.support import gateway, stores
from tests.support.gateway import ROOT, Gateway, eventually
from tests.support.ports import free_ports
from tests.support.rawbackend import Scripted
from tests.support.stage import CARD, SIZED
from tests.support.stores import Running
from tests.support.valkey import ValkeyError

pytestmark = pytest.mark.integration

TENANTS = ("acme", "hooli", "stark")  # each on another of three shards
CALLS = 40
LEVEL_S = 40.0
"""A probe each 30 s, and the time to fold."""


@contextlib.contextmanager
def site(directory: pathlib.Path, url: str, port: int) -> Iterator[Gateway]:
    """A gateway with a state directory of its own."""
    backend = {
        "name": "b1",
        "url": f"http://127.0.0.1:{port}",
        "model": "m1",
        "instance_type": "inf2.48xlarge",
    }
    directory.mkdir()
    with gateway.running(
        directory, [backend], tenants=TENANTS, rate_cards=[CARD], workers=2, redis={"url": url}
    ) as running:
        yield running


@pytest.fixture
def backend() -> Iterator[Scripted]:
    server = Scripted(SIZED)
    yield server
    server.stop()


def calls(at: Gateway, count: int = CALLS) -> None:
    for number in range(count):
        answer = at.post(
            "/v1/chat/completions",
            {"model": "m1", "messages": [{"role": "user", "content": "hi"}]},
            tenant=TENANTS[number % len(TENANTS)],
        )
        assert answer.status == 200, answer.read()
        answer.read()
        answer.close()


def fold(store: Running, *state_dirs: pathlib.Path) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "gateway.cli",
        "ledger",
        "fold",
        *map(str, state_dirs),
        "--redis",
        store.url,
    ]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)


def read(store: Running) -> ledger.Ledger:
    """What the store holds, whichever server has it."""
    return ledger.read(_Reader(store))  # type: ignore[arg-type]


class _Reader:
    """As tests/oracle/resp.py, over several servers."""

    def __init__(self, store: Running) -> None:
        self._store = store

    def keys(self, pattern: str) -> list[str]:
        return sorted(self._store.ask("KEYS", pattern))

    def hash(self, key: str) -> dict[str, str]:
        flat = self._store.ask("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))


def differences(store: Running, *sites: Gateway) -> list[object]:
    writers = [writer for one in sites for writer in journal.read(one.state_dir / "journal")]
    return ledger.check(ledger.recompute(writers), read(store))


def is_ready(store: Running, tenant: str) -> bool:
    epoch = store.ask("GET", "wb:1:epoch")
    return epoch is not None and [epoch] * 2 == store.ask(
        "HMGET", f"wb:1:{{{tenant}}}:meta", "epoch", "ready"
    )


def all_ready(store: Running) -> bool:
    return all(is_ready(store, tenant) for tenant in TENANTS)


def test_two_gateways_and_a_folder_on_one_ledger(tmp_path: pathlib.Path, backend: Scripted) -> None:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(stores.single(stores.valkey_binary(), tmp_path / "store"))
        stack.enter_context(store)
        sites = [stack.enter_context(site(tmp_path / name, store.url, backend.port)) for name in ("a", "b")]
        # An earlier life of the first one: complete journals, which its caretaker folds, and so does the command.
        calls(sites[0])
        assert sites[0].stop() == 0
        store.everywhere("FLUSHALL")
        sites[0].restart()
        sites[0].wait_ready()
        loads = [threading.Thread(target=calls, args=(one, 3 * CALLS)) for one in sites]
        for load in loads:
            load.start()
        folded = [fold(store, *(one.state_dir for one in sites)) for _ in range(2)]
        for load in loads:
            load.join(60)
        # The journals of the living are not closed, and are left to their writers.
        assert [one.returncode for one in folded] == [1, 1]
        assert "is not closed" in folded[0].stderr
        eventually(lambda: differences(store, *sites) == [], within_s=LEVEL_S)
        eventually(lambda: all_ready(store), within_s=LEVEL_S)
        assert (
            sum(value for name, value in read(store).balances.items() if name.endswith("|calls")) == 7 * CALLS
        )


def test_a_cluster_that_loses_one_shard_begins_a_new_epoch_and_is_filled_again(
    tmp_path: pathlib.Path, backend: Scripted
) -> None:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(stores.cluster(stores.valkey_binary(), tmp_path / "store", user=True))
        stack.enter_context(store)
        one = stack.enter_context(site(tmp_path / "a", store.url, backend.port))
        calls(one)
        eventually(lambda: differences(store, one) == [] and all_ready(store), within_s=LEVEL_S)
        before = store.ask("GET", "wb:1:epoch")
        (shard,) = [each for each in store.each if "wb:1:{acme}:m" in each.ask("KEYS", "*")]
        shard.ask("FLUSHALL")
        calls(one)  # the next call of a tenant shows what is lost of it
        eventually(lambda: differences(store, one) == [] and all_ready(store), within_s=LEVEL_S)
        assert store.ask("GET", "wb:1:epoch") != before


def test_a_cluster_that_misses_a_server_costs_no_call(tmp_path: pathlib.Path, backend: Scripted) -> None:
    """It comes back without its data. Meanwhile the Cluster takes nothing, on the other shards neither."""
    binary, directory = stores.valkey_binary(), tmp_path / "store"
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(stores.cluster(binary, directory))
        one = stack.enter_context(site(tmp_path / "a", store.url, backend.port))
        with store:
            calls(one)
            eventually(lambda: differences(store, one) == [] and all_ready(store), within_s=LEVEL_S)
            (lost,) = [each for each in store.each if "wb:1:{acme}:m" in each.ask("KEYS", "*")]
            port = lost.ask("CONFIG", "GET", "port")[1]
            with contextlib.suppress(OSError, ValkeyError):
                lost.ask("SHUTDOWN", "NOSAVE")
        calls(one)
        stack.enter_context(stores.node_of_cluster(binary, directory, int(port)))
        eventually(lambda: stores.answers(f"redis://127.0.0.1:{port}"))
        with store:
            eventually(lambda: "cluster_state:ok" in store.ask("CLUSTER", "INFO"))
            eventually(lambda: differences(store, one) == [] and all_ready(store), within_s=LEVEL_S)


def test_only_the_tenants_of_the_shard_that_is_away_wait(tmp_path: pathlib.Path, backend: Scripted) -> None:
    """Where the Cluster itself goes on without it. What waited is sent when it is back, without its data."""
    binary, directory = stores.valkey_binary(), tmp_path / "store"
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(stores.cluster(binary, directory, whole=False))
        one = stack.enter_context(site(tmp_path / "a", store.url, backend.port))
        with store:
            calls(one)
            eventually(lambda: differences(store, one) == [] and all_ready(store), within_s=LEVEL_S)
            held = {each: each.ask("KEYS", "wb:1:{*}:m") for each in store.each}
            lost = next(each for each, keys in held.items() if "wb:1:{acme}:m" in keys)
            others = [tenant for tenant in TENANTS if f"wb:1:{{{tenant}}}:m" not in held[lost]]
            assert len(others) == 2
            port = lost.ask("CONFIG", "GET", "port")[1]
            with contextlib.suppress(OSError, ValkeyError):
                lost.ask("SHUTDOWN", "NOSAVE")
            lost.__exit__(None, None, None)
            store.each.remove(lost)
            before = {tenant: posted(store, tenant) for tenant in others}
            calls(one)
            per_tenant = CALLS // len(TENANTS)
            for tenant in others:
                eventually(
                    lambda tenant=tenant: posted(store, tenant) >= before[tenant] + per_tenant,
                    within_s=LEVEL_S,
                )
        stack.enter_context(stores.node_of_cluster(binary, directory, int(port), whole=False))
        eventually(lambda: stores.answers(f"redis://127.0.0.1:{port}"))
        with store:
            eventually(lambda: "cluster_state:ok" in store.ask("CLUSTER", "INFO"))
            eventually(lambda: differences(store, one) == [] and all_ready(store), within_s=LEVEL_S)


def posted(store: Running, tenant: str) -> int:
    """How many calls of this tenant the store has."""
    hours = [key for each in store.each for key in each.ask("KEYS", f"wb:1:{{{tenant}}}:h:*")]
    flat = [word for hour in hours for word in store.ask("HGETALL", hour)]
    return sum(
        int(value) for field, value in zip(flat[::2], flat[1::2], strict=True) if field.endswith("|calls")
    )


def test_a_replica_that_lags_and_takes_over_is_caught_up(tmp_path: pathlib.Path, backend: Scripted) -> None:
    """The replica is cut off, calls go on, and then it is all that is left."""
    binary = stores.valkey_binary()
    with contextlib.ExitStack() as stack:
        ports = free_ports(2)
        options = [{"port": str(port), "bind": "127.0.0.1"} for port in ports]
        primary = stack.enter_context(stores.process(binary, tmp_path / "primary", options[0]))
        stack.enter_context(stores.process(binary, tmp_path / "replica", options[1]))
        nodes = [f"redis://127.0.0.1:{port}" for port in ports]
        for node in nodes:
            eventually(lambda node=node: stores.answers(node))
        old, new = (stack.enter_context(Running(node, [node])) for node in nodes)
        new.ask("REPLICAOF", "127.0.0.1", str(ports[0]))
        one = stack.enter_context(site(tmp_path / "a", nodes[0], backend.port))
        calls(one)
        eventually(lambda: differences(old, one) == [] and all_ready(old), within_s=LEVEL_S)
        epoch = old.ask("GET", "wb:1:epoch")
        eventually(lambda: read(new) == read(old) and new.ask("GET", "wb:1:epoch") == epoch)
        new.ask("REPLICAOF", "NO", "ONE")
        lagging = read(new)
        calls(one)
        eventually(lambda: differences(old, one) == [], within_s=LEVEL_S)
        # It takes the address of the old one, as a name in the network is moved to it.
        primary.kill()
        primary.wait()
        new.ask("CONFIG", "SET", "port", str(ports[0]))
        eventually(lambda: differences(new, one) == [], within_s=LEVEL_S)
        eventually(lambda: all_ready(new), within_s=LEVEL_S)
        assert new.ask("GET", "wb:1:epoch") != epoch
        assert lagging.marks != read(new).marks


def test_a_command_that_was_given_up_leaves_its_reply_to_nobody(tmp_path: pathlib.Path) -> None:
    """Cancelled in the midst of it, on one server and on a cluster: who asks next gets an answer of his own."""

    async def scenario(url: str) -> None:
        async with Store(url) as client:
            await client.begin(["acme"], "epoch-of-acme")
            for number in range(300):
                asking = asyncio.create_task(client.metas(["acme"]))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                assert await client.epoch() == ""
                assert await client.writers() == {}
            assert (await client.metas(["acme"]))["acme"].epoch == "epoch-of-acme"

    with stores.single(stores.valkey_binary(), tmp_path / "one") as one:
        asyncio.run(scenario(one.url))
    with stores.cluster(stores.valkey_binary(), tmp_path / "cluster") as three:
        asyncio.run(scenario(three.url))


def test_a_store_that_may_evict_is_told_by_readyz(tmp_path: pathlib.Path, backend: Scripted) -> None:
    with stores.single(stores.valkey_binary(), tmp_path / "store") as store, store:
        store.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with site(tmp_path / "a", store.url, backend.port) as one:

            def warnings() -> list[str]:
                return json.loads(one.get("/readyz")[1])["warnings"]

            eventually(
                lambda: warnings() == ["the ledger's store may evict: its maxmemory-policy is allkeys-lru"]
            )
