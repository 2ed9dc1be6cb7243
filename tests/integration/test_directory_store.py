"""The directory in a real store: one change at a time, found again by number, and whole after a loss."""

import asyncio
import json
import pathlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

from metering.ledger import directory, directory_store
from metering.ledger.directory_store import CHANGES_KEPT, DirectoryStore
from metering.ledger.servers import StoreUnavailable
from tests.metering.ledger.test_directory import entry
from tests.support import stores
from tests.support.stores import Running

pytestmark = pytest.mark.integration
KEY = "wb:1:directory"
ONE, TWO = (directory.encode(entry(version)) for version in (1, 2))


@pytest.fixture(scope="module", params=["one", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Under the user with the least rights that the reference page tells."""
    made = stores.single if request.param == "one" else stores.cluster
    with made(stores.valkey_binary(), tmp_path_factory.mktemp("store"), user=True) as running, running:
        yield running


@pytest.fixture
def valkey(server: Running) -> Running:
    server.everywhere("FLUSHALL")
    return server


def run(server: Running, scenario: Callable[[DirectoryStore], Awaitable[None]]) -> None:
    async def with_store() -> None:
        store = DirectoryStore(server.url)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(with_store())


def test_an_entry_is_replaced_only_where_it_was_seen(valkey: Running) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.put({"key:k1": ("", ONE)}) == {"key:k1": ONE}
        assert await store.put({"key:k1": ("", TWO), "key:k2": ("", TWO)}) == {"key:k1": ONE, "key:k2": TWO}
        assert await store.put({"key:k1": (ONE, TWO)}) == {"key:k1": TWO}
        assert await store.get(["key:k1", "key:k9"]) == {"key:k1": TWO}

    run(valkey, scenario)
    assert valkey.ask("HGET", KEY, "key:k1") == TWO
    life, _, number = valkey.ask("HGET", KEY, "revision").partition(":")
    assert (len(life), number) == (16, "3")


def test_what_changed_is_found_by_its_number_and_all_of_it_after_a_loss(valkey: Running) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.changed("") == ("", {}, False)
        await store.put({"key:k1": ("", ONE), "key:k2": ("", ONE)})
        first = await store.changed("")
        assert (dict(first.texts), first.whole) == ({"key:k1": ONE, "key:k2": ONE}, True)
        await store.put({"key:k1": (ONE, TWO)})
        second = await store.changed(first.revision)
        assert (dict(second.texts), second.whole) == ({"key:k1": TWO}, False)
        assert await store.changed(second.revision) == (second.revision, {}, False)
        valkey.everywhere("FLUSHALL")
        assert await store.changed(second.revision) == ("", {}, True)
        await store.put({"key:k1": ("", ONE)})
        third = await store.changed(second.revision)
        assert (dict(third.texts), third.whole) == ({"key:k1": ONE}, True)

    run(valkey, scenario)


def test_who_was_away_for_longer_than_changes_are_kept_reads_all(valkey: Running) -> None:
    async def scenario(store: DirectoryStore) -> None:
        await store.put({"key:k0": ("", ONE)})
        seen = (await store.changed("")).revision
        await store.put({f"key:k{number}": ("", ONE) for number in range(1, CHANGES_KEPT + 1)})
        assert not (await store.changed(seen)).whole
        await store.put({"key:one": ("", ONE)})
        found = await store.changed(seen)
        assert (len(found.texts), found.whole) == (CHANGES_KEPT + 2, True)

    run(valkey, scenario)
    kept = [field for field in valkey.ask("HKEYS", KEY) if field.startswith("change:")]
    assert len(kept) == CHANGES_KEPT


@pytest.mark.parametrize("revision", ["", "x", "x:y", "l:0", "l:9", "other:3"])
def test_a_revision_that_is_none_costs_a_whole_read_and_nothing_else(valkey: Running, revision: str) -> None:
    valkey.ask("HSET", KEY, "revision", "l:3", "change:1", "key:k1", "key:k1", ONE)

    async def scenario(store: DirectoryStore) -> None:
        found = await store.changed(revision)
        assert (found.revision, dict(found.texts), found.whole) == ("l:3", {"key:k1": ONE}, True)

    run(valkey, scenario)


def test_of_many_who_change_an_entry_at_once_each_sees_the_one_before(valkey: Running) -> None:
    def written(marks: str) -> str:
        return directory.encode(entry(marks.count("x"), mark=marks)) if marks else ""

    async def one(number: int) -> None:
        store, seen, now = DirectoryStore(valkey.url), "", None
        while now != (after := written(seen + f"x{number}")):
            if now is not None:
                seen = json.loads(now)["data"]["mark"]
                after = written(seen + f"x{number}")
            now = (await store.put({"key:k1": (written(seen), after)}))["key:k1"]
        await store.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(8)))

    asyncio.run(all_of_them())
    found = directory.decode(valkey.ask("HGET", KEY, "key:k1"))
    assert found is not None
    assert (found.version, set("01234567") - set(bytes(found.data).decode())) == (8, set())


def test_a_lock_is_one_mans_and_expires(valkey: Running) -> None:
    async def scenario(store: DirectoryStore) -> None:
        assert await store.lock("a")
        assert not await store.lock("b")
        await store.unlock("b")
        assert not await store.lock("b")
        assert 0 < int(valkey.ask("PTTL", directory_store.LOCK_KEY)) <= directory_store.LOCK_MS
        await store.unlock("a")
        assert await store.lock("b")

    run(valkey, scenario)


def test_a_key_of_another_type_is_as_good_as_no_store(valkey: Running) -> None:
    valkey.ask("SET", KEY, "x")

    async def scenario(store: DirectoryStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.changed("")
        with pytest.raises(StoreUnavailable):
            await store.put({"key:k1": ("", ONE)})

    run(valkey, scenario)


def test_no_store_is_said(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        store = DirectoryStore(f"unix://{tmp_path / 'absent'}")
        with pytest.raises(StoreUnavailable):
            await store.changed("")
        await store.close()

    asyncio.run(scenario())
